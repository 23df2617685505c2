"""The artifact: a manifest and one shared library per batch size. Loading needs neither ONNX nor a compiler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from deploycnn.backends._contract import Session, check_input
from deploycnn.backends.tvm import _cuda, _library
from deploycnn.backends.tvm._graph import TVM_ERRORS, translated
from deploycnn.errors import BackendError, Unavailable
from deploycnn.types import Artifact, Evidence, Value

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "manifest.json"


class Manifest(Value):
    """What must be known to load the libraries, beside what every artifact says."""

    tvm: str  # version that built them
    device: Literal["cpu", "cuda"]
    capability: int | None = None  # CUDA compute capability that the kernels are compiled for
    kernels: Mapping[str, str] = Field(default_factory=dict)  # fingerprint of a source -> file of its compiled kernels
    mcpu: str
    features: tuple[str, ...]  # CPU instructions that the code may use
    threads: int  # that the schedules were found for
    libraries: Mapping[str, str]  # batch size ("any" where it is symbolic) -> file
    evidence: Evidence


def write_library(executable: Any, path: Path) -> None:
    """Links a built Relax executable into a shared library.

    Raises:
        Unavailable: there is no compiler to link with.
        BackendError: linking failed.
    """
    if _library.linker() is None:
        raise Unavailable("TVM's code cannot be linked", found="no C++ compiler on PATH", remedy="install g++ or clang, or set CXX")
    with translated("TVM's code cannot be linked", "check that the C++ compiler works"):
        executable.export_library(str(path))


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """`manifest.json` in the artifact's folder."""
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


def read_manifest(path: Path) -> Manifest:
    """Raises BackendError where the file is missing, damaged or of another form."""
    try:
        return Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise BackendError(
            f"{path} is no manifest of a TVM artifact", found=" ".join(str(error).split())[:300], remedy="build it again"
        ) from error


class CpuSession(Session):
    """One batch size at a time; libraries are loaded when they are first needed."""

    def __init__(self, artifact: Artifact, folder: Path, threads: int) -> None:
        self._tvm = _library.library()
        self._artifact = artifact
        self._manifest = read_manifest(folder / artifact.files[0].name)
        self._folder = folder
        lacking = _library.missing_features(self._manifest.features)
        if lacking:
            raise BackendError(
                f"this artifact was compiled for {self._manifest.mcpu}",
                found=f"this CPU lacks {', '.join(lacking)}",
                remedy="build it again here, or with backends.tvm.mcpu set to what both CPUs have, such as x86-64-v3",
            )
        _library.use_threads(threads)
        self._device = self._open_device()
        self._functions: dict[str, Any] = {}
        self._function: Any = None
        self._x: Any = None
        self._y: Any = None

    def _open_device(self) -> Any:
        return self._tvm.cpu(0)

    def bind(self, x_NCHW: np.ndarray) -> None:
        check_input(self._artifact, x_NCHW)
        self._function = self._loaded(len(x_NCHW))
        self._x = self._tvm.runtime.tensor(x_NCHW, self._device)
        self._y = None

    def _loaded(self, batch: int) -> Any:
        libraries = self._manifest.libraries
        key = str(batch) if str(batch) in libraries else "any"
        if key not in self._functions:
            path = self._folder / libraries[key]
            try:
                executable = self._tvm.runtime.load_module(str(path))
                self._functions[key] = self._tvm.relax.VirtualMachine(executable, self._device)["main"]
            except TVM_ERRORS as error:
                raise BackendError(f"{path.name} cannot be loaded", found=str(error)[-300:], remedy="build the artifact again") from error
        return self._functions[key]

    def run(self) -> None:
        self._y = self._function(self._x)

    def fetch(self) -> np.ndarray:
        import numpy as np

        return np.from_dlpack(self._y).astype(np.float32, copy=True)

    def evidence(self) -> Evidence:
        return self._manifest.evidence

    def close(self) -> None:
        self._function = self._x = self._y = None
        self._functions.clear()


class CudaSession(CpuSession):
    """On the first GPU. A run copies the pixels there, `synchronise` copies the logits back."""

    def _open_device(self) -> Any:
        device = self._tvm.cuda(0)
        if not self._tvm.runtime.enabled("cuda") or not device.exist:
            raise Unavailable(
                "a CUDA artifact of TVM is to run",
                found="TVM's CUDA runtime is not loaded, or sees no GPU",
                remedy="use a machine with an NVIDIA GPU and a driver for CUDA 13; check nvidia-smi",
            )
        capability = int(str(device.compute_version).replace(".", ""))
        if capability != self._manifest.capability:
            raise BackendError(
                f"this artifact was compiled for sm_{self._manifest.capability}",
                found=f"the GPU here is sm_{capability}",
                remedy=f"build it for the target cuda:sm{capability}",
            )
        cubins = {source: (self._folder / name).read_bytes() for source, name in self._manifest.kernels.items()}
        _cuda.hand_over(cubins, capability)
        return device

    def bind(self, x_NCHW: np.ndarray) -> None:
        super().bind(x_NCHW)
        self._x_host = self._tvm.runtime.tensor(x_NCHW)

    def run(self) -> None:
        self._x.copyfrom(self._x_host)
        self._y = self._function(self._x)

    def synchronise(self) -> None:
        self._logits_NK = self._y.numpy()

    def fetch(self) -> np.ndarray:
        import numpy as np

        return np.array(self._logits_NK, dtype=np.float32)
