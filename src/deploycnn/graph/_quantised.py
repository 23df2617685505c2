"""Which tensors of a graph are quantised, and how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.graph._files import load_graph
from deploycnn.types import Int8Form, Value

if TYPE_CHECKING:
    import onnx

INTEGER_OPS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")


class QuantisedTensor(Value):
    """One tensor between floats and integers."""

    name: str  # the float tensor for QuantizeLinear, the integer one for DequantizeLinear
    node: str
    op: str  # QuantizeLinear or DequantizeLinear
    dtype: str  # int8, uint8, int32, ...
    symmetric: bool  # every zero point is 0
    per_channel: bool
    is_constant: bool  # a weight or bias


def describe_quantisation(graph: Path | onnx.ModelProto) -> tuple[QuantisedTensor, ...]:
    """Every QuantizeLinear and DequantizeLinear, in graph order. Empty for a float graph.

    Raises:
        ModelError: the file cannot be read.
    """
    from onnx import TensorProto, helper, numpy_helper

    model = load_graph(graph) if isinstance(graph, Path) else graph
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    found = []
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        zero = constants.get(node.input[2]) if len(node.input) > 2 else None
        scale = constants.get(node.input[1])
        value = constants.get(node.input[0])
        stored = zero.data_type if zero is not None else value.data_type if value is not None else TensorProto.UINT8
        found.append(
            QuantisedTensor(
                name=node.input[0],
                node=node.name,
                op=node.op_type,
                dtype=helper.tensor_dtype_to_np_dtype(stored).name,
                symmetric=zero is None or not numpy_helper.to_array(zero).any(),
                per_channel=scale is not None and len(scale.dims) > 0 and scale.dims[0] > 1,
                is_constant=value is not None,
            )
        )
    return tuple(found)


def form_of(tensors: tuple[QuantisedTensor, ...]) -> Int8Form | None:
    """The nearest Int8Form of a quantised graph, None for a float one. Reduced range cannot be told from full."""
    activations = [tensor for tensor in tensors if not tensor.is_constant]
    if not activations:
        return None
    if any(tensor.dtype == "uint8" for tensor in activations):
        return Int8Form.CPU_U8S8
    return Int8Form.SYMMETRIC_S8 if all(tensor.symmetric for tensor in tensors) else Int8Form.CPU_S8S8
