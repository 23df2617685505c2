"""Several processes that train one network: what `torchrun` starts, one on each GPU, or on the cores of a CPU.

The batch of the recipe is the batch of all of them together: each process takes its share of every batch that one process
alone would draw, losses are weighted by the share's size, and DistributedDataParallel adds up the gradients. So the learning
rate stays the recipe's, and the weights are those of one process up to rounding, and up to what depends on who is beside
whom in a share (BatchNorm's statistics, which images are mirrored).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploycnn.errors import TrainingError, Unavailable

if TYPE_CHECKING:
    import torch
    from torch import nn

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets


@dataclass(frozen=True, kw_only=True)
class Group:
    """The processes that train together; one alone is a group too."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on its machine: the index of its GPU

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """Which of `n` images are this process's; the shares of all processes are disjoint and differ by one at most."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def wrapped(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module whose backward pass adds up the gradients of all processes."""
        if self.size == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, on each of them."""
        if self.size == 1:
            return values
        import torch.distributed as dist

        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    def check_batch(self, smallest: int) -> None:
        """Raises TrainingError where a batch would leave a process without images."""
        if smallest < self.size:
            raise TrainingError(
                f"{self.size} processes share every batch",
                found=f"a batch of {smallest}",
                remedy="raise train.batch, or start fewer processes",
            )


def started_by_torchrun(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of a group that torchrun started."""
    return all(name in variables for name in _VARIABLES)


def current_group() -> Group:
    """The group that this process has joined; a process on its own otherwise."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Group()
    return Group(rank=dist.get_rank(), size=dist.get_world_size(), local_rank=int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Joins the group of the processes that torchrun started, over NCCL on GPUs and Gloo on CPUs; leaves it at the end.

    Args:
        device: as `train.device` has it.

    Raises:
        Unavailable: this PyTorch cannot train in several processes; the others do not answer; fewer GPUs than processes.
    """
    if not started_by_torchrun():
        yield Group()
        return
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise Unavailable("torchrun has started several processes", found="a PyTorch without torch.distributed", remedy="start one process")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    if on_gpu and local_rank >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs for process {local_rank + 1} of this machine"
        raise Unavailable("each process trains on a GPU of its own", found=found, remedy="lower --nproc-per-node, or set train.device=cpu")
    if on_gpu:
        torch.cuda.set_device(local_rank)
    try:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    except (RuntimeError, ValueError) as error:
        found = " ".join(str(error).split())[:300]
        raise Unavailable("the processes cannot find one another", found=found, remedy="start them with torchrun") from error
    try:
        yield current_group()
    finally:
        dist.destroy_process_group()
