"""From a file to an engine on this GPU. What does not fit is said before the library is asked, and says which differs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from deploycnn.backends.tensorrt import plan as plan_file
from deploycnn.backends.tensorrt.cuda import Device
from deploycnn.backends.tensorrt.libraries import TITLES, Library, find_library
from deploycnn.backends.tensorrt.messages import logger, vendor_error
from deploycnn.errors import BackendError, Unavailable
from deploycnn.types import Artifact

_AGAIN = "build the engine again"


def read_plan(artifact: Artifact, folder: Path) -> bytes:
    """The engine's bytes, as the artifact promised them. Raises BackendError where the file is missing or changed."""
    entry = artifact.files[0]
    try:
        data = (folder / entry.name).read_bytes()
    except OSError as error:
        raise BackendError(f"the engine {entry.name} cannot be read", found=str(error.strerror), remedy=_AGAIN) from error
    if len(data) != entry.size_bytes:
        raise BackendError(
            f"the engine {entry.name} is {'cut short' if len(data) < entry.size_bytes else 'too long'}",
            found=f"{len(data)} bytes of {entry.size_bytes}",
            remedy=_AGAIN,
        )
    if (digest := hashlib.sha256(data).hexdigest()) != entry.sha256:
        raise BackendError(f"the engine {entry.name} was changed", found=f"digest {digest[:12]}, not {entry.sha256[:12]}", remedy=_AGAIN)
    return data


def library_of(artifact: Artifact) -> Library:
    """The binding that wrote the engine, in the same version.

    Raises:
        Unavailable: that binding is not here.
        BackendError: it is, in another version.
    """
    name = str(artifact.details.get("library", ""))
    if name not in TITLES:
        raise BackendError("the artifact does not say which TensorRT built it", found=repr(name), remedy=_AGAIN)
    library = find_library(name)
    if isinstance(library, str):
        raise Unavailable(f"the engine needs {TITLES[name]}", found=library, remedy="install the library that built it")
    built = str(artifact.details.get("library_version", ""))
    if library.version != built:
        raise BackendError(
            f"the engine was built by {TITLES[name]} {built}", found=f"version {library.version} is here", remedy=f"{_AGAIN} with it"
        )
    return library


def check_plan(plan: bytes, library: Library) -> None:
    """Raises BackendError where the first bytes are not a plan of this library and version."""
    header = plan_file.read_header(plan)
    if not library.is_rtx:
        if header is not None:
            raise BackendError(
                f"the file is an engine of {TITLES['tensorrt_rtx']} {header.version}", found=library.title, remedy=f"{_AGAIN} with it"
            )
        return
    if header is None:
        raise BackendError(
            "the file is no engine of TensorRT for RTX",
            found=f"it begins with {plan[:4]!r}, an engine with {plan_file.MAGIC!r}",
            remedy=_AGAIN,
        )
    if header.size_bytes != len(plan):
        raise BackendError("the engine is damaged", found=f"{len(plan)} bytes, its header says {header.size_bytes}", remedy=_AGAIN)
    if header.version != library.version:
        raise BackendError(
            f"the engine was written by {TITLES['tensorrt_rtx']} {header.version}",
            found=f"version {library.version} is here",
            remedy=f"{_AGAIN} with it",
        )


def pick_device(artifact: Artifact, devices: tuple[Device, ...]) -> Device:
    """The first GPU of the capability that the engine was built for. Raises BackendError naming both."""
    wanted = artifact.details.get("capability")
    for device in devices:
        if device.capability == wanted:
            return device
    raise BackendError(
        f"the engine was built for sm{wanted}",
        found=", ".join(f"{device.name} (sm{device.capability})" for device in devices) or "no GPU",
        remedy=f"{_AGAIN} for the GPU that is here",
    )


def deserialise(plan: bytes, library: Library) -> tuple[Any, Any]:
    """Runtime and engine. Raises BackendError with what the library said."""
    log, messages = logger(library.name)
    messages.clear()
    runtime = library.module.Runtime(log)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise vendor_error("TensorRT does not load the engine", messages, f"{_AGAIN} on this machine")
    return runtime, engine
