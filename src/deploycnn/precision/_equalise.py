"""Channels of very different size made alike before quantisation, without changing what the network computes.

Between layers with only ReLU, pooling, flattening and residual additions in between, channel i may be divided by any
positive s_i behind the layers that write it and multiplied by it in front of the layers that read it (Nagel et al.,
"Data-free quantization through weight equalization and bias correction", 2019, arXiv 1906.04721). Activations have one
scale for all channels, so one large channel costs the others their digits; the weights of the writing layers have a
scale per channel and lose nothing. s_i is chosen between the activations' and the reading layers' ranges (as in Xiao
et al., "SmoothQuant", 2023, arXiv 2211.10438, with exponent 1/2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deploycnn.types import Value

if TYPE_CHECKING:
    import numpy as np
    import onnx

# Operators through which a positive factor per channel passes unchanged.
_HOMOGENEOUS = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Flatten", "Add")
LARGEST_FACTOR = 1e4


class Group(Value):
    """Tensors whose channels can only be scaled together, and the layers at both ends."""

    writers: tuple[str, ...]  # names of layers
    readers: tuple[str, ...]
    watched: tuple[str, ...]  # the tensors whose ranges count: what layers and additions read


def groups(model: onnx.ModelProto) -> tuple[Group, ...]:
    """Every group in which all ends are layers with constant weights, in graph order."""
    layers = {node.name for node in model.graph.node if _scalable(model, node)}
    constants = {tensor.name for tensor in model.graph.initializer}
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    passing = [node for node in model.graph.node if _passes(node, constants)]
    for node in passing:
        for name in node.input:
            if name not in constants:
                root[find(name)] = find(node.output[0])
    through = {node.name for node in passing}
    closed = {find(value.name) for value in (*model.graph.input, *model.graph.output)}
    members: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for node in model.graph.node:
        if node.name in through:
            watched = [name for name in node.input if node.op_type == "Add"]
            members.setdefault(find(node.output[0]), ([], [], []))[2].extend(watched)
        elif node.name in layers:
            members.setdefault(find(node.output[0]), ([], [], []))[0].append(node.name)
            read = members.setdefault(find(node.input[0]), ([], [], []))
            read[1].append(node.name)
            read[2].append(node.input[0])
        else:
            closed |= {find(name) for name in (*node.input, *node.output) if name not in constants}
    return tuple(
        Group(writers=tuple(writers), readers=tuple(readers), watched=tuple(dict.fromkeys(watched)))
        for name, (writers, readers, watched) in members.items()
        if name not in closed and writers and readers
    )


def _passes(node: onnx.NodeProto, constants: set[str]) -> bool:
    """Whether a factor per channel passes through. Reshape does where it flattens, as exporters write flatten(1)."""
    if node.op_type == "Reshape":
        return True  # channels that do not divide what is read are left alone by `equalised`
    return node.op_type in _HOMOGENEOUS and not any(name in constants for name in node.input)


def _scalable(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """A convolution without groups, or a dense layer in the form that PyTorch exports, with constants of its own."""
    constants = {tensor.name for tensor in model.graph.initializer}
    if node.op_type not in ("Conv", "Gemm") or any(name not in constants for name in node.input[1:]):
        return False
    settings = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Conv":
        plain = "group" not in settings or settings["group"].i == 1
    else:
        plain = (
            "transB" in settings and settings["transB"].i == 1 and all(settings[key].f == 1 for key in ("alpha", "beta") if key in settings)
        )
    shared = sum(name in other.input for other in model.graph.node for name in node.input[1:])
    return plain and shared == len(node.input) - 1


def equalised(model: onnx.ModelProto, largest: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A copy with every group equalised, in graph order.

    Args:
        model: float32.
        largest: largest absolute value of each channel (or feature) of the tensors that `groups` names as watched.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = {node.name: node for node in copy.graph.node}
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}

    def constant(layer: str, index: int) -> onnx.TensorProto:
        return constants[nodes[layer].input[index]]

    for group in groups(copy):
        channels = {constant(layer, 1).dims[0] for layer in group.writers}
        features = {constant(layer, 1).dims[1] for layer in group.readers} | {largest[name].size for name in group.watched}
        if len(channels) != 1 or any(size % min(channels) for size in features):
            continue
        count = channels.pop()
        seen_C = np.max([largest[name].reshape(count, -1).max(axis=1) for name in group.watched], axis=0)
        # Flattened channels have several features each.
        reading = {layer: numpy_helper.to_array(constant(layer, 1)) for layer in group.readers}
        weight_C = np.max([np.abs(w.reshape(len(w), count, -1)).max(axis=(0, 2)) for w in reading.values()], axis=0)
        factor_C = _factors(seen_C, weight_C)
        for layer in group.writers:
            weight = numpy_helper.to_array(constant(layer, 1))
            _store(constant(layer, 1), weight / factor_C.reshape(-1, *[1] * (weight.ndim - 1)))
            if len(nodes[layer].input) > 2:
                _store(constant(layer, 2), numpy_helper.to_array(constant(layer, 2)) / factor_C)
        for layer, weight in reading.items():
            scaled = weight.reshape(len(weight), count, -1) * factor_C[None, :, None]
            _store(constant(layer, 1), scaled.reshape(weight.shape))
    return copy


def _factors(activation_C: np.ndarray, weight_C: np.ndarray) -> np.ndarray:
    """sqrt(activation / weight) per channel, around 1; channels that are dead on either side stay."""
    import numpy as np

    alive = (activation_C > 0) & (weight_C > 0)
    ratio = np.sqrt(np.where(alive, activation_C, 1) / np.where(alive, weight_C, 1))
    if alive.any():
        ratio = ratio / np.exp(np.log(ratio[alive]).mean())
    factor: np.ndarray = np.where(alive, np.clip(ratio, 1 / LARGEST_FACTOR, LARGEST_FACTOR), 1.0)
    return factor


def _store(tensor: onnx.TensorProto, values: np.ndarray) -> None:
    from onnx import numpy_helper

    tensor.CopyFrom(numpy_helper.from_array(values.astype("float32"), tensor.name))
