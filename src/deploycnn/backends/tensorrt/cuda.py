"""The few calls of the CUDA runtime that a session needs, by NVIDIA's cuda-bindings, with errors translated.

cuda-bindings comes with PyTorch's CUDA builds; its runtime is linked statically, so that only the driver is needed.
Every call returns a tuple: error code first, then results.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploycnn.errors import BackendError, Unavailable

_MODULES = ("cuda.bindings.runtime", "cuda.cudart")  # the second is its name before 12.6


@dataclass(frozen=True, kw_only=True)
class Device:
    index: int
    name: str
    capability: int  # times ten


class Cuda:
    """The CUDA runtime of this process.

    Args:
        api: the module `cuda.bindings.runtime`, or one with its functions.
    """

    def __init__(self, api: Any) -> None:
        self.api = api

    @classmethod
    def find(cls) -> Cuda:
        """Raises Unavailable where the package is missing."""
        reasons = []
        for name in _MODULES:
            try:
                return cls(importlib.import_module(name))
            except ImportError as error:
                reasons.append(str(error))
        raise Unavailable("the CUDA runtime cannot be called from Python", found=reasons[0], remedy="pip install cuda-bindings")

    def call(self, name: str, *arguments: Any) -> Any:
        """One call by its CUDA name; its result, None where it has none.

        Raises:
            Unavailable: no driver or device.
            BackendError: any other CUDA error.
        """
        error, *results = getattr(self.api, name)(*arguments)
        self.check(name, error)
        return results[0] if results else None

    def check(self, name: str, error: Any) -> None:
        """Raises as `call` does where `error`, what the call of that name gave back, is not success."""
        if int(error):
            raise self._translated(name, error)

    def devices(self) -> tuple[Device, ...]:
        """The GPUs that this process may use. Raises Unavailable where there are none."""
        attribute = self.api.cudaDeviceAttr
        found = []
        for index in range(self.call("cudaGetDeviceCount")):
            major = self.call("cudaDeviceGetAttribute", attribute.cudaDevAttrComputeCapabilityMajor, index)
            minor = self.call("cudaDeviceGetAttribute", attribute.cudaDevAttrComputeCapabilityMinor, index)
            name = self.call("cudaGetDeviceProperties", index).name
            text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            found.append(Device(index=index, name=text.rstrip("\0"), capability=10 * major + minor))
        return tuple(found)

    def pinned(self, size_bytes: int) -> tuple[int, np.ndarray]:
        """Page-locked host memory: its address, and the bytes as an array of uint8. Freed by `cudaFreeHost`."""
        address = int(self.call("cudaHostAlloc", size_bytes, self.api.cudaHostAllocDefault))
        return address, np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))

    def _translated(self, name: str, error: Any) -> BackendError:
        _, code = self.api.cudaGetErrorName(error)
        _, text = self.api.cudaGetErrorString(error)
        code, text = (value.decode() if isinstance(value, bytes) else str(value) for value in (code, text))
        found = f"{code}: {text}"
        if code in ("cudaErrorInsufficientDriver", "cudaErrorNoDevice", "cudaErrorStubLibrary"):
            return Unavailable("no GPU answers", found=found, remedy="run it on a machine with an NVIDIA GPU and a driver new enough")
        if code == "cudaErrorMemoryAllocation":
            return BackendError(f"the GPU's memory is too small ({name})", found=found, remedy="lower max_batch or streams")
        return BackendError(f"{name} failed on the GPU", found=found, remedy="look at the driver's log (dmesg); try again")
