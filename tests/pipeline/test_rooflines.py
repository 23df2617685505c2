"""Measured cells of this CPU are placed under its roofline; where its peaks cannot be had, the run goes on without."""

from __future__ import annotations

import pytest

from deploycnn.backends import create
from deploycnn.environment import environment
from deploycnn.errors import WorkerError
from deploycnn.pipeline import rooflines
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.context import Context
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.recipe import Recipe
from deploycnn.record import Cell, Latency, Peak
from deploycnn.types import Done, Interval, Readiness, Target

PEAK = Peak(threads=1, flops_per_s=1e11, cache_bytes_per_s=1e11, memory_bytes_per_s=1e10)


@pytest.fixture
def context(store, tmp_path):
    talk = Talk(quiet=True)
    return Context(recipe=Recipe(), store=store, talk=talk, environment=environment(), out=tmp_path, memory_bytes=10**9)


@pytest.fixture(autouse=True)
def no_calls(monkeypatch):
    """Tests of calls say what a call costs."""
    monkeypatch.setattr(rooflines, "dispatch_times", lambda context, measured: {})


def planned(target="cpu", p50_s=1e-4):
    known = Interval(value=p50_s, low=p50_s, high=p50_s)
    counts = {"n_samples": 100, "n_blocks": 4, "n_rounds": 2, "n_processes": 1, "outliers": 0, "noisy": False}
    tails = dict.fromkeys(("p90_s", "p95_s", "p99_s", "p999_s"))
    extremes = {"mean_s": p50_s, "min_s": p50_s, "max_s": p50_s}
    rows = [
        Latency(batch=batch, threads=1, samples="x", p50_s=known, images_per_s=known, **counts, **tails, **extremes) for batch in (1, 32)
    ]
    cell = Cell(backend="null", precision="fp32", target=Target.parse(target), outcome=Done(), latencies=tuple(rows) if p50_s else ())
    return PlannedCell(backend=create("null", {}), readiness=Readiness(state="ready"), cell=cell)


def test_each_measured_batch_has_its_place(context, lenet_graph, monkeypatch):
    monkeypatch.setattr(rooflines, "measure_peak", lambda threads, cores: PEAK)
    cells, peak = rooflines.with_rooflines(context, {("fp32", None): lenet_graph}, [planned(), planned("cuda:sm89")])
    assert peak == PEAK
    one, many = cells[0].cell.rooflines
    assert (one.batch, many.batch) == (1, 32)
    assert one.flops == pytest.approx(1.303e6, rel=0.01)
    assert many.flops == pytest.approx(32 * one.flops)
    assert many.bytes < 32 * one.bytes  # weights are read once
    assert one.share == pytest.approx(one.floor_s / 1e-4)
    assert cells[1].cell.rooflines == ()


def test_peaks_are_measured_once_per_machine(context, lenet_graph, monkeypatch):
    calls = []
    monkeypatch.setattr(rooflines, "measure_peak", lambda threads, cores: calls.append(threads) or PEAK)
    for _ in range(2):
        rooflines.with_rooflines(context, {("fp32", None): lenet_graph}, [planned()])
    assert calls == [1]


def test_without_peaks_the_cells_stay_as_they_are(context, lenet_graph, monkeypatch):
    def broken(threads, cores):
        raise WorkerError("the machine's peak could not be measured", remedy="leave the roofline out")

    monkeypatch.setattr(rooflines, "measure_peak", broken)
    before = [planned()]
    assert rooflines.with_rooflines(context, {("fp32", None): lenet_graph}, before) == (before, None)


def test_a_run_that_measured_nothing_here_measures_no_peaks(context, monkeypatch):
    monkeypatch.setattr(rooflines, "measure_peak", lambda threads, cores: pytest.fail("not needed"))
    cells = [planned("cuda:sm89")]
    assert rooflines.with_rooflines(context, {}, cells) == (cells, None)


def test_a_call_that_takes_most_of_the_time_is_what_bounds_it(context, lenet_graph, monkeypatch):
    monkeypatch.setattr(rooflines, "measure_peak", lambda threads, cores: PEAK)
    monkeypatch.setattr(rooflines, "dispatch_times", lambda context, measured: {"null": {1: 8e-5, 32: 1e-6}})
    cells, _ = rooflines.with_rooflines(context, {("fp32", None): lenet_graph}, [planned(p50_s=1e-4)])
    one, many = cells[0].cell.rooflines
    assert (one.bound, one.dispatch_s) == ("launch", 8e-5)
    assert one.sentence.startswith("launch-bound: 80 % of the time is the call itself")
    assert (many.bound, many.dispatch_s) == ("memory", 1e-6)
