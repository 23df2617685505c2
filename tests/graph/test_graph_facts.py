"""What graphs cost, what they say about themselves, and files that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploycnn.errors import ExportError, ModelError
from deploycnn.graph import (
    GraphMetadata,
    Runner,
    describe_quantisation,
    form_of,
    graph_facts,
    load_graph,
    padded_batches,
    read_metadata,
    runtime_limits,
    save_graph,
    write_metadata,
)
from deploycnn.types import Int8Form, Preprocessing, Variant


@pytest.mark.parametrize(
    ("network", "macs", "parameters", "count"),
    # Parameters of ResNet-8 as in its source, less the BatchNorm ones that are folded away.
    [("lenet", 651_720, 62_006, 5), ("resnet8", 12_501_632, 77_706, 10)],
)
def test_costs_of_known_networks(network: str, macs: int, parameters: int, count: int, graph_of: Callable[[str], Variant]) -> None:
    facts = graph_facts(graph_of(network).onnx_path)
    assert (facts.macs, facts.flops, facts.parameters, len(facts.weighted_ops)) == (macs, 2 * macs, parameters, count)
    assert sum(op.macs for op in facts.weighted_ops) == macs
    assert {op.op for op in facts.weighted_ops} == {"Conv", "Gemm"}
    assert facts.quantised_macs_share == 0
    assert 4 * parameters <= facts.weight_bytes < 4 * parameters + 200
    assert facts.peak_activation_bytes < facts.activation_bytes


def one_node(op: str, shape: list[int | str], weight: tuple[int, ...], batch_out: list[int | str], **attributes: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="product", **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, batch_out)],
        [numpy_helper.from_array(np.ones(weight, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("batch", ["N", 1, 8])
@pytest.mark.parametrize(
    ("op", "shape", "weight", "attributes", "macs"),
    [
        ("Conv", (8, 10, 10), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}, 16 * 100 * 8 * 9),
        ("Conv", (8, 10, 10), (16, 8, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, 16 * 25 * 8 * 9),
        ("Conv", (8, 10, 10), (8, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 8}, 8 * 100 * 9),
        ("ConvTranspose", (8, 5, 5), (8, 4, 2, 2), {"strides": [2, 2]}, 8 * 25 * 4 * 4),
        ("Gemm", (20,), (20, 7), {}, 140),
        ("Gemm", (20,), (7, 20), {"transB": 1}, 140),
        ("MatMul", (20,), (20, 7), {}, 140),
    ],
)
def test_multiply_adds_by_hand(
    batch: int | str, op: str, shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, object], macs: int
) -> None:
    model = one_node(op, [batch, *shape], weight, [batch] if len(shape) == 1 else [batch, "a", "b", "c"], **attributes)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    facts = graph_facts(model)
    assert (facts.macs, facts.parameters) == (macs, int(np.prod(weight)))
    assert facts.weighted_ops[0].name == "product"


def test_graphs_whose_shapes_do_not_fit_are_named() -> None:
    with pytest.raises(ModelError, match="shapes do not fit"):
        graph_facts(one_node("Gemm", ["N", 21], (20, 7), ["N", 7]))


def test_metadata_comes_back(tmp_path: Path) -> None:
    model = one_node("Gemm", ["N", 20], (20, 7), ["N", 7])
    facts = GraphMetadata(
        version="1.2",
        classes=("Ärger", "a,b", 'quote"'),
        preprocessing=Preprocessing(mean=(0.1, 0.2), std=(1 / 3, 1e-7)),
        precision="fp16",
        parent_sha256="ab",
        others={"data": "cifar10"},
    )
    write_metadata(model, facts)
    write_metadata(model, facts)  # replaces, never adds
    save_graph(model, tmp_path / "a.onnx")
    assert read_metadata(tmp_path / "a.onnx") == facts


@pytest.mark.parametrize("value", ["", "{}", "[1]", "not json", '{"mean": [0.1]}'])
def test_damaged_metadata_reads_as_absent(value: str) -> None:
    model = one_node("Gemm", ["N", 20], (20, 7), ["N", 7])
    for key in ("classes", "preprocessing"):
        model.metadata_props.add(key=f"deploycnn.{key}", value=value)
    assert (read_metadata(model).classes, read_metadata(model).preprocessing) == ((), None)


@pytest.mark.parametrize("content", [b"", b"text", b"\x08\x0a"])
def test_files_that_hold_no_graph(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"x\.onnx"):
        load_graph(path)


def test_invalid_graphs_are_not_written(tmp_path: Path) -> None:
    model = one_node("Gemm", ["N", 20], (20, 7), ["N", 7])
    model.graph.node[0].input[1] = "nowhere"
    with pytest.raises(ExportError, match="not valid ONNX"):
        save_graph(model, tmp_path / "a.onnx", ExportError)
    assert not list(tmp_path.iterdir())


@given(count=st.integers(0, 40), batch=st.integers(1, 9))
def test_padded_batches_have_one_size_and_lose_nothing(count: int, batch: int) -> None:
    images = np.arange(count * 2).reshape(count, 2)
    parts = list(padded_batches(images, batch))
    assert all(len(part) == batch and 1 <= real <= batch for part, real in parts)
    kept = [part[:real] for part, real in parts]
    assert np.array_equal(np.concatenate(kept) if kept else images, images)


def test_the_runtime_says_what_it_reads() -> None:
    newest_ir, newest_opset = runtime_limits()
    assert newest_ir >= 10
    assert newest_opset >= 20
    model = one_node("Gemm", ["N", 20], (20, 7), ["N", 7])
    model.opset_import[0].version = newest_opset + 1
    with pytest.raises(ModelError, match="cannot load the model"):
        Runner(model, "the model")


def test_running_names_the_graph_and_the_batch() -> None:
    with Runner(one_node("Gemm", [4, 20], (20, 7), [4, 7]), "the user's graph") as runner:
        assert runner.run(np.ones((4, 20), np.float32))[0].shape == (4, 7)
        with pytest.raises(ModelError, match="the user's graph with a batch of 3"):
            runner.run(np.ones((3, 20), np.float32))


def quantised(dtype: type, zero: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dequantise"),
    ]
    constants = [numpy_helper.from_array(np.array(0.1, np.float32), "s"), numpy_helper.from_array(np.array(zero, dtype), "z")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    return helper.make_model(helper.make_graph(nodes, "q", [x], [y], constants), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(
    ("dtype", "zero", "symmetric", "form"),
    [
        (np.int8, 0, True, Int8Form.SYMMETRIC_S8),
        (np.int8, 3, False, Int8Form.CPU_S8S8),
        (np.uint8, 0, True, Int8Form.CPU_U8S8),
        (np.uint8, 128, False, Int8Form.CPU_U8S8),
    ],
)
def test_quantisation_is_described(dtype: type, zero: int, symmetric: bool, form: Int8Form) -> None:
    tensors = describe_quantisation(quantised(dtype, zero))
    assert [(t.name, t.node, t.dtype, t.symmetric, t.per_channel, t.is_constant) for t in tensors] == [
        ("x", "quantise", np.dtype(dtype).name, symmetric, False, False),
        ("q", "dequantise", np.dtype(dtype).name, symmetric, False, False),
    ]
    assert form_of(tensors) == form
    assert form_of(describe_quantisation(one_node("Gemm", ["N", 20], (20, 7), ["N", 7]))) is None
