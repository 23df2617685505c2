"""A user's ONNX file, whole: the model and the files that its weights lie in."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import ModelError
from deploycnn.graph import parse_graph, read_bytes

if TYPE_CHECKING:
    import onnx

CHUNK_BYTES = 1 << 20


def source_sha256(path: Path) -> str:
    """Digest over the model file and its external data files, by content: names and places do not matter.

    Raises:
        ModelError: a file is missing or is no ONNX model.
    """
    content = read_bytes(path)
    digest = hashlib.sha256(content)
    for sidecar in sorted(set(_sidecars(parse_graph(content, path), path).values())):
        with sidecar.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def load_whole(path: Path) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with all its weights inside, and notes about files found under another name.

    Raises:
        ModelError: a file is missing, too short, outside the model's folder, or no ONNX model.
    """
    import onnx
    from onnx import external_data_helper as external

    model = parse_graph(read_bytes(path), path)
    sidecars = _sidecars(model, path)
    for tensor in _external_tensors(model):
        info = external.ExternalDataInfo(tensor)
        with sidecars[info.location].open("rb") as stream:
            stream.seek(info.offset or 0)
            tensor.raw_data = stream.read(info.length) if info.length else stream.read()
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
    renamed = [(name, found.name) for name, found in sidecars.items() if found != path.parent / name]
    return model, tuple(f"the weights that {path.name} looks for in {name} were read from {found}" for name, found in renamed)


def _external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    import onnx
    from onnx import external_data_helper as external

    tensors = [
        *model.graph.initializer,
        *(a.t for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR),
    ]
    return [tensor for tensor in tensors if external.uses_external_data(tensor)]


def _sidecars(model: onnx.ModelProto, path: Path) -> dict[str, Path]:
    """Where the file of each external location lies, relative to the model and never outside its folder.

    A model and its sidecar that were renamed together (net.onnx and net.onnx.data to a.onnx and a.onnx.data) belong
    together as long as the size is exactly what the model needs.
    """
    from onnx import external_data_helper as external

    needed: dict[str, int] = {}
    for tensor in _external_tensors(model):
        info = external.ExternalDataInfo(tensor)
        needed[info.location] = max(needed.get(info.location, 0), (info.offset or 0) + (info.length or 0))
    found: dict[str, Path] = {}
    for name, size_bytes in needed.items():
        place = path.parent / name
        if not place.resolve().is_relative_to(path.parent.resolve()):
            raise ModelError(f"{path.name} takes weights from outside its folder", found=name, remedy="save it again as one file")
        renamed = path.with_name(f"{path.name}.data")
        if not place.is_file() and len(needed) == 1 and renamed.is_file() and renamed.stat().st_size == size_bytes:
            place = renamed
        if not place.is_file():
            remedy = f"put {name} beside the model, or save the model as one file (onnx.save_model, save_as_external_data=False)"
            raise ModelError(f"weights of {path.name} are missing", found=f"no {name} in {path.parent}", remedy=remedy)
        if place.stat().st_size < size_bytes:
            sizes = f"{place.stat().st_size} bytes where {size_bytes} are needed"
            raise ModelError(f"{place.name} is not whole", found=sizes, remedy="copy it again")
        found[name] = place
    return found
