"""fp16 and bf16: types where they belong, the same answers, and a refusal where numbers do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from deploycnn.errors import PrecisionError
from deploycnn.graph import load_graph, read_metadata
from deploycnn.precision import check_fp16_range, precision_class
from deploycnn.types import Progress, Variant

MakeVariant = Callable[..., Variant]


def silent(progress: Progress) -> None:
    pass


def make(name: str, graph: Variant, images_NCHW: np.ndarray, folder: Path) -> Variant:
    out = folder / "out"
    out.mkdir(exist_ok=True)
    return precision_class(name)().make(graph, None, images_NCHW, out, silent)


def run(path: Path, x_NCHW: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(["logits"], {"pixels": x_NCHW})[0]


def error(logits: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(logits - reference) / np.linalg.norm(reference))


def types_of(path: Path) -> dict[str, set[int]]:
    """Element types of every operator's outputs."""
    model = onnx.shape_inference.infer_shapes(load_graph(path), strict_mode=True)
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    found: dict[str, set[int]] = {}
    for node in model.graph.node:
        found.setdefault(node.op_type, set()).add(kinds[node.output[0]])
    return found


@pytest.mark.parametrize("network", ["lenet", "resnet8"])
def test_fp16_keeps_pixels_normalisation_and_logits_as_they_are(
    network: str, graph_of: Callable[[str], Variant], calibration_NCHW: np.ndarray, tmp_path: Path
) -> None:
    graph = graph_of(network)
    variant = make("fp16", graph, calibration_NCHW, tmp_path)
    types = types_of(variant.onnx_path)
    assert types["Sub"] == {TensorProto.FLOAT}
    assert types["Conv"] == types["Gemm"] == types["Relu"] == {TensorProto.FLOAT16}
    model = load_graph(variant.onnx_path)
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [
        TensorProto.UINT8,
        TensorProto.FLOAT,
    ]
    assert sum(node.op_type == "Cast" for node in model.graph.node) == 3, "pixels to float, float to half, half to logits"
    assert error(run(variant.onnx_path, calibration_NCHW), run(graph.onnx_path, calibration_NCHW)) < 2e-3
    assert variant.onnx_path.stat().st_size < 0.6 * graph.onnx_path.stat().st_size
    assert (variant.precision, variant.parent_sha256, variant.program_path) == ("fp16", graph.sha256, graph.program_path)
    assert read_metadata(variant.onnx_path).parent_sha256 == graph.sha256
    assert read_metadata(variant.onnx_path).classes == graph.classes


@pytest.mark.parametrize("network", ["lenet", "resnet8"])
def test_bf16_is_valid_onnx_and_runs_in_the_reference_evaluator(
    network: str, graph_of: Callable[[str], Variant], calibration_NCHW: np.ndarray, tmp_path: Path
) -> None:
    graph = graph_of(network)
    variant = make("bf16", graph, calibration_NCHW, tmp_path)
    types = types_of(variant.onnx_path)
    assert types["Conv"] == types["Gemm"] == {TensorProto.BFLOAT16}
    logits_NK = ReferenceEvaluator(str(variant.onnx_path)).run(None, {"pixels": calibration_NCHW[:3]})[0]
    assert error(logits_NK, run(graph.onnx_path, calibration_NCHW[:3])) < 0.05


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_same_graph_gives_the_same_bytes(name: str, lenet_graph: Variant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    first = make(name, lenet_graph, calibration_NCHW, tmp_path).sha256
    assert make(name, lenet_graph, calibration_NCHW, tmp_path).sha256 == first


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_images_are_not_needed(name: str, lenet_graph: Variant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    variant = make(name, lenet_graph, calibration_NCHW[:0], tmp_path)
    assert any("not checked" in note for note in variant.notes) == (name == "fp16")


# --- CASES P2: casts inside the network ------------------------------------------------------

to = TensorProto
CASTS = {
    "to double and back": [("Cast", {"to": to.DOUBLE}, {}), ("Cast", {"to": to.FLOAT}, {})],
    "to half and back": [("Cast", {"to": to.FLOAT16}, {}), ("Cast", {"to": to.FLOAT}, {})],
    "to float": [("Cast", {"to": to.FLOAT}, {})],
    "through integers": [("Cast", {"to": to.INT32}, {}), ("Cast", {"to": to.FLOAT}, {})],
    "resized": [("Resize", {"mode": "nearest"}, {"roi": np.zeros(0), "scales": np.array([1.0, 1.0, 2.0, 2.0])})],
    "clipped": [("Clip", {}, {"low": np.array(-1e12), "high": np.array(np.inf)})],
}


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", CASTS)
def test_nodes_that_converters_stumble_over(
    kind: str, name: str, variant_with: MakeVariant, calibration_NCHW: np.ndarray, tmp_path: Path
) -> None:
    graph = variant_with(CASTS[kind])
    variant = make(name, graph, calibration_NCHW, tmp_path)
    if name == "fp16":
        assert error(run(variant.onnx_path, calibration_NCHW), run(graph.onnx_path, calibration_NCHW)) < (
            0.1 if kind == "through integers" else 2e-3
        )
    types = types_of(variant.onnx_path)
    assert types["Conv"] == types["Gemm"] == {TensorProto.FLOAT16 if name == "fp16" else TensorProto.BFLOAT16}


def test_what_cannot_be_converted_names_the_node(variant_with: MakeVariant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    graph = variant_with()
    model = load_graph(graph.onnx_path)
    inner = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["relu_out"], ["branch"])],
        "branch",
        [],
        [onnx.helper.make_tensor_value_info("branch", TensorProto.FLOAT, ["batch", 8, 16, 16])],
    )
    always = numpy_helper.from_array(np.array(True), "always")
    model.graph.initializer.append(always)
    position = next(index for index, node in enumerate(model.graph.node) if node.name == "pool")
    choice = onnx.helper.make_node("If", ["always"], ["chosen"], name="choice", then_branch=inner, else_branch=inner)
    model.graph.node.insert(position, choice)
    model.graph.node[position + 1].input[0] = "chosen"
    model = onnx.shape_inference.infer_shapes(model)
    graph.onnx_path.write_bytes(model.SerializeToString())
    for name in ("fp16", "bf16"):
        with pytest.raises(PrecisionError, match="conversion unsupported: node choice"):
            make(name, graph, calibration_NCHW, tmp_path)


# --- CASES P1: numbers that fp16 cannot hold -------------------------------------------------

TOO_LARGE = {
    "activations": [("Mul", {}, {"up": np.array(3e4)}), ("Relu", {}, {}), ("Mul", {}, {"down": np.array(1 / 3e4)})],
    "negative activations": [("Mul", {}, {"up": np.array(-3e4)}), ("Mul", {}, {"down": np.array(-1 / 3e4)})],
    "a constant": [("Min", {}, {"limit": np.array(1e12)})],
    "an infinite constant": [("Min", {}, {"limit": np.array(np.inf)})],
    "a mask": [("Max", {}, {"limit": np.array(-3.4e38)})],
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_numbers_beyond_fp16_are_refused_by_node_with_a_remedy(
    kind: str, variant_with: MakeVariant, calibration_NCHW: np.ndarray, tmp_path: Path
) -> None:
    graph = variant_with(TOO_LARGE[kind], weight_std=0.05)
    with pytest.raises(PrecisionError) as caught:
        make("fp16", graph, calibration_NCHW, tmp_path)
    assert any(name in caught.value.asked for name in ("mul_0", "min_0", "max_0"))
    assert ("mend the model" if "infinite" in kind else "keep") in caught.value.remedy
    assert not list((tmp_path / "out").iterdir())
    if "infinite" not in kind:
        assert "bf16" in caught.value.remedy
        make("bf16", graph, calibration_NCHW, tmp_path)


def test_the_cpu_itself_shows_nothing_of_it(variant_with: MakeVariant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    """Why the graph is checked and not the output: the provider casts fp16 back to float32."""
    from deploycnn.precision._retype import normalisation_nodes, retype

    graph = variant_with(TOO_LARGE["activations"], weight_std=0.05)
    model = load_graph(graph.onnx_path)
    path = tmp_path / "unchecked.onnx"
    onnx.save(retype(model, TensorProto.FLOAT16, normalisation_nodes(model)), str(path))
    assert np.isfinite(run(path, calibration_NCHW)).all()


@pytest.mark.parametrize(
    ("middle", "kinds"),
    [
        ([], set()),
        (TOO_LARGE["activations"], {"overflow", "subnormal"}),
        (TOO_LARGE["an infinite constant"], {"nonfinite"}),
        ([("Mul", {}, {"tiny": np.array(1e-9)})], {"underflow"}),
        ([("Mul", {}, {"small": np.array(1e-6)})], {"subnormal"}),
    ],
)
def test_findings_say_what_kind_of_trouble_it_is(
    middle: list[object], kinds: set[str], variant_with: MakeVariant, calibration_NCHW: np.ndarray
) -> None:
    model = load_graph(variant_with(middle, weight_std=0.05).onnx_path)
    findings = check_fp16_range(model, calibration_NCHW, silent)
    assert kinds <= {finding.kind for finding in findings}
    assert bool(kinds) == bool(findings)
    assert all(finding.node and finding.remedy for finding in findings)


def test_a_loss_of_digits_is_a_note(variant_with: MakeVariant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    middle = [("Mul", {}, {"down": np.array(2.0**-16)}), ("Mul", {}, {"up": np.array(2.0**10)})]
    variant = make("fp16", variant_with(middle, weight_std=0.05), calibration_NCHW, tmp_path)
    assert any("digits are lost" in note and "mul_0" in note for note in variant.notes)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_variants_are_made_of_fp32_graphs_only(name: str, lenet_graph: Variant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    quantised = lenet_graph.model_copy(update={"precision": "int8"})
    with pytest.raises(PrecisionError, match="made from an fp32 graph"):
        make(name, quantised, calibration_NCHW, tmp_path)


@pytest.mark.parametrize("batch", [1, 4])
def test_graphs_of_a_fixed_batch(batch: int, variant_with: MakeVariant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    graph = variant_with(batch=batch)
    variant = make("fp16", graph, calibration_NCHW, tmp_path)
    assert variant.fixed_batch == batch
    assert error(run(variant.onnx_path, calibration_NCHW[:batch]), run(graph.onnx_path, calibration_NCHW[:batch])) < 2e-3


def test_fp32_is_the_graph_itself(lenet_graph: Variant, calibration_NCHW: np.ndarray, tmp_path: Path) -> None:
    assert make("fp32", lenet_graph, calibration_NCHW, tmp_path) == lenet_graph
    assert precision_class("fp32").exact
