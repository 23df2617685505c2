"""Which TensorRT: the full one (`tensorrt` 10.x, 11.x) or TensorRT for RTX (`tensorrt_rtx`). One code path serves both.

Full TensorRT builds only for the GPU that it runs on. TensorRT for RTX also builds without a GPU, for the capabilities
that its `ComputeCapability` lists; SM90 and SM100 are not among them.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from deploycnn.environment import Gpu
from deploycnn.errors import Unavailable
from deploycnn.types import Skipped, Target

TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}
INSTALL = {"tensorrt": "pip install 'deploycnn[tensorrt]'", "tensorrt_rtx": "pip install tensorrt-rtx-cu13"}

# What TensorRT for RTX 1.7.1 does on Turing, seen on LeNet and ResNet-8. fp32 matrix products: "Cannot compile operation ... for
# Turing (SM75): FP32 GEMM is not supported", which int8 runs into as well, being float around its Q/DQ. int8 in fp16 builds, but
# every convolution in its plan is half.
_TURING = {
    "fp32": "has no fp32 matrix product",
    "int8": "has no fp32 matrix product, which int8 needs around its products,",
    "int8+fp16": "computes int8 convolutions in fp16",
}

_LEAST = {"bf16": 80, "fp8": 89}  # first compute capability with tensor cores for it


@dataclass(frozen=True, kw_only=True)
class Library:
    """One binding, imported."""

    name: str  # tensorrt or tensorrt_rtx
    module: Any

    @property
    def is_rtx(self) -> bool:
        return self.name == "tensorrt_rtx"

    @property
    def version(self) -> str:
        return str(self.module.__version__)

    @property
    def title(self) -> str:
        """`TensorRT for RTX 1.7.1.116`."""
        return f"{TITLES[self.name]} {self.version}"

    @property
    def capabilities(self) -> tuple[int, ...]:
        """What it builds for without such a GPU: capabilities times ten, ascending; none for full TensorRT."""
        kinds = getattr(self.module, "ComputeCapability", None)
        if not self.is_rtx or kinds is None:
            return ()
        return tuple(sorted(int(name[2:]) for name in kinds.__members__ if name.startswith("SM")))

    def obstacle(self, capability: int, *, here: bool) -> str:
        """Why it cannot build for that capability, "" where it can. `here`: such a GPU is in this machine."""
        if self.is_rtx:
            return "" if capability in self.capabilities else f"{self.title} builds for {_list(self.capabilities)} only"
        return "" if here else f"{self.title} builds only for the GPU it runs on, and no sm{capability} is here"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a target is built with."""

    library: Library
    capability: int  # times ten
    here: bool  # such a GPU is in this machine


@cache
def find_library(name: str) -> Library | str:
    """The binding of that name, or why it cannot be used."""
    if importlib.util.find_spec(name) is None:
        return f"{TITLES[name]} is not installed"
    try:
        return Library(name=name, module=importlib.import_module(name))
    except (ImportError, OSError) as error:  # the package is here, a shared library that it needs is not
        return f"{TITLES[name]} does not load: {' '.join(str(error).split())}"


def choose(asked: str, target: Target, gpus: tuple[Gpu, ...], gpu_reason: str = "") -> Choice:
    """The library that builds for `target`.

    Args:
        asked: auto, tensorrt or tensorrt_rtx.
        target: what to build for; plain `cuda` means the first of `gpus`.
        gpus: of this machine.
        gpu_reason: why there are none.

    Raises:
        Unavailable: none can, with the reason of each.
    """
    capability = _capability(target, gpus, gpu_reason)
    here = any(gpu.capability == capability for gpu in gpus)
    reasons = []
    for name in _candidates(asked):
        library = find_library(name)
        obstacle = library if isinstance(library, str) else library.obstacle(capability, here=here)
        if isinstance(library, Library) and not obstacle:
            return Choice(library=library, capability=capability, here=here)
        reasons.append(obstacle)
    raise Unavailable(
        f"no TensorRT here builds for sm{capability}",
        found="; ".join(reasons),
        remedy=_remedy(asked, capability, here=here),
    )


def refusal(asked: str, precision: str, target: Target, gpus: tuple[Gpu, ...]) -> Skipped | None:
    """A precision that the target's hardware, or the library that would build for it, is known not to hold."""
    if target.device == "cpu":
        return Skipped(reason="TensorRT runs on NVIDIA GPUs only", remedy="give it a target such as cuda or cuda:sm89")
    capability = target.capability or (gpus[0].capability if gpus else None)
    if capability is None:
        return None
    for kind, least in _LEAST.items():
        if kind in re.split(r"[+-]", precision) and capability < least:
            return Skipped(reason=f"sm{capability} has no {kind} arithmetic", remedy=f"use {kind} from sm{least} on, or fp16 here")
    rtx = find_library("tensorrt_rtx")
    if not isinstance(rtx, Library) or _uses_full(asked, capability, gpus):
        return None
    if capability not in rtx.capabilities:
        return Skipped(
            reason=f"sm{capability} needs full TensorRT: {rtx.obstacle(capability, here=False)}",
            remedy=f"on a machine with an sm{capability} GPU: {INSTALL['tensorrt']}",
        )
    kinds = re.split(r"[+-]", precision)  # int8+fp16, int8-auto
    if capability == 75 and (reason := _TURING.get("int8+fp16" if {"int8", "fp16"} <= set(kinds) else kinds[0])):
        return Skipped(
            reason=f"{rtx.title} {reason} on sm75",
            remedy="use fp16 there, or full TensorRT on a machine with that GPU",
        )
    return None


def _capability(target: Target, gpus: tuple[Gpu, ...], gpu_reason: str) -> int:
    if target.device == "cpu":
        raise Unavailable("TensorRT runs on NVIDIA GPUs only", remedy="give it a target such as cuda or cuda:sm89")
    if target.capability is not None:
        return target.capability
    if not gpus:
        raise Unavailable(
            "target cuda means the GPU that is here, and none is",
            found=gpu_reason,
            remedy="name a compute capability to build for, such as cuda:sm89",
        )
    return gpus[0].capability


def _uses_full(asked: str, capability: int, gpus: tuple[Gpu, ...]) -> bool:
    here = any(gpu.capability == capability for gpu in gpus)
    return asked == "tensorrt" or (asked == "auto" and here and isinstance(find_library("tensorrt"), Library))


def _candidates(asked: str) -> tuple[str, ...]:
    return ("tensorrt", "tensorrt_rtx") if asked == "auto" else (asked,)


def _remedy(asked: str, capability: int, *, here: bool) -> str:
    rtx = find_library("tensorrt_rtx")
    if asked != "tensorrt" and (isinstance(rtx, str) or capability in rtx.capabilities):
        return INSTALL["tensorrt_rtx"]
    return INSTALL["tensorrt"] if here else f"on a machine with an sm{capability} GPU: {INSTALL['tensorrt']}"


def _list(capabilities: tuple[int, ...]) -> str:
    return ", ".join(f"sm{capability}" for capability in capabilities)
