"""The fp32 reference of a user's own Q/DQ file: rounded weights, activations that are not rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from deploycnn.data import DataSet
from deploycnn.errors import ModelError
from deploycnn.export import float_graph
from deploycnn.graph import Runner, graph_facts, load_graph, read_metadata, save_graph
from deploycnn.precision import precision_class
from deploycnn.recipe import CalibrateOptions
from deploycnn.types import Int8Form, Progress, Variant


def silent(progress: Progress) -> None:
    pass


@pytest.fixture(params=[Int8Form.CPU_U8S8_REDUCED, Int8Form.SYMMETRIC_S8, Int8Form.CPU_S8S8])
def quantised(request: pytest.FixtureRequest, lenet_graph: Variant, small_dataset: DataSet, tmp_path: Path) -> Variant:
    images_NCHW = np.ascontiguousarray(small_dataset.train.images_NCHW[:64])
    return precision_class("int8")(CalibrateOptions()).make(lenet_graph, request.param, images_NCHW, tmp_path, silent)


@pytest.fixture
def sample_NCHW(small_dataset: DataSet) -> np.ndarray:
    return np.ascontiguousarray(small_dataset.test.images_NCHW[:32])


def logits(path: Path, x_NCHW: np.ndarray) -> np.ndarray:
    with Runner(path, "a test's graph") as runner:
        return runner.logits(x_NCHW, len(x_NCHW))


def test_no_pair_is_left_and_what_differs_is_the_rounding(
    quantised: Variant, lenet_graph: Variant, sample_NCHW: np.ndarray, tmp_path: Path
) -> None:
    found = float_graph(quantised, sample_NCHW, tmp_path)
    model = load_graph(found.onnx_path)
    assert not [node.op_type for node in model.graph.node if "Quantize" in node.op_type]
    assert (found.precision, found.int8_form, read_metadata(found.onnx_path).precision) == ("fp32", None, "fp32")
    assert any("relative logit error" in note for note in found.notes)
    assert graph_facts(found.onnx_path).macs == graph_facts(lenet_graph.onnx_path).macs
    original, mine = logits(lenet_graph.onnx_path, sample_NCHW), logits(found.onnx_path, sample_NCHW)
    error = np.linalg.norm(mine - original) / np.linalg.norm(original)
    assert 0 < error < 0.05, "the weights are the rounded ones, and a ReLU that the quantiser left to the 8-bit range is there again"


def test_weights_are_scale_times_what_is_in_the_file(quantised: Variant, sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    source = load_graph(quantised.onnx_path)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    pairs = [node for node in source.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in constants]
    weight = next(node for node in pairs if constants[node.input[0]].ndim == 4)
    scale = constants[weight.input[1]]
    expected = constants[weight.input[0]].astype(np.float32) * scale.reshape(-1, 1, 1, 1)
    found = load_graph(float_graph(quantised, sample_NCHW, tmp_path).onnx_path)
    first = [numpy_helper.to_array(tensor) for tensor in found.graph.initializer if tuple(tensor.dims) == expected.shape]
    assert any(np.allclose(values, expected, rtol=1e-6) for values in first)


def edited(quantised: Variant, change: object, folder: Path) -> Variant:
    model = load_graph(quantised.onnx_path)
    change(model)  # type: ignore[operator]
    path = folder / "edited.onnx"
    return quantised.model_copy(update={"onnx_path": path, "sha256": save_graph(model, path)})


def test_integer_operators_hold_no_reference_and_are_named(quantised: Variant, sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    def integer(model: onnx.ModelProto) -> None:
        zero = numpy_helper.from_array(np.zeros((1, 1), np.uint8), "no_pixels")
        model.graph.initializer.append(zero)
        model.graph.node.append(helper.make_node("MatMulInteger", ["no_pixels", "no_pixels"], ["c"], name="products"))

    with pytest.raises(ModelError, match="MatMulInteger 'products'"):
        float_graph(edited(quantised, integer, tmp_path), sample_NCHW, tmp_path)


def test_a_scale_that_is_computed_is_named(quantised: Variant, sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    def computed(model: onnx.ModelProto) -> None:
        weight = {tensor.name for tensor in model.graph.initializer}
        node = next(node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in weight)
        place = list(model.graph.node).index(node)
        model.graph.node.insert(place, helper.make_node("Identity", [node.input[1]], ["computed"], name="compute"))
        model.graph.node[place + 1].input[1] = "computed"

    with pytest.raises(ModelError, match="is computed while the graph runs"):
        float_graph(edited(quantised, computed, tmp_path), sample_NCHW, tmp_path)
