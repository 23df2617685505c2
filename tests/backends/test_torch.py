"""Eager PyTorch: the reference is the network itself, and costs what the network itself costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deploycnn.backends import _torch_program as program
from deploycnn.backends.torch import TorchBackend, TorchOptions
from deploycnn.environment import environment
from deploycnn.errors import Unavailable, Unsupported
from deploycnn.types import Target

CPU, CUDA = Target(device="cpu"), Target(device="cuda")


@pytest.fixture(scope="module")
def pixels_NCHW(small_dataset) -> np.ndarray:
    return np.ascontiguousarray(small_dataset.test.images_NCHW[:5])


@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_the_eager_module_computes_what_the_archive_does(graph_of, pixels_NCHW, name):
    path = graph_of(name).program_path
    x = torch.from_numpy(pixels_NCHW.copy())
    with torch.inference_mode():
        (logits,) = program.eager(path)(x)
        torch.testing.assert_close(logits, torch.export.load(path).module()(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_nothing_of_the_export_is_left_in_its_path(graph_of, name):
    """Hooks, guards and overload objects cost LeNet at batch 1 more than half of its time again."""
    module = program.eager(graph_of(name).program_path)
    assert not module._forward_pre_hooks
    assert not module._forward_hooks
    calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
    products = [call for call in calls if not isinstance(call, torch._ops.OpOverload)]
    assert len(products) >= 5
    assert not any("_assert" in str(call) or "_guards" in str(call) for call in calls)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_the_program_casts_its_arithmetic_and_keeps_float32_logits(graph_of, pixels_NCHW, dtype):
    path = graph_of("lenet").program_path
    x = torch.from_numpy(pixels_NCHW.copy())
    with torch.inference_mode():
        (reference,) = program.eager(path)(x)
        (logits,) = program.cast(program.eager(path), dtype)(x)
    assert logits.dtype == torch.float32
    error = float((logits - reference).abs().max() / reference.abs().max())
    assert 1e-5 < error < 0.05


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("precision", "kind"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_evidence_is_what_the_profiler_saw(lenet_graph, build, pixels_NCHW, precision, kind, channels_last):
    backend = TorchBackend(TorchOptions(channels_last=channels_last))
    if refusal := backend.refuses(precision, CPU):
        pytest.skip(refusal.reason)
    artifact, _, folder = build(backend, lenet_graph.model_copy(update={"precision": precision}))
    with backend.load(artifact, folder, 1) as session:
        session.bind(pixels_NCHW)
        evidence = session.evidence()
    assert evidence.provider == "cpu"
    assert [layer.op for layer in evidence.layers] == ["conv2d", "conv2d", "linear", "linear", "linear"]
    assert {layer.precision for layer in evidence.layers} == {kind}


@pytest.mark.parametrize("precision", ["int8", "int8+fp16", "int8-auto"])
def test_int8_is_refused_with_the_reason(lenet_graph, build, precision):
    assert "Q/DQ" in TorchBackend().refuses(precision, CUDA).reason
    with pytest.raises(Unsupported, match="Q/DQ"):
        build(TorchBackend(), lenet_graph.model_copy(update={"precision": precision}))


def test_a_graph_without_a_program_is_refused(lenet_graph, build):
    with pytest.raises(Unsupported, match="no PyTorch program"):
        build(TorchBackend(), lenet_graph.model_copy(update={"program_path": None}))


@pytest.mark.skipif(bool(environment().gpus), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_can_be_built_and_says_what_is_missing(lenet_graph, build):
    assert TorchBackend().probe(CUDA).state == "build-only"
    artifact, _, folder = build(TorchBackend(), lenet_graph)
    with pytest.raises(Unavailable, match="sees no CUDA device"):
        TorchBackend().load(artifact.model_copy(update={"target": CUDA}), folder, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"cuda_graph": True}, {"channels_last": True}, {"tf32": True}], ids=str)
@pytest.mark.parametrize(("precision", "kind"), [("fp32", "float32"), ("fp16", "float16")])
def test_cuda_gives_the_same_logits_from_the_gpu(lenet_graph, build, pixels_NCHW, precision, kind, options):
    backend = TorchBackend(TorchOptions(**options))
    artifact, _, folder = build(backend, lenet_graph.model_copy(update={"precision": precision}))
    with torch.inference_mode():
        (reference,) = program.eager(lenet_graph.program_path)(torch.from_numpy(pixels_NCHW.copy()))
    with backend.load(artifact.model_copy(update={"target": CUDA}), folder, 1) as session:
        for count in (5, 1, 5):
            session.bind(pixels_NCHW[:count])
            session.run()
            session.synchronise()
            np.testing.assert_allclose(session.fetch(), reference[:count].numpy(), rtol=0.02, atol=2e-3)
        evidence = session.evidence()
    assert evidence.provider.startswith("cuda")
    assert {layer.precision for layer in evidence.layers} == {"tfloat32" if options.get("tf32") and precision == "fp32" else kind}
