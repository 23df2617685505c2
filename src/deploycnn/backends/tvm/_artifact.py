"""The artifact: a manifest and one shared library per batch size. Loading needs neither ONNX nor a compiler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from deploycnn.backends._contract import Session
from deploycnn.backends.tvm import _library
from deploycnn.backends.tvm._graph import TVM_ERRORS, translated
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.types import Artifact, Evidence, Value

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "manifest.json"


class Manifest(Value):
    """What must be known to load the libraries, beside what every artifact says."""

    tvm: str  # version that built them
    device: str  # cpu or cuda
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


class TVMSession(Session):
    """One batch size at a time; libraries are loaded when they are first needed."""

    def __init__(self, artifact: Artifact, folder: Path, threads: int) -> None:
        self._tvm = _library.library()
        self._manifest = read_manifest(folder / artifact.files[0].name)
        self._folder = folder
        self._check()
        _library.use_threads(threads)
        self._device = self._tvm.cuda(0) if self._manifest.device == "cuda" else self._tvm.cpu(0)
        self._functions: dict[str, Any] = {}
        self._function: Any = None
        self._x: Any = None
        self._y: Any = None

    def _check(self) -> None:
        lacking = _library.missing_features(self._manifest.features)
        if lacking:
            raise BackendError(
                f"this artifact was compiled for {self._manifest.mcpu}",
                found=f"this CPU lacks {', '.join(lacking)}",
                remedy="build it again here, or with backends.tvm.mcpu set to what both CPUs have, such as x86-64-v3",
            )
        if self._manifest.device == "cuda" and not self._tvm.runtime.enabled("cuda"):
            raise Unavailable(
                "a CUDA artifact cannot run", found="this TVM was built without its CUDA runtime", remedy="install a TVM with CUDA"
            )

    def bind(self, x_NCHW: np.ndarray) -> None:
        self._function = self._loaded(x_NCHW.shape[0])
        with translated("TVM cannot take this input", "feed the dtype and shape of the artifact's input"):
            self._x = self._tvm.runtime.tensor(x_NCHW, self._device)
        self._y = None

    def _loaded(self, batch: int) -> Any:
        libraries = self._manifest.libraries
        key = str(batch) if str(batch) in libraries else "any"
        if key not in libraries:
            raise Unsupported(
                f"this artifact cannot run batch {batch}",
                found=f"it was compiled for batch {', '.join(libraries)}",
                remedy="add the batch size to measure.batches and build again",
            )
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
