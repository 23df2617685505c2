"""Users' own ONNX files become graphs with our boundary and the same answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploycnn.errors import ModelError
from deploycnn.export import adopt_graph, source_sha256
from deploycnn.graph import read_metadata
from deploycnn.types import Int8Form, Preprocessing, Variant

SHAPE_CHW = (3, 16, 16)
CLASSES = ("ant", "bee", "cat", "dog", "emu")
PREPROCESSING = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))

MakeGraph = Callable[..., onnx.ModelProto]
Save = Callable[..., Path]
Adopt = Callable[..., Variant]


@pytest.fixture
def adopt(sample_NCHW: np.ndarray, tmp_path: Path) -> Adopt:
    def adopted(path: Path, preprocessing: Preprocessing | None = PREPROCESSING, **more: object) -> Variant:
        folder = tmp_path / "adopted"
        folder.mkdir(exist_ok=True)
        arguments = {"classes": CLASSES, "shape_CHW": SHAPE_CHW, "sample_x_NCHW": sample_NCHW, **more}
        return adopt_graph(path, preprocessing, folder=folder, **arguments)

    return adopted


def run(model: Path | onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def normalised(x_NCHW: np.ndarray) -> np.ndarray:
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in (PREPROCESSING.mean, PREPROCESSING.std))
    return ((x_NCHW / 255 - mean) / std).astype(np.float32)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / max(1, np.abs(b).max()))


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"names": ("pixels", "logits")},
        {"names": ("logits", "pixels")},
        {"flatten": "reshape-copy"},
        {"opset": 11},
        {"opset": 8},
        {"opset": 20, "ir_version": 10},
        {"tail": "4d"},
        {"batch": 1},
        {"batch": 4},
        {"batch": 1, "flatten": "reshape-batch"},
        {"batch": 3, "flatten": "reshape-batch"},
        {"layout": "NHWC"},
        {"layout": "NHWC", "batch": 1},
    ],
    ids=str,
)
def test_float_graphs_take_pixels_and_answer_the_same_at_every_batch(
    kind: dict[str, object], make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray
) -> None:
    path = saved(make_graph(**kind))
    variant = adopt(path)
    assert variant.fixed_batch is None
    dynamic = make_graph(**{**kind, "batch": "N", "flatten": "Flatten"})
    x = normalised(sample_NCHW)
    reference_NK = run(dynamic, x.transpose(0, 2, 3, 1) if kind.get("layout") == "NHWC" else x).reshape(65, 5)
    for batch in (1, 3, 64, 65):
        assert relative(run(variant.onnx_path, sample_NCHW[:batch]), reference_NK[:batch]) <= 1e-4
    model = onnx.load(str(variant.onnx_path))
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["pixels", "logits"]
    assert read_metadata(variant.onnx_path).preprocessing == PREPROCESSING
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    said = " ".join(variant.notes)
    assert ("fixed at" in said) == ("batch" in kind)
    assert ("NHWC" in said) == ("layout" in kind)
    assert ("upgraded" in said) == (kind.get("opset", 17) < 13)
    if "layout" in kind:
        assert "Transpose" not in [node.op_type for node in model.graph.node], "the two transposes cancel"


def test_a_uint8_graph_normalises_itself(make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray) -> None:
    path = saved(make_graph(dtype=TensorProto.UINT8))
    assert relative(run(adopt(path, None).onnx_path, sample_NCHW), run(path, sample_NCHW)) <= 1e-4
    assert adopt(path, None).notes == ()
    variant = adopt(path, PREPROCESSING)
    assert relative(run(variant.onnx_path, sample_NCHW), run(path, sample_NCHW)) <= 1e-4
    assert any("not applied" in note and "0.49" in note for note in variant.notes)


def test_our_own_graph_comes_back_as_it_is(make_graph: MakeGraph, saved: Save, adopt: Adopt, tmp_path: Path) -> None:
    first = adopt(saved(make_graph()))
    mine = shutil.copy(first.onnx_path, tmp_path / "mine.onnx")
    again = adopt(Path(mine), None)
    assert again.sha256 == first.sha256
    assert read_metadata(again.onnx_path).preprocessing == PREPROCESSING
    other = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert any("0.49" in note and "0.5" in note for note in adopt(Path(mine), other).notes), "both recipes are shown"


def test_a_float_graph_without_preprocessing_is_refused(make_graph: MakeGraph, saved: Save, adopt: Adopt) -> None:
    with pytest.raises(ModelError, match=r"model\.mean and model\.std") as caught:
        adopt(saved(make_graph()), None)
    assert "preprocessing" in caught.value.asked


@pytest.mark.parametrize("tail", ["Softmax", "LogSoftmax"])
def test_a_final_softmax_is_cut_off_and_said_so(
    tail: str, make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray
) -> None:
    variant = adopt(saved(make_graph(tail=tail)))
    assert any("Softmax" in note for note in variant.notes)
    assert relative(run(variant.onnx_path, sample_NCHW), run(make_graph(), normalised(sample_NCHW))) <= 1e-4


# --- batches that cannot be made dynamic ----------------------------------------------------


def test_a_batch_frozen_behind_a_dynamic_input_is_found(make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray) -> None:
    """CASES M1 in a file: it promises a dynamic batch, and reshapes to 4 rows."""
    variant = adopt(saved(make_graph(flatten="reshape-batch")))
    reference_NK = run(make_graph(), normalised(sample_NCHW))
    assert variant.fixed_batch is None, "the reshape is a constant, so it can be mended"
    assert any("fixed at 4" in note for note in variant.notes)
    assert relative(run(variant.onnx_path, sample_NCHW), reference_NK) <= 1e-4


def test_what_cannot_be_made_dynamic_stays_plainly_fixed(make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray) -> None:
    model = make_graph(batch=4)
    offsets = np.arange(20, dtype=np.float32).reshape(4, 5)  # another one for every row of the batch
    model.graph.initializer.append(numpy_helper.from_array(offsets, "offsets"))
    model.graph.node[-1].output[0] = "inner"
    model.graph.node.append(helper.make_node("Add", ["inner", "offsets"], ["output"]))
    variant = adopt(saved(model))
    assert variant.fixed_batch == 4
    assert any("fixed batch 4" in note for note in variant.notes)
    assert relative(run(variant.onnx_path, sample_NCHW[:4]), run(model, normalised(sample_NCHW[:4]))) <= 1e-4


# --- files ----------------------------------------------------------------------------------


@pytest.fixture
def split(make_graph: MakeGraph, tmp_path: Path) -> Path:
    """A model whose weights lie in net.onnx.data."""
    folder = tmp_path / "split"
    folder.mkdir()
    onnx.save_model(make_graph(), str(folder / "net.onnx"), save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    assert (folder / "net.onnx.data").stat().st_size > 0
    return folder / "net.onnx"


def test_external_data_is_merged_into_one_file(
    split: Path, adopt: Adopt, make_graph: MakeGraph, sample_NCHW: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(split.parents[1])  # nothing is looked for in the working directory
    variant = adopt(split)
    split.with_name("net.onnx.data").unlink()
    assert relative(run(variant.onnx_path, sample_NCHW), run(make_graph(), normalised(sample_NCHW))) <= 1e-4
    assert [path.name for path in variant.onnx_path.parent.iterdir()] == ["graph.onnx"]


def test_a_model_renamed_together_with_its_weights_is_found_and_said_so(split: Path, adopt: Adopt) -> None:
    split.with_name("net.onnx.data").rename(split.with_name("best.onnx.data"))
    variant = adopt(split.rename(split.with_name("best.onnx")))
    assert any("net.onnx.data" in note and "best.onnx.data" in note for note in variant.notes)


@pytest.mark.parametrize("fault", ["missing", "short", "another size under the other name"])
def test_weights_that_are_not_there_are_named(fault: str, split: Path, adopt: Adopt) -> None:
    data = split.with_name("net.onnx.data")
    if fault == "missing":
        data.unlink()
    elif fault == "short":
        data.write_bytes(data.read_bytes()[:100])
    else:
        data.rename(split.with_name("best.onnx.data")).write_bytes(b"x" * 10)
        split = split.rename(split.with_name("best.onnx"))
    for use in (adopt, source_sha256):
        with pytest.raises(ModelError, match=r"net\.onnx\.data"):
            use(split)


def test_weights_outside_the_folder_are_refused(split: Path, adopt: Adopt, tmp_path: Path) -> None:
    shutil.copy(split.with_name("net.onnx.data"), tmp_path / "net.onnx.data")
    model = onnx.load(str(split), load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "../net.onnx.data"
    split.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside its folder"):
        adopt(split)


def test_the_digest_of_a_source_is_of_its_content(split: Path, tmp_path: Path) -> None:
    before = source_sha256(split)
    copy = tmp_path / "copy"
    shutil.copytree(split.parent, copy)
    assert source_sha256(copy / "net.onnx") == before
    data = split.with_name("net.onnx.data")
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert source_sha256(split) != before


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x80\x02}q\x00.", b"PK\x03\x04" + bytes(100)])
def test_other_files_are_named(content: bytes, adopt: Adopt, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx"):
        adopt(path)
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        adopt(path)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ({"ir_version": 99}, "IR version 99"),
        ({"opset": 3, "ir_version": 3}, "opset 3"),
        ({"opset": 99, "ir_version": 10}, "opset 99"),
    ],
)
def test_versions_that_this_runtime_cannot_read(kind: dict[str, int], found: str, make_graph: MakeGraph, saved: Save, adopt: Adopt) -> None:
    with pytest.raises(ModelError) as caught:
        adopt(saved(make_graph(**kind)))
    assert found in caught.value.asked
    assert "this runtime supports" in caught.value.found
    assert "up to" in caught.value.found
    assert "export it again" in caught.value.remedy


# --- interfaces -----------------------------------------------------------------------------


def with_second(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    if kind == "input":
        model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["N", 1]))
        model.graph.node.append(helper.make_node("Identity", ["mask"], ["unused"]))
    else:
        model.graph.output.append(helper.make_tensor_value_info("relu", TensorProto.FLOAT, ["N", 8, 16, 16]))
    return model


@pytest.mark.parametrize(("kind", "name"), [("input", "mask"), ("output", "relu")])
def test_several_inputs_or_outputs_are_refused_by_name(kind: str, name: str, make_graph: MakeGraph, saved: Save, adopt: Adopt) -> None:
    with pytest.raises(ModelError, match=f"2 {kind}s") as caught:
        adopt(saved(with_second(make_graph(), kind)))
    assert name in caught.value.found


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"n_classes": 10}, ("gives 10 logits", "5 classes", "ant")),
        ({"size": 32}, ("?x3x32x32", "3x16x16", "data.size")),
        ({"dtype": TensorProto.FLOAT16}, ("FLOAT16", "input")),
        ({"tail": "ArgMax"}, ("INT64", "ArgMax")),
    ],
    ids=["classes", "size", "half", "argmax"],
)
def test_graphs_that_do_not_fit(kind: dict[str, object], words: tuple[str, ...], make_graph: MakeGraph, saved: Save, adopt: Adopt) -> None:
    with pytest.raises(ModelError) as caught:
        adopt(saved(make_graph(**kind)))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_batch_normalisation_and_constants_of_other_exporters_are_folded(
    make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray
) -> None:
    model = make_graph()
    rng = np.random.default_rng(2)
    for name, values in (
        ("s", rng.uniform(0.5, 2, 8)),
        ("o", rng.normal(size=8)),
        ("m", rng.normal(size=8)),
        ("v", rng.uniform(0.5, 2, 8)),
    ):
        constant = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values.astype(np.float32)))
        model.graph.node.insert(0, constant)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    conv.output[0] = "raw"
    model.graph.node.insert(list(model.graph.node).index(conv) + 1, helper.make_node("BatchNormalization", ["raw", *"somv"], ["conv"]))
    variant = adopt(saved(model))
    ops = [node.op_type for node in onnx.load(str(variant.onnx_path)).graph.node]
    assert ops == ["Cast", "Sub", "Conv", "Relu", "MaxPool", "Flatten", "Gemm"]
    assert relative(run(variant.onnx_path, sample_NCHW), run(model, normalised(sample_NCHW))) <= 1e-4


# --- files that are not float32 --------------------------------------------------------------


def with_half_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights stored in half precision, cast to float where they are used."""
    for tensor in list(model.graph.initializer):
        half = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), f"{tensor.name}_half")
        model.graph.initializer.remove(tensor)
        model.graph.initializer.append(half)
        model.graph.node.insert(0, helper.make_node("Cast", [half.name], [tensor.name], to=TensorProto.FLOAT))
    return model


def with_quantisation(model: onnx.ModelProto, dtype: type, zero: int) -> onnx.ModelProto:
    """Q/DQ in front of the convolution and int8 weights behind a DQ, with Constant nodes as some exporters write them."""
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    position = list(model.graph.node).index(conv)
    w1 = next(tensor for tensor in model.graph.initializer if tensor.name == "w1")
    weight = np.clip(np.round(numpy_helper.to_array(w1) / 0.01), -127, 127).astype(np.int8)
    model.graph.initializer.remove(w1)
    constants = {"s": np.array(0.02, np.float32), "z": np.array(zero, dtype), "ws": np.array(0.01, np.float32), "wz": np.array(0, np.int8)}
    model.graph.initializer.append(numpy_helper.from_array(weight, "w1q"))
    nodes = [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values)) for name, values in constants.items()]
    nodes += [
        helper.make_node("QuantizeLinear", [conv.input[0], "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w1q", "ws", "wz"], ["w1d"]),
    ]
    conv.input[0], conv.input[1] = "xd", "w1d"
    for node in reversed(nodes):
        model.graph.node.insert(position, node)
    return model


@pytest.mark.parametrize(
    ("dtype", "zero", "form"),
    [(np.int8, 0, Int8Form.SYMMETRIC_S8), (np.int8, 5, Int8Form.CPU_S8S8), (np.uint8, 120, Int8Form.CPU_U8S8)],
)
def test_quantised_files_stay_quantised_and_say_so(
    dtype: type, zero: int, form: Int8Form, make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray
) -> None:
    model = with_quantisation(make_graph(), dtype, zero)
    variant = adopt(saved(model))
    assert (variant.precision, variant.int8_form) == ("int8", form)
    ops = [node.op_type for node in onnx.load(str(variant.onnx_path)).graph.node]
    assert ops.count("QuantizeLinear") == 1
    assert ops.count("DequantizeLinear") == 2
    # A pixel on the edge between two steps may round to the other side: the normalisation is another rounding.
    assert relative(run(variant.onnx_path, sample_NCHW), run(model, normalised(sample_NCHW))) <= 0.02


def test_half_precision_weights_are_not_called_fp32(make_graph: MakeGraph, saved: Save, adopt: Adopt, sample_NCHW: np.ndarray) -> None:
    model = with_half_weights(make_graph())
    variant = adopt(saved(model))
    assert relative(run(variant.onnx_path, sample_NCHW), run(model, normalised(sample_NCHW))) <= 1e-4
    weights = {tensor.data_type for tensor in onnx.load(str(variant.onnx_path)).graph.initializer if len(tensor.dims) > 1}
    assert variant.precision == ("fp32" if weights == {TensorProto.FLOAT} else "fp16")
