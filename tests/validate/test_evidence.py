"""The gate: what a backend says ran, against what was asked for."""

from __future__ import annotations

import pytest

from deploycnn.types import Evidence, LayerEvidence, Target
from deploycnn.validate.evidence import TF32_TOLERANCE, check_evidence, logit_tolerance

CPU, CUDA = Target.parse("cpu"), Target.parse("cuda")


def said(*precisions: str, provider: str = "CPUExecutionProvider", simulated: bool = False, notes: tuple[str, ...] = ()) -> Evidence:
    layers = tuple(LayerEvidence(name=f"/conv{index}/Conv", op="Conv", precision=kind) for index, kind in enumerate(precisions))
    return Evidence(source="profiler", provider=provider, layers=layers, simulated=simulated, notes=notes)


# --- precision ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "kind"),
    [
        ("fp32", "float32"),
        ("fp32", "FP32"),
        ("fp32", "tf32"),
        ("fp16", "float16"),
        ("fp16", "half"),
        ("bf16", "bfloat16"),
        ("bf16", "BF16"),
        ("int8", "int8"),
        ("int8", "u8"),
        ("int8-qat", "i8"),
        ("int8-auto", "int8"),
        ("int8+fp16", "int8"),
    ],
)
def test_what_ran_as_asked_passes(precision: str, kind: str) -> None:
    verdict = check_evidence(said(kind, kind, kind), precision, CPU, 3)
    assert verdict.state == "pass", verdict
    assert "3 in " in verdict.reason
    assert "CPUExecutionProvider" in verdict.reason
    assert "profiler" in verdict.reason


@pytest.mark.parametrize(
    ("precision", "right", "wrong"),
    [
        ("fp32", "float32", "bfloat16"),
        ("fp32", "float32", "float16"),
        ("fp16", "float16", "float32"),
        ("bf16", "bfloat16", "float32"),
        ("int8", "int8", "float32"),
        ("int8", "int8", "float16"),
        ("int8+fp16", "int8", "float16"),
        ("int8-auto", "int8", "float32"),
        ("int8", "int8", "int8 x float32"),
        ("int8", "int8", "int4"),
        ("fp32", "float32", "float64"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_layer_in_another_precision_fails_and_is_named(precision: str, right: str, wrong: str, place: int) -> None:
    kinds = [right, right, right]
    kinds[place] = wrong
    verdict = check_evidence(said(*kinds), precision, CPU, 3)
    assert verdict.state == "fail"
    assert f"/conv{place}/Conv" in verdict.reason
    assert f"ran in {wrong}" in verdict.reason
    assert verdict.remedy


@pytest.mark.parametrize("word", ["unknown", "", "something new"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_layer_that_nothing_is_said_of_is_unproven_and_named(precision: str, word: str) -> None:
    right = {"fp32": "float32", "fp16": "float16", "int8": "int8"}[precision]
    verdict = check_evidence(said(right, word, right), precision, CPU, 3)
    assert verdict.state == "unproven"
    assert "/conv1/Conv" in verdict.reason


def test_a_wrong_layer_weighs_more_than_an_unknown_one() -> None:
    verdict = check_evidence(said("unknown", "float32", "int8"), "int8", CPU, 3)
    assert verdict.state == "fail"
    assert "/conv1/Conv" in verdict.reason
    assert "/conv0/Conv" not in verdict.reason


def test_many_wrong_layers_are_counted() -> None:
    verdict = check_evidence(said(*["float32"] * 9), "int8", CPU, 9)
    assert "and 6 more of 9 layers" in verdict.reason


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_low_precision_that_a_cpu_casts_back_fails_with_a_reason_that_reads_well(precision: str) -> None:
    verdict = check_evidence(said("float32", "float32"), precision, CPU, 2)
    assert verdict.state == "fail"
    assert "ran in float32" in verdict.reason
    assert f"no {precision} kernels on this CPU" in verdict.remedy


def test_tf32_passes_with_a_note_and_widens_the_tolerance() -> None:
    evidence = said("tf32", "float32", provider="CUDAExecutionProvider")
    verdict = check_evidence(evidence, "fp32", CUDA, 2)
    assert verdict.state == "pass"
    assert "TF32" in verdict.reason
    assert logit_tolerance(evidence, 1e-3) == TF32_TOLERANCE
    assert logit_tolerance(evidence, 1e-1) == 1e-1
    assert logit_tolerance(said("float32"), 1e-3) == 1e-3
    assert logit_tolerance(None, 1e-3) == 1e-3


def test_a_precision_that_nothing_is_known_about_is_unproven() -> None:
    assert check_evidence(said("int4"), "int4", CPU, 1).state == "unproven"


# --- nothing said, or too little ----------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_who_says_nothing_proves_nothing(precision: str) -> None:
    assert check_evidence(None, precision, CPU, 3).state == "unproven"
    assert check_evidence(said(), precision, CPU, 3).state == "unproven"
    assert check_evidence(said(), precision, CPU, 0).state == "unproven"
    assert check_evidence(said(notes=("all fused",)), precision, CPU, 3).state == "unproven"


def test_fewer_layers_than_the_graph_has_prove_nothing_unless_explained() -> None:
    verdict = check_evidence(said("int8", "int8"), "int8", CPU, 5)
    assert verdict.state == "unproven"
    assert "2 of 5" in verdict.reason
    assert check_evidence(said("int8", "int8", notes=("fused 3 convolutions into one kernel",)), "int8", CPU, 5).state == "pass"
    assert check_evidence(said("int8", "int8", notes=("built with -O3",)), "int8", CPU, 5).state == "unproven"


def test_more_layers_than_the_graph_has_are_fine() -> None:
    assert check_evidence(said(*["int8"] * 7), "int8", CPU, 5).state == "pass"


def test_an_explanation_does_not_excuse_a_wrong_layer() -> None:
    assert check_evidence(said("float32", notes=("fused",)), "int8", CPU, 5).state == "fail"


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_simulated_precision_never_passes(kind: str) -> None:
    verdict = check_evidence(said(kind, kind, provider="llvm", simulated=True), "int8", CPU, 2)
    assert verdict.state == "unproven"
    assert "simulated" in verdict.reason
    assert "not faster" in verdict.reason


# --- where it ran -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "provider"),
    [
        ("cpu", "CPUExecutionProvider"),
        ("cpu", "CPU"),
        ("cpu", "cpu"),
        ("cpu", "llvm (cpu)"),
        ("cpu", "numpy"),
        ("cuda", "CUDAExecutionProvider"),
        ("cuda", "cuda:0"),
        ("cuda", "TensorrtExecutionProvider"),
        ("cuda", "TensorRT-RTX"),
        ("cuda", "NVIDIA H200"),
        ("cuda:sm89", "NvTensorRTRTXExecutionProvider"),
    ],
)
def test_providers_that_are_where_they_should_be(target: str, provider: str) -> None:
    assert check_evidence(said("float32", provider=provider), "fp32", Target.parse(target), 1).state == "pass"


@pytest.mark.parametrize(
    ("target", "provider"),
    [
        ("cuda", "CPUExecutionProvider"),
        ("cuda:sm90", "cpu"),
        ("cuda", "numpy"),
        ("cpu", "CUDAExecutionProvider"),
        ("cpu", "NVIDIA H200"),
        ("cpu", "somewhere else"),
        ("cuda", "somewhere else"),
        ("cuda", ""),
        ("cuda", "CUDAExecutionProvider, CPUExecutionProvider"),
    ],
)
def test_a_silent_fallback_fails(target: str, provider: str) -> None:
    verdict = check_evidence(said("float32", provider=provider), "fp32", Target.parse(target), 1)
    assert verdict.state == "fail"
    assert f"asked for {target}" in verdict.reason
    assert (provider or "unknown") in verdict.reason


def test_the_device_is_asked_first() -> None:
    verdict = check_evidence(said("float32", provider="CPU"), "fp16", CUDA, 1)
    assert "ran on CPU" in verdict.reason


# --- layers that are in float by design ---------------------------------------------------


def named(**kinds: str) -> Evidence:
    layers = tuple(LayerEvidence(name=name.replace("__", "/"), op="Conv", precision=kind) for name, kind in kinds.items())
    return Evidence(source="profiler", provider="CPU", layers=layers)


def test_named_layers_may_be_in_float() -> None:
    evidence = named(node_conv2d="float32", node_conv2d_1="int8", node_linear="int8")
    assert check_evidence(evidence, "int8-auto", CPU, 3).state == "fail"
    verdict = check_evidence(evidence, "int8-auto", CPU, 3, float_layers={"node_conv2d"})
    assert verdict.state == "pass"
    assert "1 in float32 and 2 in int8" in verdict.reason


@pytest.mark.parametrize(
    ("allowed", "layer", "same"),
    [
        ("node_conv2d", "node_conv2d_quant", True),
        ("node_conv2d", "node_conv2d + node_relu", True),
        ("/conv1/Conv", "/conv1/Conv_kernel_time", True),
        ("conv1", "conv10", False),
        ("node_conv2d", "node_conv2d_1", False),
        ("node_conv2d_1", "node_conv2d_10", False),
        ("conv2d", "myconv2d", False),
        ("a.b", "axb", False),
    ],
)
def test_names_that_backends_make_of_names(allowed: str, layer: str, same: bool) -> None:
    evidence = Evidence(
        source="profiler",
        provider="CPU",
        layers=(
            LayerEvidence(name=layer, op="Conv", precision="float32"),
            LayerEvidence(name=allowed, op="Conv", precision="float32"),
            LayerEvidence(name="other", op="Conv", precision="int8"),
        ),
    )
    state = check_evidence(evidence, "int8-auto", CPU, 3, float_layers=[allowed]).state
    assert state == ("pass" if same else "fail")


def test_float_by_design_is_no_licence_for_other_kinds() -> None:
    assert check_evidence(named(a="int4", b="int8"), "int8-auto", CPU, 2, float_layers=["a"]).state == "fail"


def test_names_that_say_nothing_leave_it_unproven() -> None:
    """A backend with names of its own: as many layers in float as there should be, but which?"""
    evidence = named(fused_kernel_0="float32", fused_kernel_1="int8", fused_kernel_2="int8")
    assert check_evidence(evidence, "int8-auto", CPU, 3, float_layers=["node_conv2d"]).state == "unproven"
    more = named(fused_kernel_0="float32", fused_kernel_1="float32", fused_kernel_2="int8")
    assert check_evidence(more, "int8-auto", CPU, 3, float_layers=["node_conv2d"]).state == "fail"
