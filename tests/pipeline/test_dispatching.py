"""What a call costs is timed once per backend, in workers; a backend that cannot be timed costs the run nothing."""

from __future__ import annotations

import json

import pytest

from deploycnn.backends import create
from deploycnn.environment import environment
from deploycnn.errors import Unsupported, WorkerError
from deploycnn.pipeline import dispatching
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.context import Context
from deploycnn.pipeline.dispatching import dispatch_times
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.recipe import MeasureOptions, Recipe
from deploycnn.record import Cell
from deploycnn.types import Done, Readiness, Target


@pytest.fixture
def context(store, tmp_path):
    recipe = Recipe(measure=MeasureOptions(batches=(1, 4), block_s=0.002))
    return Context(recipe=recipe, store=store, talk=Talk(quiet=True), environment=environment(), out=tmp_path, memory_bytes=10**10)


def planned(backend: str, precision: str = "fp32") -> PlannedCell:
    cell = Cell(backend=backend, precision=precision, target=Target(device="cpu"), outcome=Done())
    return PlannedCell(backend=create(backend, {}), readiness=Readiness(state="ready"), cell=cell)


def test_a_call_is_timed_at_every_batch_size_and_kept(context, monkeypatch):
    cells = [planned("null"), planned("null", "int8")]
    times = dispatch_times(context, cells)
    assert set(times) == {"null"}
    assert set(times["null"]) == {1, 4}
    assert all(0 < time_s < 0.1 for time_s in times["null"].values())
    monkeypatch.setattr(dispatching, "_timed", lambda *_: pytest.fail("it is in the cache"))
    assert dispatch_times(context, cells) == times


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "openvino"])
def test_a_real_call_takes_microseconds(context, backend):
    if create(backend, {}).probe(Target(device="cpu")).state != "ready":
        pytest.skip(f"{backend} is not ready here")
    times = dispatch_times(context, [planned(backend)])
    assert 1e-7 < times[backend][1] < 0.01


def test_a_backend_that_cannot_hold_such_a_graph_is_asked_once(context, monkeypatch):
    calls = []

    def refused(*_):
        calls.append(1)
        raise Unsupported("no Flatten here", remedy="none")

    monkeypatch.setattr(dispatching, "_timed", refused)
    assert [dispatch_times(context, [planned("null")]) for _ in range(2)] == [{}, {}]
    assert len(calls) == 1


def test_a_worker_that_died_is_a_warning_and_is_tried_again(context, monkeypatch, capsys):
    calls = []

    def died(*_):
        calls.append(1)
        raise WorkerError("null/dispatch/cpu: its process died", remedy="see the log")

    monkeypatch.setattr(dispatching, "_timed", died)
    assert [dispatch_times(context, [planned("null")]) for _ in range(2)] == [{}, {}]
    assert len(calls) == 2
    assert "what a call of null costs is not known" in capsys.readouterr().err


def test_what_is_kept_is_json(context):
    dispatch_times(context, [planned("null")])
    (entry,) = [facts for facts in context.store.entries() if facts.stage == "dispatch"]
    assert set(json.loads((entry.path / "files" / dispatching.DISPATCH).read_text())["p50_s"]) == {"1", "4"}
