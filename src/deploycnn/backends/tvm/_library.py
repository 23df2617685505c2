"""Apache TVM itself: importing it at a bearable price, and which CPU it compiles for.

Measured with TVM 0.27 on 2 cores: `import tvm` 4.4 s, of which 2 s is torch (imported for a faster DLPack only);
`tvm.s_tir.tensor_intrin`, which MetaSchedule imports for itself, another 30 to 45 s. The intrinsics serve int8 dot
products and tensor cores; float schedules on a CPU use none of them.
"""

from __future__ import annotations

import os
import shutil
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

from deploycnn.errors import Unavailable, Unsupported
from deploycnn.types import Value

# What code for a CPU may use and another CPU may lack. Compared before a library is loaded: the alternative is SIGILL.
_FEATURES = (
    *("sse4.2", "avx", "avx2", "fma", "f16c"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni"),
    *("neon", "fullfp16", "dotprod", "sve"),
)
_FALLBACKS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64")


class Cpu(Value):
    """A CPU as LLVM knows it.

    `family` is what schedules carry over within: CPUs of one vector width.
    """

    mcpu: str
    family: str
    features: tuple[str, ...]  # of _FEATURES, those that code for it may use


def skip_tensor_intrinsics() -> None:
    """Registers an empty module in their place, so that nothing spends half a minute importing them.

    For a process that schedules float code for CPUs and nothing else.
    """
    sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))


def library() -> Any:
    """The `tvm` module.

    Raises:
        Unavailable: it is not installed, or does not load.
    """
    try:
        import tvm
    except (ImportError, OSError) as error:
        raise Unavailable(
            "Apache TVM cannot be imported", found=str(error), remedy="pip install 'apache-tvm>=0.27,<0.28' 'apache-tvm-ffi<0.1.15'"
        ) from error
    return tvm


def linker() -> str | None:
    """The compiler that TVM links its libraries with, None where there is none."""
    asked = os.environ.get("CXX") or os.environ.get("CC")
    if asked:
        return shutil.which(asked)
    return next((path for name in ("g++", "gcc", "clang++", "clang", "c++", "cc") if (path := shutil.which(name))), None)


def use_threads(threads: int) -> None:
    """Says how many CPU threads this process runs kernels with; read by the runtime at each parallel loop."""
    os.environ["TVM_NUM_THREADS"] = str(threads)


@cache
def host_cpu() -> Cpu:
    """The CPU of this machine, by LLVM's word, cut down where a virtual machine hides vector instructions."""
    call = library().get_global_func
    present = {str(name) for name, here in call("tvm.codegen.llvm.GetHostCPUFeatures")().items() if here}
    for mcpu in (str(call("tvm.codegen.llvm.GetHostCPUName")()), *_FALLBACKS):
        if call("target.llvm_is_valid_cpu")(mcpu, str(call("tvm.codegen.llvm.GetDefaultTargetTriple")())):
            cpu = named_cpu(mcpu)
            if present.issuperset(cpu.features):
                return cpu
    return named_cpu("generic")


def named_cpu(mcpu: str) -> Cpu:
    """The CPU that LLVM calls `mcpu`: `znver3`, `sapphirerapids`, `x86-64-v3`, ...

    Raises:
        Unsupported: LLVM knows no such CPU.
    """
    tvm = library()
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, str(tvm.get_global_func("tvm.codegen.llvm.GetDefaultTargetTriple")())):
        raise Unsupported(f"TVM's LLVM knows no CPU '{mcpu}'", remedy="set backends.tvm.mcpu to one of LLVM's names, or leave it out")
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    known = {str(name) for name in tvm.get_global_func("target.llvm_get_cpu_features")(target)}
    features = tuple(name for name in _FEATURES if name in known)
    return Cpu(mcpu=mcpu, family=_family(features), features=features)


def _family(features: tuple[str, ...]) -> str:
    for family, needs in (("avx512", "avx512vl"), ("avx2", "avx2"), ("avx", "avx"), ("neon", "neon")):
        if needs in features:
            return family
    return "generic"


def target_of(cpu: Cpu, threads: int) -> Any:
    """The `tvm.target.Target` of a CPU with that many threads."""
    return library().target.Target({"kind": "llvm", "mcpu": cpu.mcpu, "num-cores": threads})


def missing_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `features` that this machine's CPU lacks."""
    present = library().get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return tuple(name for name in features if not present.get(name, False))


def package_folder() -> Path:
    """The folder that holds the `deploycnn` package: children import from it."""
    return Path(__file__).resolve().parents[3]
