"""The float32 graph that a quantised file stands for: its Q/DQ pairs taken out, its weights dequantised."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import ModelError
from deploycnn.export._clean import cleaned
from deploycnn.export._fold import folded
from deploycnn.graph import Runner, load_graph, read_metadata, save_graph, write_metadata
from deploycnn.types import Variant

if TYPE_CHECKING:
    import numpy as np
    import onnx

FLOAT_GRAPH = "float.onnx"
_WITHOUT_FLOATS = ("QLinear", "Integer", "DynamicQuantize")  # parts of the names of operators that hold no Q/DQ pair


def float_graph(quantised: Variant, sample_x_NCHW: np.ndarray, folder: Path) -> Variant:
    """Writes float.onnx: the fp32 reference of a user's own Q/DQ file.

    Its weights are the rounded ones of the file, for others are not known; its activations are not rounded.

    Args:
        quantised: as adopt_graph made it.
        sample_x_NCHW: uint8 real images, on which both are run.
        folder: where the file goes.

    Raises:
        ModelError: the file has integer operators instead of Q/DQ pairs, or the result does not run.
    """
    import numpy as np

    model = load_graph(quantised.onnx_path)
    integers = [node for node in model.graph.node if any(part in node.op_type for part in _WITHOUT_FLOATS)]
    if integers:
        raise ModelError(
            "the graph is quantised, and an fp32 reference cannot be derived from it",
            found=f"{len(integers)} integer operators, the first is {integers[0].op_type} '{integers[0].name}'",
            remedy="give the fp32 model, or quantise it with Q/DQ pairs (QuantFormat.QDQ)",
        )
    metadata = read_metadata(model)
    _take_out(model)
    model = cleaned(folded(model))
    write_metadata(model, metadata.model_copy(update={"precision": "fp32", "parent_sha256": None}))
    path = folder / FLOAT_GRAPH
    digest = save_graph(model, path)
    batch = quantised.fixed_batch or len(sample_x_NCHW)
    with Runner(path, "the fp32 graph of the quantised file") as runner, Runner(quantised.onnx_path, "the quantised file") as given:
        reference_NK, given_NK = (each.logits(sample_x_NCHW, batch) for each in (runner, given))
    apart = float(np.linalg.norm(given_NK - reference_NK) / max(float(np.linalg.norm(reference_NK)), 1e-30))
    note = (
        "the file is quantised: its fp32 reference is the same graph without rounded activations, with the file's own rounded weights; "
        f"relative logit error between the two {apart:.2g} on {len(sample_x_NCHW)} images"
    )
    return quantised.model_copy(
        update={"precision": "fp32", "int8_form": None, "onnx_path": path, "sha256": digest, "notes": (*quantised.notes, note)}
    )


def _take_out(model: onnx.ModelProto) -> None:
    """Turns Q/DQ nodes of activations into what they do besides rounding, those of constants into float constants.

    What dequantises pixels keeps its sums.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    pixels = {value.name for value in graph.input}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            nodes.append(_unrounded(model, node, constants))
        elif node.op_type == "DequantizeLinear" and node.input[0] in constants:
            graph.initializer.append(numpy_helper.from_array(_dequantised(node, constants), node.output[0]))
        elif node.op_type == "DequantizeLinear" and node.input[0] in pixels:
            nodes += _normalising(model, node, constants)
        elif node.op_type == "DequantizeLinear":
            nodes.append(helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]


def _unrounded(model: onnx.ModelProto, node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> onnx.NodeProto:
    """Clip where the type's range begins or ends at 0, Identity elsewhere.

    Quantisers leave a ReLU or Clip out where the 8-bit range does the same: then the pair is all that is left of it.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    kept = helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)
    scale, zero = _scale_and_zero(node, constants)
    name = node.input[2] if len(node.input) > 2 else ""
    kind = constants[name].dtype if name else np.dtype(np.uint8)
    if node.input[0] in constants or scale.size != 1 or kind.kind not in "iu":
        return kept
    low, high = ((bound - zero.item()) * scale.item() for bound in (np.iinfo(kind).min, np.iinfo(kind).max))
    if low < 0 < high:
        return kept
    bounds = [f"{node.output[0]}_low", f"{node.output[0]}_high"]
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(x).reshape(()), n) for x, n in zip((low, high), bounds, strict=True))
    return helper.make_node("Clip", [node.input[0], *bounds], [node.output[0]], name=node.name)


def _scale_and_zero(node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    names = list(node.input[1:])
    if any(name and name not in constants for name in names):
        remedy = "give the fp32 model, or export the file with constant scales"
        raise ModelError(f"the scale of {node.op_type} '{node.name}' is computed while the graph runs", remedy=remedy)
    zero = constants[names[1]] if len(names) > 1 and names[1] else np.zeros_like(constants[names[0]])
    return constants[names[0]].astype(np.float64), zero.astype(np.float64)


def _dequantised(node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> np.ndarray:
    """(value - zero point) * scale, per tensor or along the node's axis, float32."""
    import numpy as np

    value = constants[node.input[0]].astype(np.float64)
    scale, zero = _scale_and_zero(node, constants)
    if scale.ndim == 1 and scale.size > 1:
        axis = next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 1) % value.ndim
        shape = [-1 if index == axis else 1 for index in range(value.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    result: np.ndarray = ((value - zero) * scale).astype(np.float32)
    return result.reshape(value.shape)


def _normalising(model: onnx.ModelProto, node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """Cast, Sub, Mul instead of a DequantizeLinear that reads uint8 pixels."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    scale, zero = (values.astype(np.float32).reshape(()) for values in _scale_and_zero(node, constants))
    stem = node.output[0]
    model.graph.initializer.extend([numpy_helper.from_array(zero, f"{stem}_zero"), numpy_helper.from_array(scale, f"{stem}_scale")])
    return [
        helper.make_node("Cast", [node.input[0]], [f"{stem}_float"], name=f"{node.name}_cast", to=TensorProto.FLOAT),
        helper.make_node("Sub", [f"{stem}_float", f"{stem}_zero"], [f"{stem}_shifted"], name=f"{node.name}_sub"),
        helper.make_node("Mul", [f"{stem}_shifted", f"{stem}_scale"], [stem], name=f"{node.name}_mul"),
    ]
