"""Facts of the machine: what must be known to compare two latencies, or to understand one.

Nothing here imports a tensor library or starts a process. Everything that cannot be read is None or "" and no error;
where a GPU is missing, the reason is kept.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from functools import cache

from deploycnn.environment.facts import Cpu, Environment, Gpu, GpuFacts, GpuState, Memory, System
from deploycnn.environment.gpus import read_gpus
from deploycnn.environment.machine import read_cpu, read_memory, read_system

__all__ = [
    "PACKAGES",
    "Cpu",
    "Environment",
    "Gpu",
    "GpuFacts",
    "GpuState",
    "Memory",
    "System",
    "environment",
    "has_vnni",
    "package_version",
    "usable_cores",
]

# Distributions whose version can change a number in a record.
PACKAGES = (
    "torch",
    "torchvision",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "apache-tvm",
    "apache-tvm-ffi",
    "xgboost-cpu",
    "tensorrt",
    "tensorrt-rtx-cu13",
    "openvino",
    "torchao",
    "triton",
    "numpy",
    "scipy",
    "ml-dtypes",
)


@cache
def environment() -> Environment:
    """This machine, read once per process."""
    return Environment(
        cpu=read_cpu(),
        memory=read_memory(),
        **read_gpus(),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        os=read_system(),
        python=platform.python_version(),
        packages={name: version for name in PACKAGES if (version := package_version(name))},
    )


@cache
def package_version(name: str) -> str | None:
    """Version of an installed distribution without importing it, None where it is not installed."""
    try:
        installed = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    # Not importlib.metadata.version: it parses the whole description as an e-mail, 20 times as long.
    text = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    found = re.search(r"^Version: *(\S+)", text, re.MULTILINE)
    return found[1] if found else None


@cache
def has_vnni() -> bool:
    """Whether 8-bit products are summed in 32 bits here, so that int8 kernels need no reduced range.

    On x86 that takes AVX-VNNI or AVX512-VNNI: older kernels add pairs in saturating 16 bits (vpmaddubsw). ARM's
    kernels widen first and never saturate.
    """
    sets = read_cpu().instruction_sets
    return "avx_vnni" in sets or "avx512_vnni" in sets or platform.machine().lower() in ("arm64", "aarch64")


@cache
def usable_cores() -> int:
    """Whole cores that this process may use: affinity and cgroup quota, at least 1."""
    return read_cpu().usable_cores
