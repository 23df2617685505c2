"""The TVM backend on a CPU: import, evidence, artifact. Tuning has a file of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploycnn.backends import backend_class
from deploycnn.backends.tvm import TVMBackend, TVMOptions, _computes, _library
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.types import Target

UNTUNED = TVMBackend(TVMOptions(tune=False))


@pytest.mark.parametrize(
    ("precision", "multiplied", "tolerance"), [("fp32", "float32", 1e-5), ("fp16", "float16", 1e-2), ("bf16", "bfloat16", 5e-2)]
)
def test_each_batch_agrees_with_onnx_and_says_what_multiplied(
    small_graph, build, small_pixels, expected, precision: str, multiplied: str, tolerance: float
) -> None:
    variant = small_graph(precision)
    artifact, compiled, folder = build(UNTUNED, variant)
    assert compiled.files == ("manifest.json", "model_b1.so", "model_b3.so")
    assert compiled.batches == (1, 3)
    with UNTUNED.load(artifact, folder, threads=1) as session:
        for n in (1, 3, 1):
            session.bind(small_pixels(n))
            session.run()
            session.synchronise()
            logits_NK = session.fetch()
            reference_NK = expected(small_graph(), small_pixels(n))
            assert logits_NK.dtype == np.float32
            assert logits_NK.shape == (n, 4)
            assert np.linalg.norm(logits_NK - reference_NK) <= tolerance * np.linalg.norm(reference_NK)
        evidence = session.evidence()
    assert [(layer.op, layer.precision) for layer in evidence.layers] == [("Conv", multiplied), ("MatMul", multiplied)]
    assert not evidence.simulated


def test_int8_is_simulated_and_says_so(small_graph, quantised, build, small_pixels, expected) -> None:
    variant = quantised(small_graph())
    backend = TVMBackend()  # tuning asked for: a simulation is not worth it
    artifact, compiled, folder = build(backend, variant, batches=(1,))
    assert any("simulated int8" in note for note in compiled.notes)
    with backend.load(artifact, folder, threads=1) as session:
        session.bind(small_pixels(1))
        session.run()
        assert np.linalg.norm(session.fetch() - expected(variant, small_pixels(1))) <= 0.02 * np.linalg.norm(session.fetch())
        assert session.evidence().simulated
        assert {layer.precision for layer in session.evidence().layers} == {"float32"}


@pytest.mark.parametrize(
    ("precision", "mcpu", "tuned"),
    [("fp32", "x86-64-v3", True), ("fp16", "x86-64-v3", False), ("fp16", "sapphirerapids", True), ("bf16", "sapphirerapids", False)],
)
def test_only_arithmetic_that_the_cpu_has_is_worth_tuning(precision: str, mcpu: str, tuned: bool) -> None:
    assert _computes(_library.named_cpu(mcpu), precision) is tuned


def test_logits_are_a_copy_that_later_runs_do_not_change(small_graph, build, small_pixels) -> None:
    artifact, _, folder = build(UNTUNED, small_graph(), batches=(1,))
    with UNTUNED.load(artifact, folder, threads=1) as session:
        session.bind(small_pixels(1))
        session.run()
        first_NK = session.fetch()
        kept_NK = first_NK.copy()
        session.bind(255 - small_pixels(1))
        session.run()
        assert not np.array_equal(session.fetch(), kept_NK)
        assert np.array_equal(first_NK, kept_NK)


def test_a_batch_size_that_was_not_compiled_is_refused_by_name(small_graph, build, small_pixels) -> None:
    artifact, _, folder = build(UNTUNED, small_graph(), batches=(2,))
    with UNTUNED.load(artifact, folder, threads=1) as session, pytest.raises(Unsupported, match="built for batches of 2"):
        session.bind(small_pixels(3))


def test_a_dynamic_artifact_runs_any_batch_and_says_that_it_is_untuned(small_graph, build, small_pixels, expected) -> None:
    variant = small_graph()
    artifact, compiled, folder = build(TVMBackend(TVMOptions(dynamic=True)), variant)
    assert compiled.batches is None
    assert any("cannot be tuned" in note for note in compiled.notes)
    with UNTUNED.load(artifact, folder, threads=1) as session:
        for n in (1, 5):
            session.bind(small_pixels(n))
            session.run()
            assert np.allclose(session.fetch(), expected(variant, small_pixels(n)), rtol=1e-4, atol=1e-4)


def test_an_operator_that_tvm_lacks_is_named(small_graph, build) -> None:
    variant = small_graph(extra=(onnx.helper.make_node("Whirl", ["b"], ["z"], domain="com.example"),))
    with pytest.raises(Unsupported, match="Whirl"):
        build(UNTUNED, variant)


def test_code_for_another_cpu_is_an_error_not_a_crash(small_graph, build) -> None:
    artifact, _, folder = build(UNTUNED, small_graph(), batches=(1,))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["features"].append("neon" if "avx2" in manifest["features"] else "avx2")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BackendError, match="this CPU lacks"):
        UNTUNED.load(artifact, folder, threads=1)


@pytest.mark.parametrize("damage", ["manifest.json", "model_b1.so"])
def test_damaged_files_are_named(small_graph, build, small_pixels, damage: str) -> None:
    artifact, _, folder = build(UNTUNED, small_graph(), batches=(1,))
    (folder / damage).write_bytes(b"\x00" * 64)
    with pytest.raises(BackendError, match=damage), UNTUNED.load(artifact, folder, threads=1) as session:
        session.bind(small_pixels(1))


def test_a_missing_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_graph, build) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    readiness = UNTUNED.probe(Target(device="cpu"))
    assert readiness.state == "unavailable"
    assert "C++ compiler" in readiness.reason
    with pytest.raises(Unavailable, match="cannot be linked"):
        build(UNTUNED, small_graph(), batches=(1,))


def test_an_unknown_cpu_name_is_refused(small_graph, build) -> None:
    with pytest.raises(Unsupported, match="pentium-x"):
        build(TVMBackend(TVMOptions(mcpu="pentium-x")), small_graph(), batches=(1,))


def test_the_cpu_found_has_the_features_that_code_for_it_uses() -> None:
    cpu = _library.host_cpu()
    assert _library.missing_features(cpu.features) == ()
    assert backend_class("tvm") is TVMBackend
