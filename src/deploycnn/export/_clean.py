"""Small rewrites that leave a graph with the same answers: fewer nodes, no traces of the machine it was made on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx


def cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Everything below, on a copy, with the shapes of all tensors inferred anew."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    strip_traces(copy)
    name_nodes(copy)
    fold_scale(copy)
    pool_means(copy)
    drop_unused(copy)
    return with_shapes(copy)


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with value_info for every tensor, what was there before forgotten."""
    import onnx

    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def strip_traces(model: onnx.ModelProto) -> None:
    """Removes documentation and metadata of nodes and tensors: exporters put source lines and local paths there."""
    graph = model.graph
    parts: Iterable[Any] = (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for part in parts:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def name_nodes(model: onnx.ModelProto) -> None:
    """Gives a name to every node without one, or with one that is taken: errors, evidence and tables go by names."""
    taken: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        taken.add(node.name)


def fold_scale(model: onnx.ModelProto) -> bool:
    """Folds `pixels - mean` times a constant per channel into the weights of the convolution behind it.

    Only the multiplication: folding the subtraction too would change what zero padding means.

    Returns:
        Whether there was one to fold.
    """
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    users = _users(model)
    for scaling in graph.node:
        if scaling.op_type != "Mul" or scaling.input[1] not in constants:
            continue
        convolutions = users.get(scaling.output[0], [])
        source = next((node for node in graph.node if scaling.input[0] in node.output), None)
        if source is None or source.op_type not in ("Sub", "Cast") or len(convolutions) != 1 or convolutions[0].op_type != "Conv":
            continue
        convolution = convolutions[0]
        weight = constants.get(convolution.input[1])
        scale = numpy_helper.to_array(constants[scaling.input[1]])
        if weight is None or len(users[weight.name]) > 1 or not _per_channel(scale):
            continue
        weight_MCHW = numpy_helper.to_array(weight)
        weight.CopyFrom(numpy_helper.from_array(_scaled(weight_MCHW, scale, _group(convolution)), weight.name))
        convolution.input[0] = scaling.input[0]
        graph.node.remove(scaling)
        return True
    return False


def _per_channel(scale: np.ndarray) -> bool:
    return scale.size == 1 or (scale.ndim == 4 and scale.size == scale.shape[1])


def _scaled(weight_MCHW: np.ndarray, scale: np.ndarray, group: int) -> np.ndarray:
    """The weights times the scale of the input channel that each one sees, rounded once."""
    import numpy as np

    outputs, inputs = weight_MCHW.shape[:2]
    scale_C = np.broadcast_to(scale.astype(np.float64).reshape(-1), (inputs * group,))
    seen_GC = scale_C.reshape(group, inputs)
    per_output_MC = np.repeat(seen_GC, outputs // group, axis=0)
    product: np.ndarray = (weight_MCHW * per_output_MC[:, :, None, None]).astype(np.float32)
    return product


def _group(convolution: onnx.NodeProto) -> int:
    return next((int(attribute.i) for attribute in convolution.attribute if attribute.name == "group"), 1)


def pool_means(model: onnx.ModelProto) -> None:
    """Turns means over height and width into GlobalAveragePool, which runtimes keep in their own layout and in int8."""
    from onnx import helper, numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    ranks = _ranks(model)
    for index, node in enumerate(model.graph.node):
        if node.op_type != "ReduceMean" or ranks.get(node.input[0]) != 4:
            continue
        settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        axes = settings.get("axes")
        if len(node.input) > 1 and node.input[1] in constants:
            axes = numpy_helper.to_array(constants[node.input[1]]).tolist()
        if axes is None or sorted(axis % 4 for axis in axes) != [2, 3] or not settings.get("keepdims", 1):
            continue
        model.graph.node.remove(node)
        model.graph.node.insert(index, helper.make_node("GlobalAveragePool", [node.input[0]], list(node.output), name=node.name))


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model)
    return {value.name: len(value.type.tensor_type.shape.dim) for value in inferred.graph.value_info}


def drop_unused(model: onnx.ModelProto) -> None:
    """Removes constants that no node reads; ONNX Runtime warns about each one."""
    users = _users(model)
    outputs = {value.name for value in model.graph.output}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in users or tensor.name in outputs]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _users(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """Which nodes read each tensor."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    return users
