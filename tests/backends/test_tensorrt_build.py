"""Real engines, built here without a GPU by TensorRT for RTX, and what their own text proves about precision."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deploycnn.backends.tensorrt as backend_module
from deploycnn.backends.tensorrt import TensorRTBackend, libraries, messages
from deploycnn.backends.tensorrt import plan as plan_file
from deploycnn.backends.tensorrt.build import batch_profile
from deploycnn.backends.tensorrt.evidence import from_plan
from deploycnn.backends.tensorrt.graph_checks import MatrixNode
from deploycnn.backends.tensorrt.libraries import Library
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.data import DataSet
from deploycnn.environment import Gpu, environment
from deploycnn.errors import Unsupported
from deploycnn.graph import graph_facts
from deploycnn.precision import precision_classes
from deploycnn.types import Compiled, CompileRequest, Int8Form, Target, TensorSpec, Variant
from deploycnn.validate.evidence import check_evidence
from deploycnn.workers import Worker

tensorrt_rtx = pytest.importorskip("tensorrt_rtx")

SM89 = Target.parse("cuda:sm89")
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int8+fp16")
PRODUCTS = {"lenet": {"Conv": 2, "Gemm": 3}, "resnet8": {"Conv": 9, "Gemm": 1}}
WANTED = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "int8+fp16": "int8"}

Compile = Callable[..., tuple[Compiled, bytes]]


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    """Compiles a variant and gives what the backend says, and the engine's bytes."""

    def make(variant: Variant, target: Target = SM89, batches: tuple[int, ...] = (1, 32), **options: object) -> tuple[Compiled, bytes]:
        folder = tmp_path / f"engine-{len(list(tmp_path.glob('engine-*')))}"
        folder.mkdir()
        request = CompileRequest(variant=variant, target=target, batches=batches, folder=folder, cache_folder=tmp_path / "cache")
        result = TensorRTBackend(TensorRTOptions.model_validate(options)).compile(request, lambda step: None)
        (name,) = result.files
        return result, (folder / name).read_bytes()

    return make


# --- the networks that ship, in every precision ---------------------------------------------


@pytest.fixture(params=sorted(PRODUCTS))
def network(request: pytest.FixtureRequest, graph_of: Callable[[str], Variant]) -> tuple[str, Variant]:
    return request.param, graph_of(request.param)


@pytest.fixture
def variant_of(small_dataset: DataSet, tmp_path: Path) -> Callable[[Variant, str], Variant]:
    """A graph at a precision, as a run makes it."""

    def make(graph: Variant, precision: str) -> Variant:
        folder = tmp_path / precision
        folder.mkdir()
        form = Int8Form.SYMMETRIC_S8 if precision.startswith("int8") else None
        images_NCHW = np.ascontiguousarray(small_dataset.train.images_NCHW[:64])
        return precision_classes()[precision]().make(graph, form, images_NCHW, folder, lambda step: None)

    return make


def quantised(variant: Variant, folder: Path, leave: tuple[str, ...]) -> Variant:
    """The int8 form of a user's own file, by ONNX Runtime. `leave`: nodes that stay in float."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.batches = iter([{"pixels": rng.integers(0, 256, (16, 3, 32, 32), dtype=np.uint8)}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    prepared, path = folder / "prepared.onnx", folder / "int8.onnx"
    quant_pre_process(variant.onnx_path, prepared, skip_symbolic_shape=True)
    quantization.quantize_static(
        prepared,
        path,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["Conv", "Gemm"],
        nodes_to_exclude=list(leave),
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "OpTypesToExcludeOutputQuantization": ["Conv", "Gemm"],
        },
    )
    return variant.model_copy(update={"precision": "int8", "onnx_path": path})


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_product_of_a_shipped_network_is_proved_in_its_precision(
    network: tuple[str, Variant], precision: str, compiled: Compile, variant_of: Callable[[Variant, str], Variant]
) -> None:
    name, graph = network
    variant = variant_of(graph, precision)
    result, plan = compiled(variant)
    evidence = result.evidence
    assert evidence is not None
    counts = {op: sum(layer.op == op for layer in evidence.layers) for op in ("Conv", "Gemm")}
    assert counts == PRODUCTS[name]
    assert {layer.precision for layer in evidence.layers} == {WANTED[precision]}
    verdict = check_evidence(evidence, precision, SM89, len(graph_facts(variant.onnx_path).weighted_ops))
    assert verdict.state == "pass", verdict.reason
    header = plan_file.read_header(plan)
    assert header is not None
    assert (header.size_bytes, header.version, header.capabilities) == (len(plan), tensorrt_rtx.__version__, (89,))


@pytest.mark.slow
def test_an_int8_engine_with_one_float_product_fails_by_name(network: tuple[str, Variant], compiled: Compile, tmp_path: Path) -> None:
    _, graph = network
    left = [op.name for op in graph_facts(graph.onnx_path).weighted_ops if op.op == "Conv"][1]
    variant = quantised(graph, tmp_path, leave=(left,))
    evidence = compiled(variant)[0].evidence
    assert {layer.name: layer.precision for layer in evidence.layers if layer.precision != "int8"} == {left: "float32"}
    verdict = check_evidence(evidence, "int8", SM89, len(graph_facts(variant.onnx_path).weighted_ops))
    assert verdict.state == "fail"
    assert left in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 86, 120, 121])
def test_other_capabilities_build_and_prove_int8_with_fp16(
    network: tuple[str, Variant], capability: int, compiled: Compile, variant_of: Callable[[Variant, str], Variant]
) -> None:
    name, graph = network
    result, plan = compiled(variant_of(graph, "int8+fp16"), Target.parse(f"cuda:sm{capability}"))
    assert plan_file.read_header(plan).capabilities == (capability,)
    assert result.details["capability"] == capability
    assert [layer.precision for layer in result.evidence.layers] == ["int8"] * sum(PRODUCTS[name].values())


@pytest.mark.slow
def test_int8_convolutions_in_fp16_on_turing_are_seen(
    network: tuple[str, Variant], compiled: Compile, variant_of: Callable[[Variant, str], Variant]
) -> None:
    """Why `refuses` stops int8+fp16 for sm75. Where this fails, the library has learned int8 there: drop the refusal."""
    evidence = compiled(variant_of(network[1], "int8+fp16"), Target.parse("cuda:sm75"))[0].evidence
    assert {layer.precision for layer in evidence.layers if layer.op == "Conv"} == {"float16"}
    assert check_evidence(evidence, "int8+fp16", SM89, len(evidence.layers)).state == "fail"


# --- small graphs ---------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_nodes_without_names_are_proved_by_their_number(small_graph: Callable[..., Variant], precision: str, compiled: Compile) -> None:
    evidence = compiled(small_graph(precision))[0].evidence
    assert [layer.precision for layer in evidence.layers] == [WANTED[precision]] * 2
    assert check_evidence(evidence, precision, SM89, 2).state == "pass"
    assert check_evidence(evidence, "int8", SM89, 2).state == "fail"


@pytest.mark.parametrize(
    ("op", "attributes", "weights"),
    [
        ("Conv", {"pads": [1, 1, 1, 1], "group": 3}, (3, 1, 3, 3)),
        ("Conv", {}, (4, 3, 5, 5)),
        ("ConvTranspose", {"strides": [2, 2]}, (3, 4, 3, 3)),
        ("MatMul", {}, (8, 4)),
        ("MatMul", {}, (1, 3, 8, 8)),
    ],
    ids=["depthwise", "5x5", "transposed", "matrix", "batched matrix"],
)
def test_every_kind_of_product_is_found(
    tmp_path: Path, compiled: Compile, op: str, attributes: dict[str, object], weights: tuple[int, ...]
) -> None:
    """Behind a ReLU, so that the product is not the first thing in the graph."""
    values = np.random.default_rng(0).normal(size=weights).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["half"], name="cast", to=TensorProto.FLOAT16),
        helper.make_node("Relu", ["half"], ["positive"], name="relu"),
        helper.make_node(op, ["positive", "w"], ["y"], name="product", **attributes),
        helper.make_node("Cast", ["y"], ["logits"], name="back", to=TensorProto.FLOAT),
    ]
    evidence = compiled(saved(tmp_path, nodes, {"w": values}))[0].evidence
    assert [(layer.name, layer.op, layer.precision) for layer in evidence.layers] == [("product", op, "float16")]


def test_a_product_in_generated_code_is_unproven_by_name(tmp_path: Path, compiled: Compile) -> None:
    """A 1x1 convolution of three channels becomes pointwise code, and no operand types stand beside it."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["half"], name="cast", to=TensorProto.FLOAT16),
        helper.make_node("Conv", ["half", "w"], ["y"], name="tiny"),
        helper.make_node("Cast", ["y"], ["logits"], name="back", to=TensorProto.FLOAT),
    ]
    evidence = compiled(saved(tmp_path, nodes, {"w": np.ones((4, 3, 1, 1), np.float16)}))[0].evidence
    assert any("tiny" in note for note in evidence.notes)
    assert check_evidence(evidence, "fp16", SM89, 1).state == "unproven"


def saved(folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], batch: object = "batch") -> Variant:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = folder / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return Variant(
        precision="fp16",
        onnx_path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 8, 8)),
        output_name="logits",
        classes=("a", "b", "c", "d"),
        fixed_batch=batch if isinstance(batch, int) else None,
    )


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_recorded_and_changes_what_fp32_is_called(small_graph: Callable[..., Variant], compiled: Compile, tf32: bool) -> None:
    result, plan = compiled(small_graph("fp32"), tf32=tf32)
    assert result.details["tf32"] is tf32
    assert plan_file.facts(plan)["tf32"] is tf32
    assert {layer.precision for layer in result.evidence.layers} == {"tfloat32" if tf32 else "float32"}
    assert check_evidence(result.evidence, "fp32", SM89, 2).state == "pass"


def test_the_artifact_says_what_it_was_built_for(small_graph: Callable[..., Variant], compiled: Compile) -> None:
    result, _ = compiled(small_graph("fp16"), batches=(2, 8), workspace_mb=64, opt_batch=4)
    assert result.details["profile"] == [1, 4, 8]
    assert result.batches == tuple(range(1, 9))
    assert result.details["library"] == "tensorrt_rtx"
    assert result.details["library_version"] == tensorrt_rtx.__version__
    assert result.details["workspace_mb"] == 64
    assert result.details["stream_capturable"] is True
    assert len(result.details["products"]) == 2


def test_a_graph_of_fixed_batch_builds_without_a_profile_and_runs_only_that(tmp_path: Path, compiled: Compile) -> None:
    nodes = [
        helper.make_node("Cast", ["pixels"], ["half"], name="cast", to=TensorProto.FLOAT16),
        helper.make_node("Conv", ["half", "w"], ["y"], name="conv"),
        helper.make_node("Cast", ["y"], ["logits"], name="back", to=TensorProto.FLOAT),
    ]
    result, _ = compiled(saved(tmp_path, nodes, {"w": np.ones((4, 3, 3, 3), np.float16)}, batch=4), batches=(1, 32))
    assert result.batches == (4,)
    assert result.details["profile"] == [4, 4, 4]
    assert [layer.precision for layer in result.evidence.layers] == ["float16"]


@pytest.mark.parametrize(
    ("options", "batches", "profile"),
    [
        ({}, (1, 32), (1, 32, 32)),
        ({}, (4,), (1, 4, 4)),
        ({"min_batch": 4}, (1,), (4, 4, 4)),
        ({"max_batch": 16}, (1, 32), (1, 16, 16)),
        ({"opt_batch": 1}, (1, 32), (1, 1, 32)),
        ({"opt_batch": 64}, (1, 32), (1, 64, 64)),
    ],
)
def test_the_profile_follows_the_options_and_the_batches(
    options: dict[str, int], batches: tuple[int, ...], profile: tuple[int, int, int]
) -> None:
    found = batch_profile(TensorRTOptions(**options), batches)
    assert (found.least, found.best, found.most) == profile


def test_builds_go_on_after_one_that_failed(small_graph: Callable[..., Variant], compiled: Compile) -> None:
    """Reusing a builder or parser crashed the process here: each build has its own."""
    for _ in range(3):
        with pytest.raises(Unsupported):
            compiled(small_graph("fp16", extra=(helper.make_node("Det", ["b"], ["d"]),)))
        assert compiled(small_graph("fp16"))[1].startswith(plan_file.MAGIC)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # RTX still has the timing cache's calls, as no-ops
@pytest.mark.parametrize("before", [None, b"", b"garbage"])
def test_the_path_of_full_tensorrt_keeps_a_timing_cache(
    small_graph: Callable[..., Variant], compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    """Full TensorRT builds nothing without a GPU: the binding of RTX stands in for it, which has the same calls."""
    full = Library(name="tensorrt", module=tensorrt_rtx)
    gpu = Gpu(name="an Ada GPU", capability=89, memory_bytes=1)
    monkeypatch.setattr(backend_module, "environment", lambda: environment().model_copy(update={"gpus": (gpu,)}))
    for module in (libraries, messages):
        monkeypatch.setattr(module, "find_library", lambda name: full if name == "tensorrt" else "not installed")
    messages.logger.cache_clear()
    path = tmp_path / "cache" / f"timing-{full.version}-sm89.cache"
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)
    try:
        result, plan = compiled(small_graph("fp16"), Target.parse("cuda"))
        assert compiled(small_graph("fp16"), Target.parse("cuda"), timing_cache=False)[0].details["timing_cache"] is False
    finally:
        messages.logger.cache_clear()
    assert path.stat().st_size > 100
    assert result.details["timing_cache"] is True
    assert result.details["builder_level"] == 3
    assert result.evidence is None, "only the inspector of a loaded engine can say it"
    assert len(plan_file.read_header(plan).capabilities) > 1, "no capability is set: the GPU that is here would decide"


def test_a_worker_builds_in_a_process_of_its_own(small_graph: Callable[..., Variant], tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    request = CompileRequest(variant=small_graph("fp16"), target=SM89, batches=(1, 4), folder=folder, cache_folder=tmp_path / "cache")
    notes: list[str] = []
    with Worker("tensorrt/fp16/cuda:sm89", log_path=tmp_path / "log", threads=1, memory_bytes=None) as worker:
        artifact = worker.compile("tensorrt", {}, request, progress=lambda step: notes.append(step.note), timeout_s=60)
    assert artifact.backend_version == f"TensorRT for RTX {tensorrt_rtx.__version__}"
    assert artifact.details["capability"] == 89
    assert artifact.batches == (1, 2, 3, 4)
    assert "checking the graph" in notes  # later ones may be swallowed: progress is throttled


# --- what the plan's text does not prove ----------------------------------------------------

TWO = [MatrixNode(name="", op="Conv"), MatrixNode(name="", op="Gemm")]


@pytest.mark.parametrize("byte", [24, 25, 26, 27])
def test_a_version_that_was_never_looked_at_proves_nothing(small_graph: Callable[..., Variant], compiled: Compile, byte: int) -> None:
    plan = bytearray(compiled(small_graph("fp16"))[1])
    plan[byte] += 1
    evidence = from_plan(bytes(plan), TWO, "cuda:sm89")
    assert evidence.layers == ()
    assert "never checked" in evidence.notes[0]
    assert check_evidence(evidence, "fp16", SM89, 2).state == "unproven"


def test_text_that_has_changed_its_shape_proves_nothing(small_graph: Callable[..., Variant], compiled: Compile) -> None:
    plan = compiled(small_graph("fp16"))[1]
    assert len(from_plan(plan, TWO, "cuda:sm89").layers) == 2
    for old, new in (
        (b"type=half", b"kind=half"),
        (b"corrltn={", b"cnvolve={"),
        (b"descriptors {", b"descriptions{"),
        (b"input={", b"inputs{"),
    ):
        assert old in plan
        evidence = from_plan(plan.replace(old, new), TWO, "cuda:sm89")
        assert check_evidence(evidence, "fp16", SM89, 2).state == "unproven", old


def test_a_node_that_the_plan_does_not_account_for_is_named(tmp_path: Path, compiled: Compile) -> None:
    nodes = [
        helper.make_node("Cast", ["pixels"], ["half"], name="cast", to=TensorProto.FLOAT16),
        helper.make_node("Conv", ["half", "w"], ["y"], name="conv"),
        helper.make_node("Cast", ["y"], ["logits"], name="back", to=TensorProto.FLOAT),
    ]
    _, plan = compiled(saved(tmp_path, nodes, {"w": np.ones((4, 3, 3, 3), np.float16)}))
    asked = [MatrixNode(name="conv", op="Conv"), MatrixNode(name="vanished", op="Gemm")]
    evidence = from_plan(plan, asked, "cuda:sm89")
    assert [layer.name for layer in evidence.layers] == ["conv"]
    assert any("vanished" in note for note in evidence.notes)
    assert check_evidence(evidence, "fp16", SM89, 2).state == "unproven"


@pytest.mark.parametrize("junk", [b"", b"vtrt", b"\x00" * 100, bytes(range(256)) * 50, b"vtrt" + bytes(60)])
def test_bytes_that_are_no_plan_prove_nothing(junk: bytes) -> None:
    assert from_plan(junk, TWO, "cuda:sm89").layers == ()
