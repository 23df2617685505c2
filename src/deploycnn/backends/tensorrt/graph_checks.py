"""What TensorRT refuses in an ONNX file, found before the build: the error names the tensor and the node.

Its own messages for these come late and name neither. Measured with TensorRT for RTX 1.7.1; full TensorRT has the same parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploycnn.errors import Unsupported
from deploycnn.types import Value

if TYPE_CHECKING:
    import numpy as np

# Integer operators of other toolchains. TensorRT wants QuantizeLinear/DequantizeLinear around float operators.
INTEGER_OPERATORS = (
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "QLinearAdd",
    "QLinearGlobalAveragePool",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantizeLinear",
)

MATRIX_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_SYMMETRIC = "quantise again with symmetric int8 (zero point 0) for activations and weights, and leave biases in float"


class MatrixNode(Value):
    """A node that multiplies matrices: what evidence has to cover."""

    name: str  # "" where the file gives none
    op: str


def matrix_nodes(model: Any) -> tuple[MatrixNode, ...]:
    """Every convolution and matrix product of the graph, in its order."""
    return tuple(MatrixNode(name=node.name, op=node.op_type) for node in model.graph.node if node.op_type in MATRIX_OPERATORS)


def check_graph(model: Any, source: str) -> None:
    """Raises Unsupported at the first thing TensorRT would refuse, naming tensor and node."""
    constants = _constants(model)
    for node in model.graph.node:
        if node.op_type in INTEGER_OPERATORS:
            raise Unsupported(
                f"TensorRT has no {node.op_type}: node {_name(node)} of {source}",
                found="an integer operator, not explicit quantisation",
                remedy="quantise with QuantizeLinear/DequantizeLinear pairs (QDQ format) instead",
            )
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            _check_quantiser(node, constants, source)


def check_operators(model: Any, parser: Any, source: str) -> None:
    """Raises Unsupported at the first operator that the library's parser does not know.

    Args:
        model: ModelProto.
        parser: a fresh OnnxParser.
        source: name of the file for the message.
    """
    local = {(function.domain, function.name) for function in model.functions}
    verdicts: dict[str, bool] = {}
    for node in model.graph.node:
        if (node.domain, node.op_type) in local:
            continue
        if node.op_type not in verdicts:
            verdicts[node.op_type] = bool(parser.supports_operator(node.op_type))
        if not verdicts[node.op_type]:
            domain = f" of domain {node.domain}" if node.domain else ""
            raise Unsupported(
                f"TensorRT has no operator {node.op_type}{domain}: node {_name(node)} of {source}",
                found=f"it makes tensor {node.output[0] if node.output else '(none)'}",
                remedy=f"express {node.op_type} by operators that TensorRT has, or leave TensorRT out for this model",
            )


def _check_quantiser(node: Any, constants: dict[str, np.ndarray], source: str) -> None:
    import numpy as np

    inputs = [*node.input, "", ""]
    x_name, zero_name = inputs[0], inputs[2]
    x, zero = constants.get(x_name), constants.get(zero_name)
    where = f"node {_name(node)} of {source}"
    if node.op_type == "DequantizeLinear" and x is not None and x.dtype == np.int32:
        raise Unsupported(
            f"TensorRT takes no quantised bias: tensor {x_name}, {where}",
            found="int32 values behind a DequantizeLinear",
            remedy="leave biases in float (QuantizeBias=False with ONNX Runtime's quantize_static)",
        )
    for tensor, name in ((zero, zero_name), (x if node.op_type == "DequantizeLinear" else None, x_name)):
        if tensor is not None and tensor.dtype.name in ("uint8", "int16", "uint16", "int32"):
            raise Unsupported(
                f"TensorRT quantises to int8 only: tensor {name}, {where}",
                found=f"{tensor.dtype.name}",
                remedy=_SYMMETRIC,
            )
    if node.op_type == "QuantizeLinear" and not zero_name and not any(item.name == "output_dtype" for item in node.attribute):
        # ONNX means uint8 here; TensorRT builds it as int8 without a word, and saturates half of the range.
        raise Unsupported(
            f"TensorRT quantises to int8 only: tensor {node.output[0]}, {where}",
            found="no zero point, which means uint8 in ONNX",
            remedy=_SYMMETRIC,
        )
    if zero is not None and np.any(zero.astype(np.int64) != 0):
        nonzero = zero[zero != 0].ravel()
        raise Unsupported(
            f"TensorRT takes no zero point but 0: tensor {zero_name}, {where}",
            found=f"zero point {int(nonzero[0])}" + (f" and {nonzero.size - 1} more" if nonzero.size > 1 else ""),
            remedy=_SYMMETRIC,
        )


def _constants(model: Any) -> dict[str, np.ndarray]:
    """Small and large constants by tensor name: initialisers and Constant nodes."""
    from onnx import numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = numpy_helper.to_array(attribute.t)
    return constants


def _name(node: Any) -> str:
    return node.name or f"(unnamed, makes {node.output[0] if node.output else 'nothing'})"
