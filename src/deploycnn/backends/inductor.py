"""TorchInductor, ahead of time: the exported program as one AOTInductor package (.pt2) of compiled C++.

Nothing is compiled when it runs: loading takes tens of milliseconds, the build half a minute.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from deploycnn.backends._contract import Backend, Options, Session, check_input
from deploycnn.environment import package_version
from deploycnn.errors import BackendError, EvidenceError, Unavailable, Unsupported
from deploycnn.types import (
    Artifact,
    Compiled,
    CompileRequest,
    Evidence,
    LayerEvidence,
    Progress,
    ProgressCallback,
    Readiness,
    Skipped,
    Target,
)

if TYPE_CHECKING:
    import numpy as np

# Calls to PyTorch's own kernels in the generated code; everything else there is Inductor's C++.
_CALL = re.compile(r"\b(aoti_torch_cpu_\w*(?:convolution|conv|addmm|mm|bmm|linear)\w*)\((\w+)")
_ALLOCATION = re.compile(r"cached_torch_dtype_(\w+),[^;]*?&(\w+)_handle\)")
_DTYPE = re.compile(r"cached_torch_dtype_(float\w+|bfloat16|double)")


class InductorOptions(Options):
    """How the batch size is treated."""

    dynamic: bool = True  # one package for every batch size; False: one for each, some percent faster, each half a minute to build


class InductorSession(Session):
    def __init__(self, artifact: Artifact, folder: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._artifact = artifact
        self._folder = folder
        self._packages = {_batch_of(entry.name): entry.name for entry in artifact.files}
        self._loaded: dict[str, Any] = {}
        self._x_NCHW: Any = None
        self._y: Any = None

    def bind(self, x_NCHW: np.ndarray) -> None:
        check_input(self._artifact, x_NCHW)
        name = self._packages.get(len(x_NCHW), self._packages.get(None, ""))
        if name not in self._loaded:
            self._loaded[name] = self._load(self._folder / name)
        self._name = name
        self._run = self._loaded[name].loader.boxed_run  # without the call's tree of arguments: 10 µs less
        self._x_NCHW = self._torch.from_numpy(x_NCHW.copy())

    def _load(self, path: Path) -> Any:
        try:
            return self._torch._inductor.aoti_load_package(str(path), run_single_threaded=True)
        except (RuntimeError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BackendError(
                f"{path.name} cannot be loaded by PyTorch {self._torch.__version__}",
                found=str(error).splitlines()[0][:300] if str(error) else type(error).__name__,
                remedy="build the artifact again with this PyTorch, on this machine",
            ) from error

    def run(self) -> None:
        self._y = self._run([self._x_NCHW])

    def fetch(self) -> np.ndarray:
        import numpy as np

        return np.array(self._y[0].numpy(), dtype=np.float32)

    def evidence(self) -> Evidence:
        return _evidence(self._folder / self._name)

    def close(self) -> None:
        self._x_NCHW = self._y = self._run = None
        self._loaded.clear()


class InductorBackend(Backend):
    """See the module."""

    name = "inductor"
    Options: ClassVar[type[Options]] = InductorOptions
    packages = ("torch",)
    options: InductorOptions

    def probe(self, target: Target) -> Readiness:
        version = package_version("torch") or ""
        if importlib.util.find_spec("torch") is None:
            return Readiness(state="unavailable", reason="PyTorch is not installed", remedy="pip install 'torch>=2.14,<2.15'")
        if target.device != "cpu":
            return Readiness(state="unavailable", reason="only its CPU code is offered here", remedy="use target cpu", version=version)
        if _compiler() is None:
            return Readiness(
                state="unavailable",
                reason="TorchInductor needs a C++ compiler, and none is on PATH",
                remedy="install g++ or clang++, or set CXX",
                version=version,
            )
        return Readiness(state="ready", version=version)

    def refuses(self, precision: str, target: Target) -> Skipped | None:
        if precision == "fp32":
            return None
        return Skipped(reason=f"the exported program is fp32; {precision} exists as ONNX only", remedy="use onnxruntime or openvino for it")

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        variant = request.variant
        if (refusal := self.refuses(variant.precision, request.target)) is not None:
            raise Unsupported(f"TorchInductor cannot compile {variant.precision}", found=refusal.reason, remedy=refusal.remedy)
        if variant.program_path is None:
            raise Unsupported(
                "TorchInductor needs the model as a PyTorch program",
                found="only an ONNX file",
                remedy="give the model as a module, not as ONNX",
            )
        if _compiler() is None:
            raise Unavailable("TorchInductor cannot compile", found="no C++ compiler on PATH", remedy="install g++ or clang++, or set CXX")
        dynamic = self.options.dynamic and variant.fixed_batch is None
        sizes = request.batches if variant.fixed_batch is None else (variant.fixed_batch,)
        batches: tuple[int | None, ...] = (None,) if dynamic else sizes
        files = []
        for done, batch in enumerate(batches):
            progress(Progress(done=done, total=len(batches), unit="packages", note=f"batch {batch or 'any'}"))
            files.append(_file_of(batch))
            _package(request, variant.program_path, batch, request.folder / files[-1])
        return Compiled(
            files=tuple(files),
            evidence=_evidence(request.folder / files[-1]),
            batches=None if dynamic else sizes,
            details={"compiler": _compiler(), "dynamic": dynamic},
        )

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        if importlib.util.find_spec("torch") is None:
            raise Unavailable("the package cannot be loaded", found="PyTorch is not installed", remedy="pip install 'torch>=2.14,<2.15'")
        return InductorSession(artifact, folder, threads)


def _compiler() -> str | None:
    asked = os.environ.get("CXX")
    return shutil.which(asked) if asked else shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")


def _file_of(batch: int | None) -> str:
    return f"model_b{batch or 'any'}.pt2"


def _batch_of(name: str) -> int | None:
    text = name.removeprefix("model_b").removesuffix(".pt2")
    return int(text) if text.isdecimal() else None


def _package(request: CompileRequest, program_path: Path, batch: int | None, path: Path) -> None:
    """Compiles the program for one batch size (None: any) into the package at `path`."""
    cache = request.cache_folder / "inductor"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)  # its default is a folder in /tmp that outlives everything
    import torch
    import torch._inductor

    torch.set_num_threads(request.threads)  # the number is written into the generated loops
    try:
        program = torch.export.load(program_path)
        if batch is not None:
            example = torch.zeros((batch, *request.variant.input.shape_CHW), dtype=getattr(torch, request.variant.input.dtype))
            program = torch.export.export(program.module(), (example,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except (RuntimeError, OSError, ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise BackendError(
            "TorchInductor cannot compile this program",
            found=f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}",
            remedy="see whether the C++ compiler works; use another backend for this model otherwise",
        ) from error


def _evidence(path: Path) -> Evidence:
    """Calls of convolutions and matrix products in the generated code of a package, and the type of what they work on."""
    with zipfile.ZipFile(path) as package:
        sources = [package.read(name).decode() for name in package.namelist() if name.endswith(".wrapper.cpp")]
    if not sources:
        raise EvidenceError(
            f"{path.name} is to show what it computes in", found="no generated code in it", remedy="build the artifact again"
        )
    code = "\n".join(sources)
    kinds = {buffer: kind for kind, buffer in _ALLOCATION.findall(code)}
    floats = set(_DTYPE.findall(code))
    only = floats.pop() if len(floats) == 1 else "unknown"
    layers = tuple(
        LayerEvidence(name=f"{call}#{number}", op="Conv" if "conv" in call else "MatMul", precision=kinds.get(operand, only))
        for number, (call, operand) in enumerate(_CALL.findall(code))
    )
    return Evidence(source="generated code", provider="CPU", layers=layers)
