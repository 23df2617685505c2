"""What TensorRT says while it works, collected, and turned into errors that a reader can act on."""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from typing import Any

from deploycnn.backends.tensorrt.libraries import Library, find_library
from deploycnn.errors import BackendError, Unavailable, Unsupported

_KEPT = 2000  # newest messages; a verbose build says thousands

# Said on every error where no driver is: it hides the message that matters.
_NOISE = re.compile(r"^\[checkMacros\.cpp|catchCudaError|^-+$")

# First match decides. Patterns are of messages seen (RTX 1.7.1) or found in both libraries' texts (version, device).
_MEANINGS: tuple[tuple[re.Pattern[str], type[BackendError], str, str], ...] = (
    (
        re.compile(r"FP32 GEMM is not supported"),
        Unsupported,
        "sm75 cannot hold an fp32 matrix product in this library",
        "use fp16 or int8+fp16 for that target, or full TensorRT",
    ),
    (
        re.compile(r"HW-specific datatypes: b16"),
        Unsupported,
        "the target has no bf16 arithmetic",
        "use fp16 there, or bf16 from sm80 on",
    ),
    (
        re.compile(r"header\.magicTag"),
        BackendError,
        "the file is no engine",
        "build it again",
    ),
    (
        re.compile(
            r"not compatible with this version of TensorRT|incompatible serialization|same version of TensorRT|Version tag does not"
        ),
        BackendError,
        "the engine was written by another version of TensorRT",
        "build it again with the version that is here",
    ),
    (
        re.compile(r"incompatible device|cannot run on this GPU|not compatible with this hardware-compatible engine"),
        BackendError,
        "the engine was built for another GPU",
        "build it again for the GPU that is here",
    ),
    (
        re.compile(r"Serialization assertion|bufferSize >= minBufferSize|blob size mismatches|No engine found in plan|empty memory buffer"),
        BackendError,
        "the engine's file is damaged",
        "build it again; the damaged file can be deleted",
    ),
    (
        re.compile(r"[Oo]ut of memory|OutOfMemory|insufficient memory|cudaError 2[:)]"),
        BackendError,
        "the GPU's memory is too small",
        "set backends.tensorrt.workspace_mb or max_batch lower, or free memory on the GPU",
    ),
    (
        re.compile(r"cudaError (35|100|999)"),
        Unavailable,
        "no NVIDIA driver or GPU answers",
        "run it on a machine with a GPU whose driver fits this CUDA version",
    ),
)


class Messages:
    """The newest messages of one library in this process, as (severity, text)."""

    def __init__(self) -> None:
        self._kept: deque[tuple[str, str]] = deque(maxlen=_KEPT)

    def add(self, severity: str, text: str) -> None:
        self._kept.append((severity, text))

    def clear(self) -> None:
        self._kept.clear()

    def errors(self) -> tuple[str, ...]:
        """Texts of errors, without the noise that a missing driver adds to each."""
        return tuple(text for severity, text in self._kept if "ERROR" in severity and not _NOISE.search(text))

    def warnings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text.strip() for severity, text in self._kept if severity == "WARNING"))


@cache
def logger(name: str) -> tuple[Any, Messages]:
    """The process's only logger of that library, and what it collects. TensorRT keeps the first one for good."""
    library = find_library(name)
    if not isinstance(library, Library):
        raise Unavailable(f"{name} cannot be used", found=library, remedy="install it again")
    base: Any = library.module.ILogger
    messages = Messages()

    class CollectingLogger(base):  # type: ignore[misc]  # its base is known only once the library is here
        def __init__(self) -> None:
            base.__init__(self)  # pybind11 wants the base called by name

        def log(self, severity: Any, text: str) -> None:
            messages.add(severity.name, text)

    return CollectingLogger(), messages


def parser_error(parser: Any, source: str) -> BackendError:
    """What the ONNX parser refused: node, operator and reason of its first error.

    Args:
        parser: an OnnxParser whose `parse` returned False.
        source: name of the ONNX file for the message.
    """
    count = int(parser.num_errors)
    if count == 0:
        return BackendError(f"TensorRT cannot read {source}, and says not why", remedy="check the file with onnx.checker")
    first = parser.get_error(0)
    reason = _first_line(str(first.desc()))
    node, operator = str(first.node_name()), str(first.node_operator())
    where = f"node {node or '(unnamed)'} ({operator})" if operator or node else "the file as a whole"
    more = f", and {count - 1} more errors" if count > 1 else ""
    return Unsupported(f"TensorRT does not take {where} of {source}", found=f"{reason}{more}", remedy=_parser_remedy(reason, operator))


def vendor_error(asked: str, messages: Messages, remedy: str) -> BackendError:
    """The error that the collected messages amount to.

    Args:
        asked: what failed, where no message is understood.
        messages: collected since the call began.
        remedy: for messages that are not understood.
    """
    errors = messages.errors()
    for pattern, kind, meaning, cure in _MEANINGS:
        for text in errors:
            if pattern.search(text):
                return kind(f"{asked}: {meaning}", found=_first_line(text), remedy=cure)
    return BackendError(asked, found=_first_line(errors[0]) if errors else "no message", remedy=remedy)


def _parser_remedy(reason: str, operator: str) -> str:
    if "No importer registered" in reason or "unsupported" in reason.lower():
        return f"express {operator} by operators that TensorRT has, or leave TensorRT out for this model"
    if "same input types" in reason or "type" in reason.lower():
        return "every node's inputs must have one type: TensorRT takes precision from the file and casts nothing by itself"
    return "mend that node in the model, or leave TensorRT out for it"


def _first_line(text: str) -> str:
    """The message without the driver noise and source positions that TensorRT appends."""
    lines = [line for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
    joined = " ".join(" ".join(lines).split())
    return re.sub(r" In \w+ at /\S+:\d+\)?", "", joined)[:500] or "no message"
