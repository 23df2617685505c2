"""The TVM backend on a CPU: import, evidence, artifact. Tuning has a file of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploycnn.backends import backend_class
from deploycnn.backends.tvm import TVMBackend, TVMOptions, _library
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.types import Artifact, Compiled, CompileRequest, FileEntry, Target, TensorSpec, Variant

CPU = Target(device="cpu")


def small_graph(path: Path, kind: int = onnx.TensorProto.FLOAT, extra: tuple[onnx.NodeProto, ...] = ()) -> Variant:
    """uint8 pixels (N, 3, 8, 8) -> cast -> 3x3 convolution -> ReLU -> flatten -> 4 logits, computed in `kind`."""
    make = onnx.helper.make_node
    rng = np.random.default_rng(0)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    arrays = {"w": rng.normal(size=(4, 3, 3, 3)) / 100, "g": rng.normal(size=(144, 4)) / 12, "c": rng.normal(size=(4,))}
    nodes = [
        make("Cast", ["pixels"], ["x"], to=kind),
        make("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3]),
        make("Relu", ["a"], ["b"]),
        *extra,
        make("Flatten", ["b"], ["f"]),
        make("Gemm", ["f", "g", "c"], ["y"]),
        make("Cast", ["y"], ["logits"], to=onnx.TensorProto.FLOAT),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, ["batch", 3, 8, 8])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(value.astype(dtype)), name) for name, value in arrays.items()],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    names = {onnx.TensorProto.FLOAT: "fp32", onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
    return Variant(
        precision=names[kind],
        onnx_path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 8, 8)),
        output_name="logits",
        classes=("a", "b", "c", "d"),
    )


def expected(variant: Variant, x_NCHW: np.ndarray) -> np.ndarray:
    """ONNX's own reference implementation: no compiler in it."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(variant.onnx_path)).run(None, {"pixels": x_NCHW})[0]


Build = Callable[..., tuple[Artifact, Compiled, Path]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def make(variant: Variant, batches: tuple[int, ...] = (1, 3), **options: object) -> tuple[Artifact, Compiled, Path]:
        folder = tmp_path / "artifact"
        folder.mkdir()
        request = CompileRequest(variant=variant, target=CPU, batches=batches, folder=folder, cache_folder=tmp_path / "cache")
        compiled = TVMBackend(TVMOptions(**{"tune": False, **options})).compile(request, lambda progress: None)
        artifact = Artifact(
            backend="tvm",
            backend_version="",
            target=CPU,
            precision=variant.precision,
            files=tuple(FileEntry(name=name, size_bytes=(folder / name).stat().st_size, sha256="") for name in compiled.files),
            sha256="",
            parent_sha256=variant.sha256,
            input=variant.input,
            output_name="logits",
            n_classes=4,
            batches=compiled.batches,
            evidence=compiled.evidence,
            build_s=0,
        )
        return artifact, compiled, folder

    return make


def pixels(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, 3, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize(
    ("kind", "precision", "tolerance"),
    [
        (onnx.TensorProto.FLOAT, "float32", 1e-5),
        (onnx.TensorProto.FLOAT16, "float16", 1e-2),
    ],
)
def test_each_batch_agrees_with_onnx_and_says_what_multiplied(
    tmp_path: Path, build: Build, kind: int, precision: str, tolerance: float
) -> None:
    variant = small_graph(tmp_path / "small.onnx", kind)
    artifact, compiled, folder = build(variant)
    assert compiled.files == ("manifest.json", "model_b1.so", "model_b3.so")
    assert compiled.batches == (1, 3)
    with TVMBackend().load(artifact, folder, threads=1) as session:
        for n in (1, 3, 1):
            session.bind(pixels(n))
            session.run()
            session.synchronise()
            logits_NK = session.fetch()
            reference_NK = expected(variant, pixels(n))
            assert logits_NK.dtype == np.float32
            assert logits_NK.shape == (n, 4)
            assert np.linalg.norm(logits_NK - reference_NK) <= tolerance * np.linalg.norm(reference_NK)
        evidence = session.evidence()
    assert [(layer.op, layer.precision) for layer in evidence.layers] == [("Conv", precision), ("MatMul", precision)]
    assert not evidence.simulated


def test_logits_are_a_copy_that_later_runs_do_not_change(tmp_path: Path, build: Build) -> None:
    artifact, _, folder = build(small_graph(tmp_path / "small.onnx"), batches=(1,))
    with TVMBackend().load(artifact, folder, threads=1) as session:
        session.bind(pixels(1))
        session.run()
        first_NK = session.fetch()
        kept_NK = first_NK.copy()
        session.bind(255 - pixels(1))
        session.run()
        assert not np.array_equal(session.fetch(), kept_NK)
        assert np.array_equal(first_NK, kept_NK)


def test_a_batch_size_that_was_not_compiled_is_refused_by_name(tmp_path: Path, build: Build) -> None:
    artifact, _, folder = build(small_graph(tmp_path / "small.onnx"), batches=(2,))
    with TVMBackend().load(artifact, folder, threads=1) as session, pytest.raises(Unsupported, match="cannot run batch 3"):
        session.bind(pixels(3))


def test_a_dynamic_artifact_runs_any_batch_and_says_that_it_is_untuned(tmp_path: Path, build: Build) -> None:
    variant = small_graph(tmp_path / "small.onnx")
    artifact, compiled, folder = build(variant, dynamic=True)
    assert compiled.batches is None
    assert any("cannot be tuned" in note for note in compiled.notes)
    with TVMBackend().load(artifact, folder, threads=1) as session:
        for n in (1, 5):
            session.bind(pixels(n))
            session.run()
            assert np.allclose(session.fetch(), expected(variant, pixels(n)), rtol=1e-4, atol=1e-4)


def test_an_operator_that_tvm_lacks_is_named(tmp_path: Path, build: Build) -> None:
    node = onnx.helper.make_node("Whirl", ["b"], ["z"], domain="com.example")
    variant = small_graph(tmp_path / "small.onnx", extra=(node,))
    with pytest.raises(Unsupported, match="Whirl"):
        build(variant)


def test_code_for_another_cpu_is_an_error_not_a_crash(tmp_path: Path, build: Build) -> None:
    artifact, _, folder = build(small_graph(tmp_path / "small.onnx"), batches=(1,))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["features"].append("neon" if "avx2" in manifest["features"] else "avx2")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BackendError, match="this CPU lacks"):
        TVMBackend().load(artifact, folder, threads=1)


@pytest.mark.parametrize("damage", ["manifest.json", "model_b1.so"])
def test_damaged_files_are_named(tmp_path: Path, build: Build, damage: str) -> None:
    artifact, _, folder = build(small_graph(tmp_path / "small.onnx"), batches=(1,))
    (folder / damage).write_bytes(b"\x00" * 64)
    with pytest.raises(BackendError, match=damage):
        with TVMBackend().load(artifact, folder, threads=1) as session:
            session.bind(pixels(1))


def test_a_missing_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: Build) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    readiness = TVMBackend().probe(CPU)
    assert readiness.state == "unavailable"
    assert "C++ compiler" in readiness.reason
    with pytest.raises(Unavailable, match="cannot be linked"):
        build(small_graph(tmp_path / "small.onnx"), batches=(1,))


def test_an_unknown_cpu_name_is_refused(tmp_path: Path, build: Build) -> None:
    with pytest.raises(Unsupported, match="pentium-x"):
        build(small_graph(tmp_path / "small.onnx"), batches=(1,), mcpu="pentium-x")


def test_the_cpu_found_has_the_features_that_code_for_it_uses() -> None:
    cpu = _library.host_cpu()
    assert _library.missing_features(cpu.features) == ()
    assert backend_class("tvm") is TVMBackend
