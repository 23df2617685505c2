"""A graph that answers with its own intermediate tensors, as one output, so that any backend can compile and run it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deploycnn.errors import ModelError
from deploycnn.types import Value

if TYPE_CHECKING:
    import numpy as np
    import onnx

OUTPUT = "exposed"


class Exposed(Value):
    """One tensor of a graph, and what computes it."""

    tensor: str  # in the float32 graph
    node: str  # that writes it there
    op: str
    shape: tuple[int, ...]  # of one image
    read_as: str  # the tensor that readers of it read in the other graph: behind its Q/DQ pair where it has one

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def common_tensors(graph: onnx.ModelProto, variant: onnx.ModelProto) -> tuple[Exposed, ...]:
    """The float tensors of the float32 graph that the variant has under the same name, in graph order."""
    shapes = {name: shape for name, shape in _shapes(graph).items() if shape}
    written = {name for node in variant.graph.node for name in node.output}
    read_as = _behind_pairs(variant)
    return tuple(
        Exposed(tensor=name, node=node.name, op=node.op_type, shape=shapes[name], read_as=read_as.get(name, name))
        for node in graph.graph.node
        for name in node.output
        if name in shapes and name in written
    )


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of one image, of float tensors whose first dimension is the batch."""
    import onnx
    from onnx import TensorProto

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    found = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        dims = kind.shape.dim
        if kind.elem_type == TensorProto.FLOAT and len(dims) >= 2 and dims[0].dim_param and all(dim.dim_value for dim in dims[1:]):
            found[value.name] = tuple(dim.dim_value for dim in dims[1:])
    return found


def _behind_pairs(model: onnx.ModelProto) -> dict[str, str]:
    """The name that each tensor has behind its QuantizeLinear and DequantizeLinear."""
    dequantised = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    pairs = ((node.input[0], node.output[0]) for node in model.graph.node if node.op_type == "QuantizeLinear")
    return {name: dequantised[integers] for name, integers in pairs if integers in dequantised}


def exposing(model: onnx.ModelProto, tensors: tuple[Exposed, ...], *, own_names: bool = False) -> onnx.ModelProto:
    """A copy whose only output is all these tensors, flattened and side by side: float32 (N, sum of sizes).

    Args:
        own_names: the model is the float32 graph itself.

    Raises:
        ModelError: there is nothing to expose.
    """
    import onnx
    from onnx import TensorProto, helper

    if not tensors:
        raise ModelError("the graph has no tensor that can be compared", remedy="give a variant that deploycnn made")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    parts = []
    for index, exposed in enumerate(tensors):
        flat, part = f"{OUTPUT}_flat_{index}", f"{OUTPUT}_{index}"
        graph.node.append(helper.make_node("Flatten", [exposed.tensor if own_names else exposed.read_as], [flat], name=flat, axis=1))
        graph.node.append(helper.make_node("Cast", [flat], [part], name=part, to=TensorProto.FLOAT))
        parts.append(part)
    graph.node.append(helper.make_node("Concat", parts, [OUTPUT], name=OUTPUT, axis=1))
    batch = graph.input[0].type.tensor_type.shape.dim[0]
    size = sum(exposed.size for exposed in tensors)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [batch.dim_value or batch.dim_param or "batch", size]))
    return copy


def parted(values_NF: np.ndarray, tensors: tuple[Exposed, ...]) -> list[np.ndarray]:
    """What an exposing graph answered, tensor by tensor, each (N, ...) in its own shape."""
    import numpy as np

    ends = np.cumsum([exposed.size for exposed in tensors])[:-1]
    return [part.reshape(len(values_NF), *exposed.shape) for part, exposed in zip(np.split(values_NF, ends, axis=1), tensors, strict=True)]


def quantised_limits(model: onnx.ModelProto) -> dict[str, tuple[float, float]]:
    """The lowest and highest value that each quantised activation can have, by the tensor's name in front of its QuantizeLinear."""
    import numpy as np
    from onnx import numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type != "QuantizeLinear" or node.input[1] not in constants or len(node.input) < 3 or node.input[2] not in constants:
            continue
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        if scale.size == 1 and zero.dtype.kind in "iu":
            kind = np.iinfo(zero.dtype)
            step, offset = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
            found[node.input[0]] = ((kind.min - offset) * step, (kind.max - offset) * step)
    return found
