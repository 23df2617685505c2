"""A float32 graph with explicit QuantizeLinear and DequantizeLinear, in the form that a target needs.

The nodes are put in by ONNX Runtime's quantiser, since its own fusions look for exactly those patterns; the ranges
are ours (see _calibration.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploycnn.errors import PrecisionError
from deploycnn.precision._calibration import Ranges
from deploycnn.precision._retype import normalisation_nodes
from deploycnn.types import Int8Form

if TYPE_CHECKING:
    import onnx

# TensorRT quantises inputs of products; what lies between (ReLU, additions, pooling) it fuses or runs in float.
_PRODUCTS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]


def quantise(model: onnx.ModelProto, ranges: Ranges, form: Int8Form, left_float: frozenset[str] = frozenset()) -> onnx.ModelProto:
    """A quantised copy.

    Args:
        model: float32, with value_info for all tensors.
        ranges: of every float activation.
        form: types, symmetry, and which operators.
        left_float: names of nodes that stay in float.

    Raises:
        PrecisionError: there is nothing to quantise, or ONNX Runtime's quantiser says no.
    """
    import onnx
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    settings = _settings(form)
    excluded = sorted(left_float | normalisation_nodes(model))
    try:
        quantiser = QDQQuantizer(
            copy,
            nodes_to_quantize=[],
            nodes_to_exclude=excluded,
            tensors_range=_tensors_data(ranges),
            **settings,
        )
        quantiser.quantize_model()
        quantiser.model.topological_sort()
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError) as error:
        found = " ".join(str(error).split())[:300]
        raise PrecisionError(
            f"the graph cannot be quantised ({form})", found=found, remedy="leave int8 out, or simplify the model"
        ) from error
    quantised: onnx.ModelProto = quantiser.model.model
    _unquantise_logits(quantised)
    if not any(node.op_type == "QuantizeLinear" for node in quantised.graph.node):
        raise PrecisionError(
            f"nothing was quantised ({form})", found="no convolution or matrix product with constant weights", remedy="leave int8 out"
        )
    return _tidied(quantised)


def _settings(form: Int8Form) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    everything = sorted({*QDQRegistry, *QLinearOpsRegistry})
    signed = form in (Int8Form.SYMMETRIC_S8, Int8Form.CPU_S8S8)
    options: dict[str, Any] = {"WeightSymmetric": True, "ActivationSymmetric": form == Int8Form.SYMMETRIC_S8}
    if form == Int8Form.SYMMETRIC_S8:
        options |= {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": _PRODUCTS}
    return {
        "per_channel": True,
        "reduce_range": form == Int8Form.CPU_U8S8_REDUCED,
        "weight_qType": QuantType.QInt8,
        "activation_qType": QuantType.QInt8 if signed else QuantType.QUInt8,
        "op_types_to_quantize": _PRODUCTS if form == Int8Form.SYMMETRIC_S8 else everything,
        "extra_options": options,
    }


def _tensors_data(ranges: Ranges) -> Any:
    import numpy as np
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

    data = {name: (np.array(low, np.float32), np.array(high, np.float32)) for name, (low, high) in ranges.items()}
    return TensorsData(CalibrationMethod.MinMax, data)


def _unquantise_logits(model: onnx.ModelProto) -> None:
    """Takes the Q/DQ pair off the logits: 8 bits would round what is compared, and save nothing."""
    output = model.graph.output[0].name
    writers = {name: node for node in model.graph.node for name in node.output}
    readers = [node for node in model.graph.node if output in node.input]
    dequantise = writers.get(output)
    if dequantise is None or dequantise.op_type != "DequantizeLinear" or readers:
        return
    quantise_node = writers[dequantise.input[0]]
    source = writers[quantise_node.input[0]]
    for node in (quantise_node, dequantise):
        model.graph.node.remove(node)
    for index, name in enumerate(source.output):
        if name == quantise_node.input[0]:
            source.output[index] = output


def _tidied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without what nobody reads, with shapes and types of all tensors."""
    import onnx

    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for node in model.graph.node:
        node.ClearField("doc_string")
    del model.graph.value_info[:]
    model.producer_name, model.producer_version = "deploycnn", ""
    return onnx.shape_inference.infer_shapes(model, data_prop=True)
