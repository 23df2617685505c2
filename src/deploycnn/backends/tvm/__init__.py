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
from deploycnn.backends.tvm import _artifact, _graph, _library
from deploycnn.environment import package_version
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, Progress, ProgressCallback, Readiness, Target


class TVMOptions(Options):
    """How much to tune, and for which CPU."""

    tune: bool = True
    trials: int = Field(1000, ge=1)  # measured candidates per batch size, at most; earlier runs' count
    minutes: float = Field(5.0, gt=0)  # of tuning for all batch sizes of an artifact, at most; earlier runs' count
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
        batches: tuple[int | None, ...] = (None,) if self.options.dynamic else request.batches
        libraries: dict[str, str] = {}
        evidence: Evidence | None = None
        for done, batch in enumerate(batches):
            progress(Progress(done=done, total=len(batches), unit="libraries", note=f"batch {batch or 'any'}"))
            module = _graph.lowered(_graph.import_graph(request.variant, batch), target)
            evidence = _graph.evidence_of(module, str(target), simulated)
            name = f"model_b{batch or 'any'}.so"
            _artifact.write_library(_built(module, target), request.folder / name)
            libraries[str(batch or "any")] = name
        assert evidence is not None, "a request has batch sizes"
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
            batches=None if self.options.dynamic else request.batches,
            notes=_notes(self.options, simulated),
            details={"mcpu": cpu.mcpu},
        )

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        return _artifact.TVMSession(artifact, folder, threads)


def _built(module: Any, target: Any) -> Any:
    tvm = _library.library()
    with _graph.translated("TVM cannot build this graph", "use another backend for this model"):
        return tvm.compile(module, target=target)


def _notes(options: TVMOptions, simulated: bool) -> tuple[str, ...]:
    notes = []
    if simulated:
        notes.append("simulated int8: TVM computes it in floating point, so it is never faster than fp32")
    if options.dynamic:
        notes.append("dynamic batch: symbolic shapes cannot be tuned")
    return tuple(notes)
