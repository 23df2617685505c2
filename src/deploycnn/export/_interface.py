"""What a user's graph takes and gives, checked before any work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deploycnn.errors import ModelError
from deploycnn.graph import runtime_limits
from deploycnn.types import Value

if TYPE_CHECKING:
    import onnx

OLDEST_OPSET = 7  # ONNX Runtime promises nothing below


class Interface(Value):
    """Input and output of a classifier."""

    input_name: str
    output_name: str
    dtype: Literal["uint8", "float32"]
    layout: Literal["NCHW", "NHWC"]
    fixed_batch: int | None  # None where the file says that it is dynamic


def check_versions(model: onnx.ModelProto, path: Path) -> None:
    """Refuses a file that this runtime cannot read, before any work.

    Raises:
        ModelError: names the IR version or opset of the file and what is supported.
    """
    newest_ir, newest_opset = runtime_limits()
    opset = opset_of(model)
    advice = f"export it again with opset 17 to {newest_opset}"
    if model.ir_version > newest_ir:
        supported = f"this runtime supports up to IR version {newest_ir}"
        raise ModelError(f"{path.name} has IR version {model.ir_version}", found=supported, remedy=f"{advice}, or update onnxruntime")
    if opset > newest_opset:
        supported = f"this runtime supports up to opset {newest_opset}"
        raise ModelError(f"{path.name} has opset {opset}", found=supported, remedy=f"{advice}, or update onnxruntime")
    if opset < OLDEST_OPSET:
        supported = f"this runtime supports opset {OLDEST_OPSET} up to {newest_opset}"
        raise ModelError(f"{path.name} has opset {opset}", found=supported, remedy=advice)


def opset_of(model: onnx.ModelProto) -> int:
    """The opset of the standard operators, 1 where the file does not say."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def interface_of(model: onnx.ModelProto, path: Path, shape_CHW: tuple[int, int, int]) -> Interface:
    """Reads the one input and one output, and how images lie in the input.

    Raises:
        ModelError: several inputs or outputs (named), another type, or a shape that the images do not have.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    outputs = list(model.graph.output)
    for kind, values in (("input", inputs), ("output", outputs)):
        if len(values) != 1:
            names = ", ".join(value.name for value in values) or "none"
            remedy = f"give a graph with one {kind}; onnx.utils.extract_model cuts the rest off"
            raise ModelError(f"{path.name} has {len(values)} {kind}s; a classifier has one", found=names, remedy=remedy)
    dims = [dim.dim_value or None for dim in inputs[0].type.tensor_type.shape.dim]
    return Interface(
        input_name=inputs[0].name,
        output_name=outputs[0].name,
        dtype=_dtype(inputs[0], outputs[0], path),
        layout=_layout(dims, path, shape_CHW),
        fixed_batch=dims[0],
    )


def _dtype(given: onnx.ValueInfoProto, answer: onnx.ValueInfoProto, path: Path) -> Literal["uint8", "float32"]:
    from onnx import TensorProto

    known: dict[int, Literal["uint8", "float32"]] = {TensorProto.UINT8: "uint8", TensorProto.FLOAT: "float32"}
    taken, answered = given.type.tensor_type.elem_type, answer.type.tensor_type.elem_type
    name = TensorProto.DataType.Name
    if taken not in known:
        remedy = "export the float32 model; the lower precisions are made from it"
        raise ModelError(f"{path.name} takes {name(taken)}", found=f"input {given.name}", remedy=remedy)
    if answered != TensorProto.FLOAT:
        remedy = "export it with float32 logits as output, without ArgMax at the end"
        raise ModelError(f"{path.name} answers {name(answered)}", found=f"output {answer.name}", remedy=remedy)
    return known[taken]


def _layout(dims: list[int | None], path: Path, shape_CHW: tuple[int, int, int]) -> Literal["NCHW", "NHWC"]:
    channels, height, width = shape_CHW
    if len(dims) == 4:
        shapes: tuple[tuple[Literal["NCHW", "NHWC"], tuple[int, int, int]], ...] = (
            ("NCHW", (channels, height, width)),
            ("NHWC", (height, width, channels)),
        )
        for layout, shape in shapes:
            if all(dim in (None, size) for dim, size in zip(dims[1:], shape, strict=True)):
                return layout
    shown = "x".join("?" if dim is None else str(dim) for dim in dims) or "no shape"
    raise ModelError(
        f"{path.name} does not take these images",
        found=f"its input is {shown}; the images are {channels}x{height}x{width} (channels, height, width)",
        remedy="set data.size and data.channels to what the model was trained on",
    )
