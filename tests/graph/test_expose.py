"""A graph that answers with its own tensors computes what the graph computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploycnn.data import DataSet
from deploycnn.errors import ModelError
from deploycnn.graph import Runner, common_tensors, exposing, load_graph, parted, quantised_limits
from deploycnn.types import Variant


def test_every_tensor_comes_out_in_its_own_shape(lenet_graph: Variant, small_dataset: DataSet) -> None:
    model = load_graph(lenet_graph.onnx_path)
    x_NCHW = np.ascontiguousarray(small_dataset.test.images_NCHW[:5])
    tensors = common_tensors(model, model)
    assert tensors[-1].tensor == "logits"
    assert {exposed.op for exposed in tensors} >= {"Conv", "Relu", "MaxPool", "Gemm"}
    with Runner(exposing(model, tensors, own_names=True), "exposing") as runner:
        found = parted(runner.logits(x_NCHW, 5), tensors)
    with Runner(lenet_graph.onnx_path, "the graph") as runner:
        assert np.array_equal(found[-1], runner.logits(x_NCHW, 5))
    for exposed, tensor in zip(tensors, found, strict=True):
        assert tensor.shape == (5, *exposed.shape)
    pixels = found[0]
    assert np.array_equal(pixels, x_NCHW.astype(np.float32)), "the cast of the pixels is the first tensor"


def quantised() -> onnx.ModelProto:
    constants = {"s": np.array(0.5, np.float32), "z": np.array(10, np.uint8)}
    nodes = [
        helper.make_node("Cast", ["pixels"], ["x"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="q"),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="dq"),
        helper.make_node("Relu", ["xd"], ["logits"], name="relu"),
    ]
    inputs = [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()])
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def test_a_quantised_tensor_is_compared_as_its_readers_read_it() -> None:
    model = quantised()
    (x, logits) = [exposed for exposed in common_tensors(model, model) if exposed.op in ("Cast", "Relu")]
    assert (x.tensor, x.read_as) == ("x", "xd")
    assert logits.read_as == "logits"
    with Runner(exposing(model, (x,)), "exposing") as runner:
        assert runner.logits(np.array([[0, 3, 7, 255]], np.uint8), 1).tolist() == [[0, 3, 7, 122.5]], "255 is beyond its range"
    assert quantised_limits(model) == {"x": (-5.0, 122.5)}


def test_nothing_to_expose_is_an_error() -> None:
    with pytest.raises(ModelError, match="no tensor"):
        exposing(quantised(), ())
