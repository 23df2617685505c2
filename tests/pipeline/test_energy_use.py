"""Energy goes into the record where it is counted, and the reason why not where it is not; failing to count it fails no cell."""

from __future__ import annotations

import numpy as np
import pytest

from deploycnn.backends import create
from deploycnn.environment import environment
from deploycnn.errors import WorkerError
from deploycnn.pipeline import energy_use
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.context import Context
from deploycnn.pipeline.energy_use import with_energy
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.preparing import HeldOut
from deploycnn.recipe import Recipe
from deploycnn.record import Cell, Energy, Latency
from deploycnn.report.costs import energy
from deploycnn.types import Artifact, CompileRequest, Done, Interval, Readiness, Target, TensorSpec, Variant
from deploycnn.workers import Worker

FOUND = Energy(source="RAPL package-0", batch=4, seconds=2.0, idle_w=10.0, busy_w=15.0, joules_per_image=0.0025)
KNOWN = Interval(value=1e-3, low=1e-3, high=1e-3)


class Meter:
    reason = ""

    def __init__(self, *, gpu=None):
        self.gpu = gpu

    def measure(self, work, *, batch, idle_s):
        images = work()
        assert images > 0
        assert images % batch == 0
        return FOUND.model_copy(update={"batch": batch})


@pytest.fixture
def artifact(tmp_path) -> Artifact:
    spec = TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 8, 8))
    variant = Variant(
        precision="fp32", onnx_path=tmp_path / "g.onnx", sha256="0" * 64, input=spec, output_name="logits", classes=("a", "b")
    )
    (tmp_path / "artifacts").mkdir()
    request = CompileRequest(variant=variant, target="cpu", batches=(1, 4), folder=tmp_path / "artifacts", cache_folder=tmp_path)
    with Worker("null/fp32/cpu", log_path=tmp_path / "log.txt") as worker:
        return worker.compile("null", {}, request, timeout_s=30)


@pytest.fixture
def planned(artifact) -> PlannedCell:
    counts = {"n_samples": 100, "n_blocks": 4, "n_rounds": 2, "n_processes": 1, "outliers": 0, "noisy": False}
    tails = dict.fromkeys(("p90_s", "p95_s", "p99_s", "p999_s"))
    extremes = {"mean_s": 1e-3, "min_s": 1e-3, "max_s": 1e-3}
    rows = tuple(
        Latency(batch=batch, threads=1, samples="x", p50_s=KNOWN, images_per_s=KNOWN, **counts, **tails, **extremes) for batch in (1, 4)
    )
    cell = Cell(
        backend="null", precision="fp32", target=Target(device="cpu"), outcome=Done(), artifact=artifact, folder="artifacts", latencies=rows
    )
    return PlannedCell(backend=create("null", {}), readiness=Readiness(state="ready"), cell=cell)


@pytest.fixture
def held_out() -> HeldOut:
    images_NCHW = np.zeros((8, 3, 8, 8), dtype=np.uint8)
    return HeldOut(images_NCHW=images_NCHW, labels_N=np.zeros(8, dtype=np.int64), sha256="3" * 64, classes=("a", "b"))


@pytest.fixture
def context(store, tmp_path) -> Context:
    return Context(recipe=Recipe(), store=store, talk=Talk(quiet=True), environment=environment(), out=tmp_path, memory_bytes=10**10)


def test_a_measured_artifact_gets_its_energy_once(context, held_out, planned, monkeypatch):
    monkeypatch.setattr(energy_use, "EnergyMeter", Meter)
    monkeypatch.setattr(energy_use, "WORK_S", 0.02)
    (done,), notes = with_energy(context, held_out, [planned])
    assert notes == ()
    assert done.cell.energy == FOUND
    assert energy(done.cell) == "2.50 mJ (batch 4, RAPL package-0)"
    monkeypatch.setattr(energy_use, "_energy", lambda *_: pytest.fail("it is in the cache"))
    assert with_energy(context, held_out, [planned])[0] == [done]


def test_a_machine_that_counts_none_says_why_once(context, held_out, planned, monkeypatch):
    monkeypatch.setattr(Meter, "reason", "not available here: no counters")
    monkeypatch.setattr(energy_use, "EnergyMeter", Meter)
    cells, notes = with_energy(context, held_out, [planned, planned])
    assert notes == ("energy on cpu: not available here: no counters",)
    assert [cell.cell.energy for cell in cells] == [None, None]
    assert energy(planned.cell) == "not available here"


def test_a_worker_that_dies_costs_the_energy_and_not_the_cell(context, held_out, planned, monkeypatch, capsys):
    def died(*_):
        raise WorkerError("null/fp32/cpu: its process died", remedy="see the log")

    monkeypatch.setattr(energy_use, "EnergyMeter", Meter)
    monkeypatch.setattr(energy_use, "_energy", died)
    (done,), _ = with_energy(context, held_out, [planned])
    assert done.cell == planned.cell
    assert "energy of null/fp32/cpu is not known" in capsys.readouterr().err
