"""Apache TVM: Relax import, MetaSchedule tuning, one shared library per batch size.

Untuned TVM code is 4 to 35 times slower than ONNX Runtime on a CPU, so tuning is on by default and has a stated
budget. int8 variants are computed in floating point and say so; nothing is tuned for them.
"""

from __future__ import annotations

import importlib.util
import platform
import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from deploycnn.backends._contract import Backend, Options, Session
from deploycnn.backends.tvm import _artifact, _compiling, _cuda, _library
from deploycnn.backends.tvm._library import Cpu
from deploycnn.backends.tvm._tuning import Budget
from deploycnn.environment import environment, package_version
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, Progress, ProgressCallback, Readiness, Target

_REMOTE = r"^([^:/\s]+):(\d+)/(\S+)$"


class TVMOptions(Options):
    """How much to tune, and for which CPU."""

    tune: bool = True
    trials: int = Field(1000, ge=1)  # measured candidates per batch size, at most; earlier runs' count
    minutes: float = Field(5.0, gt=0)  # of tuning for all batch sizes of an artifact, at most; earlier runs' count
    seed: int = 0
    mcpu: str | None = None  # LLVM's name of the CPU; None: this machine's
    dynamic: bool = False  # one library for every batch size: symbolic shapes cannot be tuned
    remote: str | None = Field(None, pattern=_REMOTE)  # HOST:PORT/KEY of a TVM RPC tracker: candidates are timed on its device


class TVMBackend(Backend):
    """See the module."""

    name = "tvm"
    Options: ClassVar[type[Options]] = TVMOptions
    packages = ("apache-tvm", "apache-tvm-ffi")
    options: TVMOptions

    def probe(self, target: Target) -> Readiness:
        version = package_version("apache-tvm") or ""
        if importlib.util.find_spec("tvm") is None:
            return Readiness(state="unavailable", reason="Apache TVM is not installed", remedy="pip install 'apache-tvm>=0.27,<0.28'")
        lacking = _lacking(target)
        if lacking is not None:
            return lacking.model_copy(update={"version": version})
        if target.device == "cuda" and target.capability not in {None, *(gpu.capability for gpu in environment().gpus)}:
            reason = f"its kernels are compiled here and wait for a GPU of {target}"
            remedy = f"take the run to a machine with such a GPU and resume it there; {environment().gpu_reason}".removesuffix("; ")
            return Readiness(state="build-only", reason=reason, remedy=remedy, version=version)
        return Readiness(state="ready", version=version)

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        cpu = _library.named_cpu(self.options.mcpu) if self.options.mcpu else _library.host_cpu()
        simulated = request.variant.precision.startswith("int8")
        sizes = request.batches if request.variant.fixed_batch is None else (request.variant.fixed_batch,)
        if request.target.device == "cuda":
            return self._for_cuda(request, cpu, sizes, simulated, progress)
        target = _library.target_of(cpu, request.threads)
        dynamic = self.options.dynamic and request.variant.fixed_batch is None
        emulated = not simulated and not _computes(cpu, request.variant.precision)
        tune = self.options.tune and not simulated and not dynamic and not emulated
        details: dict[str, Any] = {"mcpu": cpu.mcpu, "tuned": tune}
        if tune:
            evidence = self._tuned(request, cpu, target, sizes, details, progress)
        else:
            evidence = self._plain(request, target, (None,) if dynamic else sizes, progress)
        libraries = {str(size): _file_of(size) for size in sizes} if not dynamic else {"any": _file_of(None)}
        manifest = _artifact.Manifest(
            tvm=package_version("apache-tvm") or "",
            device="cpu",
            mcpu=cpu.mcpu,
            features=cpu.features,
            threads=request.threads,
            libraries=libraries,
            evidence=evidence,
        )
        _artifact.write_manifest(manifest, request.folder)
        return Compiled(
            files=(_artifact.MANIFEST, *libraries.values()),
            evidence=evidence,
            batches=None if dynamic else sizes,
            notes=_notes(tune, simulated, dynamic, emulated),
            details=details,
        )

    def _for_cuda(self, request: CompileRequest, cpu: Cpu, sizes: tuple[int, ...], simulated: bool, progress: ProgressCallback) -> Compiled:
        capability = request.target.capability or environment().gpus[0].capability
        kernels: dict[str, str] = {}
        libraries: dict[str, str] = {}
        details: dict[str, Any] = {"mcpu": cpu.mcpu, "tuned": False, "compiler": _cuda.compiler_version()}
        for done, size in enumerate(sizes):
            progress(Progress(done=done, total=len(sizes), unit="libraries", note=f"batch {size} for sm_{capability}"))
            libraries[str(size)] = _file_of(size)
            built = _compiling.cuda_library(request, size, _cuda.target_of(capability, cpu), capability, request.folder / _file_of(size))
            kernels[built.fingerprint] = built.cubin.name
            details[f"batch {size}"] = {"kernels": list(built.kernels)}
        manifest = _artifact.Manifest(
            tvm=package_version("apache-tvm") or "",
            device="cuda",
            capability=capability,
            kernels=kernels,
            mcpu=cpu.mcpu,
            features=cpu.features,
            threads=request.threads,
            libraries=libraries,
            evidence=built.evidence,
        )
        _artifact.write_manifest(manifest, request.folder)
        files = (_artifact.MANIFEST, *libraries.values(), *kernels.values())
        notes = ("TVM's default schedules for GPUs, not tuned: no tensor cores", *(_notes(False, True) if simulated else ()))
        return Compiled(files=files, evidence=built.evidence, batches=sizes, notes=notes, details=details)

    def _plain(self, request: CompileRequest, target: Any, sizes: tuple[int | None, ...], progress: ProgressCallback) -> Evidence:
        for done, size in enumerate(sizes):
            progress(Progress(done=done, total=len(sizes), unit="libraries", note=f"batch {size or 'any'}"))
            evidence = _compiling.plain_library(request, size, target, request.folder / _file_of(size))
        return evidence

    def _tuned(
        self, request: CompileRequest, cpu: Cpu, target: Any, sizes: tuple[int, ...], details: dict[str, Any], progress: ProgressCallback
    ) -> Evidence:
        left_s = 60 * self.options.minutes
        opened = _compiling.workshop(request, cpu, target, self.options.seed, _remote(self.options.remote), progress)
        with opened as shop:
            for done, size in enumerate(sizes):
                budget = Budget(trials=self.options.trials, seconds=left_s / (len(sizes) - done))
                path = request.folder / _file_of(size)
                evidence, facts = _compiling.tuned_library(request, size, shop, budget, path, progress)
                details[f"batch {size}"] = facts
                left_s = max(0.0, left_s - facts["tuning_s"])
        return evidence

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        session = _artifact.CudaSession if artifact.target.device == "cuda" else _artifact.CpuSession
        return session(artifact, folder, threads)


def _remote(text: str | None) -> _compiling.Remote | None:
    found = re.match(_REMOTE, text) if text else None
    return (found[1], int(found[2]), found[3]) if found else None


def _lacking(target: Target) -> Readiness | None:
    """What keeps this machine from building for a target; None where nothing does."""
    if platform.system() == "Windows":
        return Readiness(state="unavailable", reason="TVM's code is not linked on Windows here", remedy="use Linux")
    if _library.linker() is None:
        reason = "TVM needs a C++ compiler to link its code, and none is on PATH"
        return Readiness(state="unavailable", reason=reason, remedy="install g++ or clang, or set CXX")
    if target.device == "cpu":
        return None
    if not _cuda.compiler():
        reason = "TVM writes CUDA kernels as source, and there is neither NVRTC nor nvcc to compile them"
        return Readiness(state="unavailable", reason=reason, remedy="pip install cuda-bindings nvidia-cuda-nvrtc")
    if target.capability is None and not environment().gpus:
        reason = f"which GPU to compile for is not said, and there is none here: {environment().gpu_reason}"
        return Readiness(state="unavailable", reason=reason, remedy="name a compute capability, such as cuda:sm89")
    if not _cuda.has_runtime():
        return Readiness(
            state="build-only", reason="this TVM was built without its CUDA runtime", remedy="install TVM's wheel for Linux x86-64"
        )
    return None


def _file_of(batch: int | None) -> str:
    return f"model_b{batch or 'any'}.so"


def _computes(cpu: Cpu, precision: str) -> bool:
    """Whether a CPU adds and multiplies in a float type; bfloat16 has dot products there, which TVM does not use."""
    return precision == "fp32" or (precision == "fp16" and bool({"avx512fp16", "fullfp16"} & set(cpu.features)))


def _notes(tuned: bool, simulated: bool, dynamic: bool = False, emulated: bool = False) -> tuple[str, ...]:
    if simulated:
        return ("simulated int8: TVM computes it in floating point, so it is never faster than fp32; not tuned",)
    if dynamic:
        return ("dynamic batch: symbolic shapes cannot be tuned",)
    if emulated:
        return ("TVM converts each operation to float32 and back on this CPU: slower than fp32, and not tuned",)
    return () if tuned else ("not tuned: TVM's default code, several times slower than what tuning finds",)
