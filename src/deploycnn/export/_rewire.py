"""Rewrites that give a user's graph our boundary: uint8 pixels NCHW in, float32 logits (N, K) out, dynamic batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploycnn.export._interface import Interface
from deploycnn.types import Preprocessing

if TYPE_CHECKING:
    import onnx

INPUT, OUTPUT = "pixels", "logits"


def rename_tensor(model: onnx.ModelProto, old: str, new: str) -> None:
    """Renames a tensor wherever it is written or read."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        if value.name == old:
            value.name = new


def free_names(model: onnx.ModelProto, interface: Interface) -> Interface:
    """Moves inner tensors off the names `pixels` and `logits`, and the graph's own input and output onto others."""
    for name in (INPUT, OUTPUT):
        rename_tensor(model, name, f"{name}_")
    moved = {INPUT: f"{INPUT}_", OUTPUT: f"{OUTPUT}_"}
    return interface.model_copy(
        update={
            "input_name": moved.get(interface.input_name, interface.input_name),
            "output_name": moved.get(interface.output_name, interface.output_name),
        }
    )


def put_pixels_first(
    model: onnx.ModelProto, interface: Interface, preprocessing: Preprocessing | None, shape_CHW: tuple[int, int, int]
) -> None:
    """Replaces the input by uint8 `pixels` NCHW: cast, normalise (where the graph wants floats), transpose (NHWC)."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    nodes: list[onnx.NodeProto] = []
    current = INPUT

    def add(op: str, name: str, *constants: str, **attributes: object) -> None:
        nonlocal current
        nodes.append(helper.make_node(op, [current, *constants], [name], name=name, **attributes))
        current = name

    if interface.dtype == "float32" and preprocessing is not None:
        mean, std = (np.array(values, np.float64).reshape(1, -1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        graph.initializer.append(numpy_helper.from_array((255 * mean).astype(np.float32), "shift_1C11"))
        graph.initializer.append(numpy_helper.from_array((1 / (255 * std)).astype(np.float32), "scale_1C11"))
        add("Cast", "pixels_float", to=TensorProto.FLOAT)
        add("Sub", "pixels_shifted", "shift_1C11")
        add("Mul", "pixels_normalised", "scale_1C11")
    if interface.layout == "NHWC":
        add("Transpose", "pixels_NHWC", perm=[0, 2, 3, 1])
    old = next(value for value in graph.input if value.name == interface.input_name)
    graph.input.remove(old)
    batch = interface.fixed_batch or "batch"
    graph.input.insert(0, helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [batch, *shape_CHW]))
    rename_tensor(model, interface.input_name, current)
    for node in reversed(nodes):
        graph.node.insert(0, node)
    _cancel_transposes(model)


def _cancel_transposes(model: onnx.ModelProto) -> None:
    """Drops our Transpose to NHWC where the graph's first step is to undo it, as graphs from TensorFlow do."""
    from onnx import helper

    users = [node for node in model.graph.node if "pixels_NHWC" in node.input]
    ours = next((node for node in model.graph.node if node.name == "pixels_NHWC"), None)
    if ours is None or not all(node.op_type == "Transpose" for node in users):
        return
    if any(list(helper.get_attribute_value(node.attribute[0])) != [0, 3, 1, 2] for node in users):
        return
    for node in users:
        rename_tensor(model, node.output[0], ours.input[0])
        model.graph.node.remove(node)
    model.graph.node.remove(ours)


def cut_softmax(model: onnx.ModelProto, output_name: str) -> str:
    """Takes Softmax or LogSoftmax off the end: what it reads are logits.

    Returns:
        The name of the output, another one where something was cut.
    """
    last = next((node for node in model.graph.node if output_name in node.output), None)
    if last is None or last.op_type not in ("Softmax", "LogSoftmax"):
        return output_name
    logits: str = last.input[0]
    model.graph.node.remove(last)
    next(value for value in model.graph.output if value.name == output_name).name = logits
    return logits


def put_logits_last(model: onnx.ModelProto, output_name: str, rank: int, n_classes: int, batch: int | None) -> None:
    """Makes the output `logits` of shape (N, K); (N, K, 1, 1) is flattened."""
    from onnx import TensorProto, helper

    graph = model.graph
    if rank > 2:
        graph.node.append(helper.make_node("Flatten", [output_name], [OUTPUT], name="logits_flat", axis=1))
    else:
        rename_tensor(model, output_name, OUTPUT)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [batch or "batch", n_classes]))


def free_batch(model: onnx.ModelProto, batch: int) -> None:
    """Tries to make a graph of a fixed batch dynamic: the input's first dimension, and constants of reshapes.

    Whether it worked is for the caller to prove.
    """
    from onnx import helper, numpy_helper

    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    for node in model.graph.node:
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        tensor = constants[node.input[1]]
        sizes = numpy_helper.to_array(tensor).copy()
        if sizes.size and sizes[0] == batch:
            zero_copies = not any(a.name == "allowzero" and helper.get_attribute_value(a) for a in node.attribute)
            sizes[0] = 0 if -1 in sizes and zero_copies else -1
            tensor.CopyFrom(numpy_helper.from_array(sizes, tensor.name))
