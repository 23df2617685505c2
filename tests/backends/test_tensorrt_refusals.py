"""What TensorRT cannot hold is said before anything is built: by precision and target, by tensor and node, by operator."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploycnn.backends import create
from deploycnn.backends.tensorrt import TensorRTBackend, libraries
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.environment import Gpu
from deploycnn.errors import ModelError, RecipeError, Unavailable, Unsupported
from deploycnn.types import CompileRequest, Int8Form, Target, TensorSpec, Variant

pytest.importorskip("tensorrt_rtx")

SM89 = Target.parse("cuda:sm89")
ADA = Gpu(name="an Ada GPU", capability=89, memory_bytes=1)
HOPPER = Gpu(name="a Hopper GPU", capability=90, memory_bytes=1)
WRONG = "another input"


def saved(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], opset: int = 20) -> Variant:
    """A graph pixels (N, 3, 8, 8) float32 -> logits."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return Variant(
        precision="int8",
        onnx_path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        input=TensorSpec(name="pixels", dtype="float32", shape_CHW=(3, 8, 8)),
        output_name="logits",
        classes=("a", "b", "c", "d"),
    )


def quantised(path: Path, *, zero: np.ndarray | None = None, weight_zero: int = 0, bias: bool = False, node: bool = False) -> Variant:
    """One convolution between Q/DQ. `node`: the zero point is the output of a Constant node, not an initialiser."""
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "x_scale": np.float32(0.1),
        "w_q": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        "w_scale": np.full(4, 0.01, np.float32),
        "w_zero": np.array([0, weight_zero, 0, 0], np.int8),
    }
    nodes = []
    zeros = [] if zero is None else ["x_zero"]
    if zero is not None and node:
        nodes.append(helper.make_node("Constant", [], ["x_zero"], value=numpy_helper.from_array(zero)))
    elif zero is not None:
        constants["x_zero"] = zero
    nodes += [
        helper.make_node("QuantizeLinear", ["pixels", "x_scale", *zeros], ["x_q"], name="x_quantize"),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", *zeros], ["x"], name="x_dequantize"),
        helper.make_node("DequantizeLinear", ["w_q", "w_scale", "w_zero"], ["w"], name="w_dequantize", axis=0),
    ]
    inputs = ["x", "w"]
    if bias:
        constants |= {"b_q": np.arange(4, dtype=np.int32), "b_scale": np.full(4, 0.001, np.float32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b_q", "b_scale"], ["b"], name="b_dequantize", axis=0))
        inputs.append("b")
    nodes.append(helper.make_node("Conv", inputs, ["logits"], name="conv"))
    return saved(path, nodes, constants)


def compiled(variant: Variant, folder: Path, target: Target = SM89, **options: object) -> object:
    out = folder / "out"
    out.mkdir(exist_ok=True)
    request = CompileRequest(variant=variant, target=target, batches=(1, 4), folder=out, cache_folder=folder)
    return TensorRTBackend(TensorRTOptions.model_validate(options)).compile(request, lambda step: None)


# --- by precision and target, before there is a file ----------------------------------------


@pytest.mark.parametrize(
    ("precision", "target", "reason"),
    [
        ("fp32", "cpu", "NVIDIA GPUs only"),
        ("fp32", "cuda:sm75", "no fp32 matrix product on sm75"),
        ("int8", "cuda:sm75", "no fp32 matrix product"),
        ("int8+fp16", "cuda:sm75", "computes int8 convolutions in fp16 on sm75"),
        ("int8-auto", "cuda:sm75", "no fp32 matrix product"),
        ("bf16", "cuda:sm75", "sm75 has no bf16"),
        ("int8+bf16", "cuda:sm75", "sm75 has no bf16"),
        ("fp8", "cuda:sm80", "sm80 has no fp8"),
        ("fp8", "cuda:sm86", "sm86 has no fp8"),
        ("fp16", "cuda:sm90", "sm90 needs full TensorRT"),
        ("fp32", "cuda:sm100", "sm100 needs full TensorRT"),
        ("fp16", "cuda:sm70", "sm70 needs full TensorRT"),
    ],
)
def test_a_capability_that_cannot_hold_a_precision_is_skipped_with_the_reason(precision: str, target: str, reason: str) -> None:
    skipped = TensorRTBackend().refuses(precision, Target.parse(target))
    assert skipped is not None
    assert reason in skipped.reason
    assert skipped.remedy


@pytest.mark.parametrize(
    ("precision", "target"),
    [
        ("fp16", "cuda:sm75"),
        ("int8+fp16", "cuda:sm80"),
        ("fp32", "cuda:sm80"),
        ("bf16", "cuda:sm86"),
        ("int8", "cuda:sm89"),
        ("fp8", "cuda:sm89"),
        ("fp32", "cuda:sm120"),
    ],
)
def test_what_may_work_is_not_refused(precision: str, target: str) -> None:
    assert TensorRTBackend().refuses(precision, Target.parse(target)) is None


def test_full_tensorrt_is_not_refused_what_only_rtx_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full TensorRT cannot be installed here: a stand-in binding without ComputeCapability takes its place."""
    real = libraries.find_library

    def with_full(name: str) -> libraries.Library | str:
        if name == "tensorrt":
            return libraries.Library(name="tensorrt", module=type("Binding", (), {"__version__": "11.4"}))
        return real(name)

    monkeypatch.setattr(libraries, "find_library", with_full)
    turing = Gpu(name="a Turing GPU", capability=75, memory_bytes=1)
    assert libraries.refusal("auto", "fp32", Target.parse("cuda:sm75"), (turing,)) is None
    assert libraries.refusal("auto", "fp16", Target.parse("cuda"), (HOPPER,)) is None
    assert libraries.refusal("auto", "bf16", Target.parse("cuda"), (turing,)) is not None
    chosen = libraries.choose("auto", Target.parse("cuda"), (HOPPER,))
    assert (chosen.library.name, chosen.capability, chosen.here) == ("tensorrt", 90, True)
    elsewhere = libraries.choose("auto", SM89, (HOPPER,))
    assert (elsewhere.library.name, elsewhere.here) == ("tensorrt_rtx", False)
    with pytest.raises(Unavailable, match="builds only for the GPU it runs on"):
        libraries.choose("tensorrt", SM89, (HOPPER,))


def test_plain_cuda_takes_the_gpu_that_is_here() -> None:
    chosen = libraries.choose("auto", Target.parse("cuda"), (ADA, HOPPER))
    assert (chosen.library.name, chosen.capability, chosen.here) == ("tensorrt_rtx", 89, True)
    with pytest.raises(Unavailable, match="no TensorRT here builds for sm90"):
        libraries.choose("tensorrt_rtx", Target.parse("cuda"), (HOPPER,))
    with pytest.raises(Unavailable, match="no driver at all") as caught:
        libraries.choose("auto", Target.parse("cuda"), (), "no driver at all")
    assert "cuda:sm89" in caught.value.remedy


def test_probe_says_what_can_be_done_and_why_not_more() -> None:
    backend = TensorRTBackend()
    ready = backend.probe(SM89)
    assert ready.state in ("build-only", "ready")
    assert "TensorRT" in ready.version
    assert backend.probe(Target.parse("cpu")).state == "unavailable"
    missing = TensorRTBackend(TensorRTOptions(library="tensorrt"))
    if isinstance(libraries.find_library("tensorrt"), str):
        answer = missing.probe(SM89)
        assert answer.state == "unavailable"
        assert "not installed" in answer.reason
    assert backend.int8_form(SM89) == Int8Form.SYMMETRIC_S8


def test_a_library_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.11: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    libraries.find_library.cache_clear()
    try:
        answer = TensorRTBackend(TensorRTOptions(library="tensorrt")).probe(SM89)
    finally:
        libraries.find_library.cache_clear()
    assert answer.state == "unavailable"
    assert "libnvinfer.so.11" in answer.reason


# --- by tensor and node ---------------------------------------------------------------------


@pytest.mark.parametrize("node", [False, True], ids=["initialiser", "constant node"])
@pytest.mark.parametrize(
    ("zero", "found"),
    [
        (np.int8(3), "zero point 3"),
        (np.int8(-128), "zero point -128"),
        (np.uint8(128), "uint8"),
        (np.uint8(0), "uint8"),
        (np.int16(0), "int16"),
        (np.uint16(0), "uint16"),
    ],
)
def test_an_asymmetric_or_foreign_activation_type_is_refused_by_tensor_and_node(
    tmp_path: Path, zero: np.ndarray, found: str, node: bool
) -> None:
    with pytest.raises(Unsupported) as caught:
        compiled(quantised(tmp_path / "m.onnx", zero=np.asarray(zero), node=node), tmp_path)
    assert "x_zero" in caught.value.asked
    assert "x_quantize" in caught.value.asked
    assert found in caught.value.found
    assert "symmetric int8" in caught.value.remedy


def test_a_left_out_zero_point_is_uint8_and_is_refused(tmp_path: Path) -> None:
    """TensorRT builds it as int8 without a word: a silently wrong number."""
    with pytest.raises(Unsupported, match="x_q") as caught:
        compiled(quantised(tmp_path / "m.onnx", zero=None), tmp_path)
    assert "uint8" in caught.value.found


def test_one_weight_channel_off_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="w_zero") as caught:
        compiled(quantised(tmp_path / "m.onnx", zero=np.asarray(np.int8(0)), weight_zero=1), tmp_path)
    assert "w_dequantize" in caught.value.asked


def test_a_quantised_bias_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="b_q") as caught:
        compiled(quantised(tmp_path / "m.onnx", zero=np.asarray(np.int8(0)), bias=True), tmp_path)
    assert "b_dequantize" in caught.value.asked
    assert "QuantizeBias=False" in caught.value.remedy


@pytest.mark.parametrize("node", [False, True], ids=["initialiser", "constant node"])
def test_symmetric_int8_builds(tmp_path: Path, node: bool) -> None:
    result = compiled(quantised(tmp_path / "m.onnx", zero=np.asarray(np.int8(0)), node=node), tmp_path)
    assert [layer.precision for layer in result.evidence.layers] == ["int8"]


# --- by operator ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "extra"),
    [
        ("QLinearConv", ["s", "z", "w", "s", "z", "s", "z"]),
        ("ConvInteger", ["w"]),
        ("MatMulInteger", ["w"]),
        ("DynamicQuantizeLinear", []),
        ("Det", []),
        ("Unique", []),
        ("NoSuchThing", []),
    ],
)
def test_an_operator_that_tensorrt_lacks_is_refused_by_node(tmp_path: Path, op: str, extra: list[str]) -> None:
    constants = {"w": np.ones((4, 3, 3, 3), np.int8), "s": np.float32(1), "z": np.int8(0)}
    nodes = [
        helper.make_node("Relu", ["pixels"], ["positive"], name="first"),
        helper.make_node(op, ["positive", *extra], ["strange"], name="culprit"),
        helper.make_node("Identity", ["strange"], ["logits"], name="last"),
    ]
    with pytest.raises(Unsupported) as caught:
        compiled(saved(tmp_path / "m.onnx", nodes, constants), tmp_path)
    assert op in caught.value.asked
    assert "culprit" in caught.value.asked
    assert "m.onnx" in caught.value.asked


def test_an_operator_in_a_foreign_domain_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("FusedConv", ["pixels"], ["logits"], name="culprit", domain="com.microsoft")]
    with pytest.raises(Unsupported, match=r"com\.microsoft"):
        compiled(saved(tmp_path / "m.onnx", nodes, {}), tmp_path)


def test_mixed_types_are_refused_with_the_node_and_without_driver_noise(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["pixels"], ["half"], name="cast", to=TensorProto.FLOAT16),
        helper.make_node("Add", ["half", "one"], ["logits"], name="culprit"),
    ]
    with pytest.raises(Unsupported, match="culprit") as caught:
        compiled(saved(tmp_path / "m.onnx", nodes, {"one": np.ones(1, np.float32)}), tmp_path)
    assert "same input types" in caught.value.found
    assert "cudaError" not in caught.value.found
    assert "precision from the file" in caught.value.remedy


def test_a_builder_message_is_translated(tmp_path: Path) -> None:
    """`refuses` stops this before; a caller that did not ask gets the builder's word for it."""
    nodes = [helper.make_node("MatMul", ["pixels", "w"], ["logits"], name="product")]
    variant = saved(tmp_path / "m.onnx", nodes, {"w": np.ones((8, 4), np.float32)})
    with pytest.raises(Unsupported, match="fp32 matrix product") as caught:
        compiled(variant, tmp_path, Target.parse("cuda:sm75"))
    assert "product" in caught.value.found
    assert "/_src/" not in caught.value.found


def test_a_damaged_onnx_file_is_an_error_of_the_model(tmp_path: Path) -> None:
    variant = quantised(tmp_path / "m.onnx", zero=np.asarray(np.int8(0)))
    variant.onnx_path.write_bytes(variant.onnx_path.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"m\.onnx"):
        compiled(variant, tmp_path)


def test_another_input_than_the_variant_says_is_refused(tmp_path: Path) -> None:
    variant = quantised(tmp_path / "m.onnx", zero=np.asarray(np.int8(0)))
    renamed = variant.model_copy(update={"input": variant.input.model_copy(update={"name": WRONG})})
    with pytest.raises(Unsupported, match="other inputs") as caught:
        compiled(renamed, tmp_path)
    assert WRONG in caught.value.found


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"min_batch": 8, "max_batch": 4}, {"opt_batch": 64, "max_batch": 32}, {"min_batch": 4, "opt_batch": 2}]
)
def test_a_profile_out_of_order_is_an_error_of_the_recipe(options: dict[str, int]) -> None:
    with pytest.raises(RecipeError, match="min_batch <= opt_batch <= max_batch"):
        create("tensorrt", options)


def test_an_option_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="workspace_mb"):
        create("tensorrt", {"workspace_gb": 1})
