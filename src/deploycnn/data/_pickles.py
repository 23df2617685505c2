"""Reading a pickle of numbers and text without running what else a pickle may ask for."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

# numpy's names for rebuilding an array in every version that wrote such files, and Python 3's way of writing bytes for 2.
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}

# What unpickling raises on bytes that are no pickle, or one that was cut short or changed.
_BROKEN = (
    EOFError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return super().find_class(module, name)


def load_plain_pickle(data: bytes) -> Any:
    """Numbers, text, lists, dictionaries and numpy arrays of a pickle of any protocol; strings of Python 2 as Latin-1.

    Raises:
        pickle.UnpicklingError: not a pickle, a broken one, or one that asks for anything else.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="latin1").load()
    except _BROKEN as error:
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
