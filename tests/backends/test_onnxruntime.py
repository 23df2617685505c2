"""ONNX Runtime: what it says ran, what it refuses and how, and that it never falls back in silence."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploycnn.backends import create
from deploycnn.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeOptions
from deploycnn.environment import environment
from deploycnn.errors import BackendError, EvidenceError, Unsupported
from deploycnn.types import Target

CPU, CUDA = Target(device="cpu"), Target(device="cuda")


def loaded_evidence(build, backend, variant, x_NCHW):
    artifact, compiled, folder = build(backend, variant)
    with backend.load(artifact, folder, 1) as session:
        session.bind(x_NCHW)
        session.run()
        return session.fetch(), session.evidence(), compiled


def test_fp32_is_float32(small_graph, build, small_pixels, expected):
    variant, x_NCHW = small_graph(), small_pixels(5)
    logits_NK, evidence, _ = loaded_evidence(build, OnnxRuntimeBackend(), variant, x_NCHW)
    np.testing.assert_allclose(logits_NK, expected(variant, x_NCHW), rtol=1e-4, atol=1e-4)
    assert [layer.precision for layer in evidence.layers] == ["float32", "float32"]
    assert evidence.provider == "CPUExecutionProvider"
    assert not evidence.simulated


def test_fp16_on_a_cpu_is_said_to_run_in_float32(small_graph, build, small_pixels):
    _, evidence, compiled = loaded_evidence(build, OnnxRuntimeBackend(), small_graph("fp16"), small_pixels(2))
    assert {layer.precision for layer in evidence.layers} == {"float32"}
    assert "float32" in compiled.notes[0]


def test_int8_is_int8(small_graph, quantised, build, small_pixels, expected):
    variant, x_NCHW = small_graph(), small_pixels(4)
    logits_NK, evidence, _ = loaded_evidence(build, OnnxRuntimeBackend(), quantised(variant), x_NCHW)
    assert [layer.op for layer in evidence.layers] == ["QLinearConv", "QGemm"]
    assert {layer.precision for layer in evidence.layers} == {"int8"}
    reference_NK = expected(variant, x_NCHW)
    assert 0 < np.abs(logits_NK - reference_NK).max() < 0.1 * np.abs(reference_NK).max()


def test_quantised_layers_that_run_in_float_are_simulated(small_graph, quantised, build, small_pixels):
    backend = OnnxRuntimeBackend(OnnxRuntimeOptions(optimisation="none"))  # Q, DQ and Conv stay apart
    _, evidence, _ = loaded_evidence(build, backend, quantised(small_graph()), small_pixels(1))
    assert {layer.precision for layer in evidence.layers} == {"float32"}
    assert evidence.simulated


def test_bf16_is_refused_before_anything_is_built():
    backend = OnnxRuntimeBackend()
    assert "bfloat16" in backend.refuses("bf16", CPU).reason
    assert backend.refuses("bf16", CUDA) is None


def test_an_operator_without_a_kernel_is_named(small_graph, build):
    with pytest.raises(Unsupported, match="not supported: Conv") as caught:
        build(OnnxRuntimeBackend(), small_graph("bf16"))
    assert caught.value.remedy


def _with(path, change):
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


def _ir(model: onnx.ModelProto) -> None:
    model.ir_version = 99


def _opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


def _unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[2].op_type = "Frobnicate"


def _unknown_domain(model: onnx.ModelProto) -> None:
    model.graph.node[2].domain = "com.example"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_ir, r"model IR 99, onnxruntime \S+ supports up to \d+"),
        (_opset, r"model opset 99, onnxruntime \S+ supports up to \d+"),
        (_unknown_operator, "not supported: Frobnicate"),
        (_unknown_domain, r"not supported: com\.example:Relu"),
    ],
)
def test_what_a_file_asks_too_much_of_is_named_with_what_is_supported(small_graph, build, change, says):
    variant = small_graph()
    _with(variant.onnx_path, change)
    with pytest.raises(Unsupported, match=says) as caught:
        build(OnnxRuntimeBackend(), variant)
    assert "onnxruntime_src" not in str(caught.value)


def test_a_missing_graph_is_named(small_graph, build):
    variant = small_graph()
    variant.onnx_path.unlink()
    with pytest.raises(BackendError, match=r"small-fp32\.onnx"):
        build(OnnxRuntimeBackend(), variant)


def test_a_fixed_batch_is_declared(small_graph, build):
    _, compiled, _ = build(OnnxRuntimeBackend(), small_graph().model_copy(update={"fixed_batch": 4}))
    assert compiled.batches == (4,)


@pytest.mark.skipif(bool(environment().gpus), reason="needs a machine without a GPU")
@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_cuda_without_a_gpu_can_be_built_but_never_falls_back(small_graph, build, provider):
    backend = create("onnxruntime", {"provider": provider})
    readiness = backend.probe(CUDA)
    assert readiness.state == "build-only"
    assert readiness.reason
    artifact, _, folder = build(backend, small_graph())
    with pytest.raises(EvidenceError, match="fell back to CPUExecutionProvider") as caught:
        backend.load(artifact.model_copy(update={"target": CUDA}), folder, 1)
    assert "missing" in caught.value.found


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 32])
def test_cuda_gives_the_same_logits_from_the_gpu(small_graph, build, small_pixels, expected, batch):
    variant, x_NCHW, backend = small_graph(), small_pixels(batch), OnnxRuntimeBackend()
    artifact, _, folder = build(backend, variant)
    with backend.load(artifact.model_copy(update={"target": CUDA}), folder, 1) as session:
        for scale in (1, 2):  # a second batch of the same size must reach the device too
            pixels = (x_NCHW // scale).astype(np.uint8)
            session.bind(pixels)
            session.run()
            session.synchronise()
            np.testing.assert_allclose(session.fetch(), expected(variant, pixels), rtol=1e-3, atol=1e-3)
        assert session.evidence().provider == "CUDAExecutionProvider"
