"""What a graph costs, by shape inference: multiply-adds, parameters, bytes. Used for rooflines and evidence checks.

A multiply-add counts as two operations. Only convolutions and matrix products count; what is left (pooling, ReLU,
additions) is below 2 % in the networks here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import ModelError
from deploycnn.graph._files import load_graph
from deploycnn.types import Value

if TYPE_CHECKING:
    import onnx

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")


class WeightedOp(Value):
    """One convolution or matrix product."""

    name: str
    op: str
    macs: int  # multiply-adds per image
    parameters: int  # of its weight and bias
    quantised: bool  # its first input comes out of DequantizeLinear, or it is an integer operator


class GraphFacts(Value):
    """See the module. Per image, whatever batch the graph is exported with."""

    weighted_ops: tuple[WeightedOp, ...]
    n_nodes: int
    parameters: int  # floats (or quantised weights) of the weighted operators
    macs: int
    weight_bytes: int  # all constants as stored
    activation_bytes: int  # every tensor written once, at its own type
    peak_activation_bytes: int  # the largest input plus output of one node

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations per image, two for a multiply-add."""
        return 2 * self.macs

    @property
    def quantised_macs_share(self) -> float:
        """Share of the multiply-adds whose operators are quantised."""
        return sum(op.macs for op in self.weighted_ops if op.quantised) / self.macs if self.macs else 0.0


def graph_facts(graph: Path | onnx.ModelProto) -> GraphFacts:
    """Facts of an ONNX graph.

    Raises:
        ModelError: unreadable, or a shape cannot be inferred.
    """
    model = load_graph(graph) if isinstance(graph, Path) else graph
    tensors = _tensors(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    producers = {output: node for node in model.graph.node for output in node.output}
    batch = tensors[model.graph.input[0].name].shape[0]
    written = [tensors[name].size_bytes for node in model.graph.node for name in node.output if name in tensors]
    touched = [
        sum(tensors[name].size_bytes for name in (*node.input, *node.output) if name in tensors and name not in constants)
        for node in model.graph.node
    ]
    weighted = tuple(_weighted(node, tensors, producers, constants, batch) for node in model.graph.node if node.op_type in _PRODUCTS)
    return GraphFacts(
        weighted_ops=weighted,
        n_nodes=len(model.graph.node),
        parameters=sum(op.parameters for op in weighted),
        macs=sum(op.macs for op in weighted),
        weight_bytes=sum(tensors[name].size_bytes for name in constants),
        activation_bytes=sum(written) // batch,
        peak_activation_bytes=max(touched, default=0) // batch,
    )


class _Tensor(Value):
    shape: tuple[int, ...]
    itemsize: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


def _tensors(model: onnx.ModelProto) -> dict[str, _Tensor]:
    """Shape and item size of every tensor, with a dynamic batch set to 1."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_value:
                dim.dim_value = 1
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        fixed = onnx.shape_inference.infer_shapes(fixed, data_prop=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        found = " ".join(str(error).split())[:300]
        raise ModelError("the graph's shapes do not fit together", found=found, remedy="export it again") from error
    found_tensors = {
        tensor.name: _Tensor(shape=tuple(tensor.dims), itemsize=_itemsize(tensor.data_type)) for tensor in model.graph.initializer
    }
    for value in (*fixed.graph.input, *fixed.graph.value_info, *fixed.graph.output):
        kind = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        if value.name not in found_tensors and kind.HasField("shape") and all(shape):
            found_tensors[value.name] = _Tensor(shape=shape, itemsize=_itemsize(kind.elem_type))
    return found_tensors


def _itemsize(data_type: int) -> int:
    from onnx import helper

    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def _weighted(
    node: onnx.NodeProto, tensors: dict[str, _Tensor], producers: dict[str, onnx.NodeProto], constants: set[str], batch: int
) -> WeightedOp:
    weight_at, bias_at = (3, 8) if node.op_type.startswith("QLinear") else (1, 2)
    names = (node.input[weight_at], node.output[0])
    if any(name not in tensors for name in names):
        raise ModelError(
            f"the shape of {node.op_type} '{node.name}' cannot be inferred",
            remedy="give the graph's input a fixed channel, height and width",
        )
    weight, output = (tensors[name] for name in names)
    bias = [node.input[bias_at]] if len(node.input) > bias_at and node.input[bias_at] and "Integer" not in node.op_type else []
    sources = [_source(name, producers) for name in (node.input[weight_at], *bias)]
    return WeightedOp(
        name=node.name,
        op=node.op_type,
        macs=_macs(node, weight, output, tensors) // batch,
        parameters=sum(math.prod(tensors[name].shape) for name in sources if name in constants),
        quantised=node.op_type not in _PRODUCTS[:4] or _dequantised(node.input[0], producers),
    )


def _macs(node: onnx.NodeProto, weight: _Tensor, output: _Tensor, tensors: dict[str, _Tensor]) -> int:
    if node.op_type == "ConvTranspose":
        return math.prod(tensors[node.input[0]].shape) * math.prod(weight.shape[1:])
    if "Conv" in node.op_type:  # weight (M, C/group, kH, kW)
        return math.prod(output.shape) * math.prod(weight.shape[1:])
    inner = math.prod(weight.shape) // output.shape[-1] if len(weight.shape) == 2 else weight.shape[-2]
    return math.prod(output.shape) * inner


def _source(name: str, producers: dict[str, onnx.NodeProto]) -> str:
    """The constant behind casts and dequantisation."""
    while name in producers and producers[name].op_type in ("DequantizeLinear", "QuantizeLinear", "Cast", "Transpose", "Identity"):
        name = producers[name].input[0]
    return name


def _dequantised(name: str, producers: dict[str, onnx.NodeProto]) -> bool:
    while name in producers and producers[name].op_type in ("Cast", "Reshape", "Flatten", "Transpose", "Squeeze", "MaxPool"):
        name = producers[name].input[0]
    return name in producers and producers[name].op_type == "DequantizeLinear"
