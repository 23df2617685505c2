"""Where training runs, and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploycnn.errors import Unavailable

if TYPE_CHECKING:
    import torch


def choose_device(wish: str, local_rank: int = 0) -> torch.device:
    """The device of `train.device`: `auto` takes a GPU where there is one. Raises Unavailable for a missing `cuda`.

    Args:
        local_rank: which of the processes on this machine asks; each has a GPU of its own.
    """
    import torch

    there = torch.cuda.is_available()
    if wish == "cuda" and not there:
        found = "no CUDA device that PyTorch can use"
        raise Unavailable("train.device is cuda", found=found, remedy="set train.device to auto, or run on a machine with a GPU")
    return torch.device("cuda", local_rank) if there and wish != "cpu" else torch.device("cpu")


def autocast(device: torch.device) -> torch.autocast:
    """bf16 where a GPU has it, which needs no loss scaling. Not on CPUs: without AMX it is ten times slower than fp32."""
    import torch

    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda" and torch.cuda.is_bf16_supported())
