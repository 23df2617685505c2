"""ONNX files in and out: one self-contained file, the same bytes for the same graph."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import DeployError, ModelError

if TYPE_CHECKING:
    import onnx


def load_graph(path: Path) -> onnx.ModelProto:
    """Reads a self-contained ONNX file.

    Raises:
        ModelError: it is missing, cannot be read, or is no ONNX file.
    """
    return parse_graph(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """The file's bytes. Raises ModelError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"the graph {path} cannot be read", found=error.strerror or "", remedy="give the path of an ONNX file") from error


def parse_graph(content: bytes, path: Path) -> onnx.ModelProto:
    """The model of these bytes; `path` is for messages. Raises ModelError where they are none."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise not_onnx(path, f"{len(content)} bytes that are no ONNX model") from error
    if not model.graph.node:
        raise not_onnx(path, "no node in it" if content else "an empty file")
    return model


def not_onnx(path: Path, found: str) -> ModelError:
    """The error for a file that holds something else."""
    return ModelError(f"{path.name} is not a usable ONNX graph", found=found, remedy="export it again, or give another file")


def save_graph(model: onnx.ModelProto, path: Path, error: type[DeployError] = ModelError) -> str:
    """Checks and writes a graph as one file with deterministic bytes.

    Args:
        model: with all weights inside.
        path: the file to write.
        error: kind of error raised where the graph is not valid.

    Returns:
        SHA-256 of the file.
    """
    import onnx

    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as fault:
        found = " ".join(str(fault).split())[:500]
        raise error(f"the graph made for {path.name} is not valid ONNX", found=found, remedy="report this with the model") from fault
    content: bytes = model.SerializeToString(deterministic=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()
