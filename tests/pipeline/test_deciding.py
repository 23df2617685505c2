"""What becomes of a deferred cell on a machine, decided by real backends and the null backend's made-up GPU."""

from __future__ import annotations

import pytest

from deploycnn.backends import create
from deploycnn.backends.tensorrt import libraries
from deploycnn.environment import Gpu, environment
from deploycnn.pipeline.bundle import BundledCell
from deploycnn.pipeline.deciding import Decision, decide
from deploycnn.record import Cell
from deploycnn.types import Artifact, Deferred, Int8Form, Target, TensorSpec

GPUS = (Gpu(name="Made-up 9000", capability=90, memory_bytes=1),)


def waiting(backend: str, target: str, *, precision: str = "fp32", form: Int8Form | None = None, **artifact: object) -> BundledCell:
    made = create(backend, {})
    facts = {
        "backend": backend,
        "backend_version": made.probe(Target.parse("cpu")).version,
        "target": target,
        "precision": precision,
        "files": (),
        "sha256": "0" * 64,
        "parent_sha256": "1" * 64,
        "input": TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 32, 32)),
        "output_name": "logits",
        "n_classes": 10,
        "batches": None,
        "evidence": None,
        "build_s": 1.0,
        "options": made.options.model_dump(mode="json"),
    }
    cell = Cell(
        backend=backend,
        precision=precision,
        target=Target.parse(target),
        int8_form=form,
        outcome=Deferred(waits_for="a GPU"),
        artifact=Artifact.model_validate({**facts, **artifact}),
        folder="artifacts/it",
    )
    return BundledCell(cell=cell, variant="bundle/variants/it")


def decided(bundled: BundledCell, *, damage: str = "", taken: tuple[str, ...] = ()) -> Decision:
    return decide(bundled, create(bundled.cell.backend, {}), GPUS, batches=(1, 32), damage=damage, taken=taken)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("DEPLOYCNN_NULL_DEVICE", "sm90")
    return monkeypatch


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("target", "changes", "damage", "name", "rebuild"),
    [
        ("cuda:sm90", {}, "", "null/fp32/cuda:sm90", ""),
        ("cuda", {}, "", "null/fp32/cuda", ""),
        ("cuda:sm89", {}, "", "null/fp32/cuda", "it was built for cuda:sm89, here is Made-up 9000 (sm90)"),
        ("cuda:sm90", {"backend_version": "7"}, "", "null/fp32/cuda:sm90", "it was built by null 7, here is null 1"),
        ("cuda:sm90", {"options": {"spin_s": 1.0}}, "", "null/fp32/cuda:sm90", "it was built with other options: fault, fault_at, spin_s"),
        ("cuda:sm90", {"batches": (8, 16)}, "", "null/fp32/cuda:sm90", "it runs none of the batch sizes 1, 32"),
        ("cuda:sm90", {"batches": (1,)}, "", "null/fp32/cuda:sm90", ""),
        ("cuda:sm90", {}, "null.json: it is missing", "null/fp32/cuda:sm90", "null.json: it is missing"),
    ],
)
def test_it_is_finished_here(target: str, changes: dict[str, object], damage: str, name: str, rebuild: str) -> None:
    found = decided(waiting("null", target, **changes), damage=damage)
    cell = found.planned.cell
    assert (cell.name, cell.outcome.state, found.rebuild) == (name, "done", rebuild)
    assert found.was == f"null/fp32/{target}"
    if rebuild:
        assert cell.artifact is None
        assert cell.notes == (f"built again: {rebuild}",)
        assert found.line.endswith(f"built again: {rebuild}")
    else:
        assert cell.folder == "artifacts/it"
        assert "fits" in found.line


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("bundled", "taken", "words"),
    [
        (waiting("null", "cuda:sm89"), ("null/fp32/cuda",), ("no sm89 GPU is here", "null/fp32/cuda is a cell of its own")),
        (waiting("null", "cuda:sm90", precision="int8", form=Int8Form.SYMMETRIC_S8), (), ("needs the int8 form", "s8s8-symmetric")),
    ],
)
def test_it_waits_on_although_the_device_is_here(bundled: BundledCell, taken: tuple[str, ...], words: tuple[str, ...]) -> None:
    outcome = decided(bundled, taken=taken).planned.cell.outcome
    assert outcome.state == "deferred"
    assert all(word in outcome.waits_for for word in words)


@pytest.mark.skipif(bool(environment().gpus), reason="needs a machine without a GPU")
@pytest.mark.parametrize("backend", ["null", "onnxruntime", "torch", "tensorrt"])
@pytest.mark.parametrize("target", ["cuda", "cuda:sm89"])
def test_without_the_device_every_backend_waits_on_with_its_reason(backend: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEPLOYCNN_NULL_DEVICE", raising=False)
    found = decided(waiting(backend, target))
    outcome = found.planned.cell.outcome
    assert outcome.state == "deferred"
    assert "GPU" in outcome.waits_for or "driver" in outcome.waits_for
    assert found.planned.cell.target == Target.parse(target)
    assert found.planned.cell.artifact is not None
    assert found.line == f"{backend}/fp32/{target} still waits: {outcome.waits_for}"


def with_gpu(monkeypatch: pytest.MonkeyPatch, capability: int) -> tuple[Gpu, ...]:
    """TensorRT is told that this machine has such a GPU, and that full TensorRT is not installed."""
    gpus = (Gpu(name="Made-up 9000", capability=capability, memory_bytes=1),)
    machine = environment().model_copy(update={"gpus": gpus})
    monkeypatch.setattr("deploycnn.backends.tensorrt.environment", lambda: machine)
    rtx = libraries.find_library("tensorrt_rtx")
    monkeypatch.setattr(libraries, "find_library", lambda name: "TensorRT is not installed" if name == "tensorrt" else rtx)
    return gpus


@pytest.mark.parametrize(
    ("capability", "was", "name", "rebuild"),
    [
        (89, "cuda:sm89", "tensorrt/fp32/cuda:sm89", ""),
        (120, "cuda:sm89", "tensorrt/fp32/cuda", "it was built for cuda:sm89, here is Made-up 9000 (sm120)"),
        (90, "cuda:sm89", "", "TensorRT for RTX"),
    ],
)
def test_a_real_backend_decides_by_the_gpu_that_is_here(
    monkeypatch: pytest.MonkeyPatch, capability: int, was: str, name: str, rebuild: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    gpus = with_gpu(monkeypatch, capability)
    backend = create("tensorrt", {})
    bundled = waiting("tensorrt", was, backend_version=backend.probe(Target.parse("cuda:sm89")).version)
    found = decide(bundled, backend, gpus, batches=(1,), damage="", taken=())
    cell = found.planned.cell
    if name:
        assert (cell.name, cell.outcome.state, found.rebuild) == (name, "done", rebuild)
    else:  # only full TensorRT builds for it
        assert cell.outcome.state == "deferred"
        assert "no sm89 GPU is here" in cell.outcome.waits_for
        assert rebuild in cell.outcome.waits_for
        assert "deploycnn[tensorrt]" in cell.outcome.waits_for
