"""The OpenVINO backend: pinned precision, proof of it, and answers that agree."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("openvino")

from deploycnn.backends.openvino import OpenVINOBackend
from deploycnn.errors import BackendError
from deploycnn.types import Target

CPU = Target(device="cpu")
BACKEND = OpenVINOBackend()


@pytest.mark.parametrize(
    ("precision", "computed", "tolerance"), [("fp32", "float32", 1e-5), ("fp16", "float16", 1e-2), ("bf16", "bfloat16", 5e-2)]
)
def test_what_runs_is_the_precision_asked_for(
    small_graph, build, small_pixels, expected, precision: str, computed: str, tolerance: float
) -> None:
    refusal = BACKEND.refuses(precision, CPU)
    if refusal is not None:
        assert precision != "fp32"
        pytest.skip(refusal.reason)
    variant = small_graph(precision)
    artifact, compiled, folder = build(BACKEND, variant)
    assert compiled.batches is None
    with BACKEND.load(artifact, folder, threads=1) as session:
        for n in (1, 3, 5):
            session.bind(small_pixels(n))
            session.run()
            session.synchronise()
            logits_NK = session.fetch()
            reference_NK = expected(small_graph(), small_pixels(n))
            assert logits_NK.dtype == np.float32
            assert np.linalg.norm(logits_NK - reference_NK) <= tolerance * np.linalg.norm(reference_NK)
            assert sorted((layer.op, layer.precision) for layer in session.evidence().layers) == [("Conv", computed), ("MatMul", computed)]


def test_int8_is_proved_in_every_layer_that_is_quantised(small_graph, quantised, build, small_pixels, expected) -> None:
    variant = quantised(small_graph())
    artifact, _, folder = build(BACKEND, variant, batches=(1,))
    with BACKEND.load(artifact, folder, threads=1) as session:
        session.bind(small_pixels(1))
        session.run()
        assert np.linalg.norm(session.fetch() - expected(variant, small_pixels(1))) <= 0.02 * np.linalg.norm(session.fetch())
        assert session.evidence() == artifact.evidence
        assert sorted((layer.op, layer.precision) for layer in session.evidence().layers) == [("Conv", "int8"), ("MatMul", "int8")]


def test_later_runs_do_not_change_logits_that_were_fetched(small_graph, build, small_pixels) -> None:
    artifact, _, folder = build(BACKEND, small_graph(), batches=(1,))
    with BACKEND.load(artifact, folder, threads=1) as session:
        x_NCHW = small_pixels(1)
        session.bind(x_NCHW)
        x_NCHW[:] = 0  # the session has its own copy
        session.run()
        first_NK = session.fetch()
        kept_NK = first_NK.copy()
        session.bind(255 - small_pixels(1))
        session.run()
        assert np.array_equal(first_NK, kept_NK)
        assert not np.array_equal(session.fetch(), kept_NK)
        session.bind(small_pixels(1))
        session.run()
        assert np.array_equal(session.fetch(), kept_NK)


def test_an_operator_that_openvino_lacks_is_named(small_graph, build) -> None:
    variant = small_graph(extra=(onnx.helper.make_node("Whirl", ["b"], ["z"], domain="com.example"),))
    with pytest.raises(BackendError, match="Whirl"):
        build(BACKEND, variant)


def test_a_damaged_file_is_named(small_graph, build) -> None:
    artifact, _, folder = build(BACKEND, small_graph(), batches=(1,))
    (folder / "model.xml").write_text("<net")
    with pytest.raises(BackendError, match=r"model\.xml"):
        BACKEND.load(artifact, folder, threads=1)


def test_there_is_no_cuda() -> None:
    readiness = BACKEND.probe(Target(device="cuda"))
    assert readiness.state == "unavailable"
    assert "CUDA" in readiness.reason
