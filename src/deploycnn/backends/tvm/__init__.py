"""Apache TVM: Relax import, MetaSchedule tuning, one shared library per batch size.

Untuned TVM code is 4 to 35 times slower than ONNX Runtime on a CPU, so tuning is on by default and has a stated
budget. int8 variants are computed in floating point and say so; nothing is tuned for them.
"""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from deploycnn.backends._contract import Backend, Options, Session
from deploycnn.backends.tvm import _artifact, _compiling, _library
from deploycnn.backends.tvm._library import Cpu
from deploycnn.backends.tvm._tuning import Budget
from deploycnn.environment import package_version
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, Progress, ProgressCallback, Readiness, Target


class TVMOptions(Options):
    """How much to tune, and for which CPU."""

    tune: bool = True
    trials: int = Field(1000, ge=1)  # measured candidates per batch size, at most; earlier runs' count
    minutes: float = Field(5.0, gt=0)  # of tuning per batch size, at most; earlier runs' count
    seed: int = 0
    mcpu: str | None = None  # LLVM's name of the CPU; None: this machine's
    dynamic: bool = False  # one library for every batch size: symbolic shapes cannot be tuned


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
        if platform.system() == "Windows":
            return Readiness(
                state="unavailable", reason="linking TVM's code is not supported on Windows", remedy="use Linux", version=version
            )
        if _library.linker() is None:
            return Readiness(
                state="unavailable",
                reason="TVM needs a C++ compiler to link its code, and none is on PATH",
                remedy="install g++ or clang, or set CXX",
                version=version,
            )
        return Readiness(state="ready", version=version)

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        cpu = _library.named_cpu(self.options.mcpu) if self.options.mcpu else _library.host_cpu()
        target = _library.target_of(cpu, request.threads)
        simulated = request.variant.precision.startswith("int8")
        sizes = request.batches if request.variant.fixed_batch is None else (request.variant.fixed_batch,)
        dynamic = self.options.dynamic and request.variant.fixed_batch is None
        tune = self.options.tune and not simulated and not dynamic
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
            notes=_notes(tune, simulated, dynamic),
            details=details,
        )

    def _plain(self, request: CompileRequest, target: Any, sizes: tuple[int | None, ...], progress: ProgressCallback) -> Evidence:
        for done, size in enumerate(sizes):
            progress(Progress(done=done, total=len(sizes), unit="libraries", note=f"batch {size or 'any'}"))
            evidence = _compiling.plain_library(request, size, target, request.folder / _file_of(size))
        return evidence

    def _tuned(
        self, request: CompileRequest, cpu: Cpu, target: Any, sizes: tuple[int, ...], details: dict[str, Any], progress: ProgressCallback
    ) -> Evidence:
        budget = Budget(trials=self.options.trials, seconds=60 * self.options.minutes)
        with _compiling.workshop(request, cpu, target, self.options.seed) as shop:
            for size in sizes:
                path = request.folder / _file_of(size)
                evidence, details[f"batch {size}"] = _compiling.tuned_library(request, size, shop, budget, path, progress)
        return evidence

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        return _artifact.TVMSession(artifact, folder, threads)


def _file_of(batch: int | None) -> str:
    return f"model_b{batch or 'any'}.so"


def _notes(tuned: bool, simulated: bool, dynamic: bool) -> tuple[str, ...]:
    if simulated:
        return ("simulated int8: TVM computes it in floating point, so it is never faster than fp32; not tuned",)
    if dynamic:
        return ("dynamic batch: symbolic shapes cannot be tuned",)
    return () if tuned else ("not tuned: TVM's default code, several times slower than what tuning finds",)
