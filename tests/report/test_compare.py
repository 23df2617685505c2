"""Comparisons of planted runs: every verdict, every reason not to compare, exit codes, false alarms and power."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from deploycnn.environment import Cpu, Environment, Memory, System
from deploycnn.errors import EXIT_INCOMPARABLE, EXIT_INCONCLUSIVE, EXIT_NOTHING_TO_SHIP, EXIT_OK, RecipeError, RecordError
from deploycnn.measure.schedule import CONTROL, twin_of
from deploycnn.measure.summary import summarise
from deploycnn.recipe import MeasureOptions
from deploycnn.record import Accuracy, Cell, DataFacts, ModelFacts, Record, Session
from deploycnn.recordfile import write_record
from deploycnn.report.compare import compare, compare_runs, parse_limit, parse_metric
from deploycnn.report.compare_json import comparison_schema, render_json
from deploycnn.report.compare_values import Change, Comparison
from deploycnn.samples import SAMPLES_NAME, Samples, sample_name, write_samples
from deploycnn.types import Artifact, Done, Failed, FileEntry, Interval, Target, TensorSpec, Verdict

REFERENCE = "torch/fp32/cpu"
TIMES_S = {REFERENCE: 4e-4, "onnxruntime/fp32/cpu": 1e-4, "onnxruntime/int8/cpu": 1.5e-4, "tvm/fp32/cpu": 1.2e-4}
MACHINE = Environment(
    cpu=Cpu(model="a processor", architecture="x86_64", instruction_sets=("avx2",), logical_cores=2, usable_cores=2),
    memory=Memory(total_bytes=8 * 10**9),
    os=System(name="Linux", release="6.1"),
    python="3.11.7",
    packages={"numpy": "2.4.6", "torch": "2.14.1"},
)


# --- runs to compare ------------------------------------------------------------------------


def planted_samples(
    times_s: Mapping[str, float], *, seed: int, batch: int = 1, state: float = 1.0, luck: float = 0.004, rounds: int = 16
) -> dict[str, Samples]:
    """Blocks of every cell, the reference's twin and the control, on a machine that is `state` times slower than usual.

    Cells feel the state as strongly as the control does, give or take a quarter; each restart has luck of its own.
    """
    rng = np.random.default_rng(seed)
    process_B = np.arange(rounds) * 2 // rounds
    mood_B = math.log(state) + 0.02 * np.cumsum(rng.normal(size=rounds)) / math.sqrt(rounds)
    found = {}
    for cell, run_s in {**times_s, twin_of(REFERENCE): times_s[REFERENCE], CONTROL: 5e-5}.items():
        feeling = 1.0 if cell == CONTROL else rng.uniform(0.75, 1.25)
        restart_B = (0.0 if cell == CONTROL else luck) * rng.normal(size=2)[process_B]
        level_B = np.log(run_s) + feeling * mood_B + restart_B + rng.normal(0, 0.004, rounds)
        n_runs = max(4, round(0.01 / run_s))
        times = np.exp(level_B[:, None] + 0.01 * rng.standard_exponential((rounds, n_runs)))
        found[sample_name(cell, batch)] = Samples(
            time_ns=(times.ravel() * 1e9).astype(np.int64),
            runs_B=np.full(rounds, n_runs),
            round_B=np.arange(rounds),
            process_B=process_B,
            start_s_B=np.arange(rounds) * 0.1,
        )
    return found


def an_artifact(name: str, size_bytes: int = 250_000) -> Artifact:
    backend, precision, target = name.split("/")
    return Artifact(
        backend=backend,
        backend_version="1.0",
        target=Target.parse(target),
        precision=precision,
        files=(FileEntry(name="model", size_bytes=size_bytes, sha256=f"{size_bytes:064x}"),),
        sha256=f"{abs(hash(name)) % 10**9 + size_bytes:064x}",
        parent_sha256="2" * 64,
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 32, 32)),
        output_name="logits",
        n_classes=10,
        batches=None,
        evidence=None,
        build_s=1.0,
    )


def an_accuracy(lost: int = 10, won: int = 8, n: int = 10_000, top1: float = 0.7) -> Accuracy:
    share = top1 + (won - lost) / n
    return Accuracy(
        n_images=n,
        top1=Interval(value=share, low=share - 0.009, high=share + 0.009),
        reference_top1=top1,
        drop=Interval(value=(lost - won) / n, low=-0.001, high=0.002),
        agreement=0.99,
        right_to_wrong=tuple(range(lost)),
        wrong_to_right=tuple(range(5000, 5000 + won)),
        per_class=(),
        relative_logit_error=1e-3,
        max_logit_error=0.1,
        nonfinite_images=0,
        mean_confidence=0.8,
        reference_mean_confidence=0.8,
        ece=0.02,
        reference_ece=0.02,
        verdict=Verdict(state="pass", reason="the drop is within the limit"),
    )


def a_run(samples: Mapping[str, Samples], **changes: Any) -> Record:
    """A record of those samples."""
    options = MeasureOptions(batches=(1,))
    summary = summarise(samples, options, reference=REFERENCE)
    cells = tuple(
        Cell(
            backend=name.split("/")[0],
            precision=name.split("/")[1],
            target=Target.parse(name.split("/")[2]),
            outcome=Done(),
            artifact=an_artifact(name),
            accuracy=an_accuracy(),
            latencies=latencies,
            machine=MACHINE.id,
        )
        for name, latencies in summary.latencies.items()
    )
    record = Record(
        deploycnn_version="0.1.0",
        created="2026-01-01T00:00:00+00:00",
        command="deploycnn run quickstart",
        recipe={},
        data=DataFacts(
            name="cifar10", asked="cifar10", source="a folder", official=True, sha256="a" * 64, classes=tuple("abcdefghij"),
            shape_CHW=(3, 32, 32), n_train=1, n_validation=1, n_calibration=1, n_test=10_000,
        ),
        model=ModelFacts(name="lenet", parameters=62006, source="trained", checkpoint_sha256="1" * 64, graph_sha256="2" * 64),
        environments={MACHINE.id: MACHINE},
        reference=REFERENCE,
        cells=cells,
        noise_floor=summary.noise_floor,
    )  # fmt: skip
    return record.model_copy(update=changes)


def slower(cell: str, by: float) -> dict[str, float]:
    return {name: run_s * (by if name == cell else 1.0) for name, run_s in TIMES_S.items()}


def compared(
    base: Mapping[str, float] = TIMES_S,
    new: Mapping[str, float] = TIMES_S,
    *,
    seed: int = 0,
    state: float = 1.0,
    metrics: Any = ("p50",),
    base_changes: Mapping[str, Any] | None = None,
    new_changes: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Comparison:
    samples = planted_samples(base, seed=2 * seed), planted_samples(new, seed=2 * seed + 1, state=state)
    records = a_run(samples[0], **(base_changes or {})), a_run(samples[1], **(new_changes or {}))
    return compare(*records, *samples, metrics=metrics, **arguments)


def of(comparison: Comparison, cell: str, metric: str = "p50") -> Change:
    (found,) = [change for change in comparison.changes if change.cell == cell and change.metric == metric]
    return found


def with_cell(record_cells: tuple[Cell, ...], name: str, **changes: Any) -> tuple[Cell, ...]:
    return tuple(cell.model_copy(update=changes) if cell.name == name else cell for cell in record_cells)


# --- times ----------------------------------------------------------------------------------


def test_the_same_artifacts_are_the_same() -> None:
    result = compared()
    assert {change.verdict for change in result.changes} == {"same"}
    assert result.exit_code == EXIT_OK
    assert "No regression in 4 comparisons" in result.conclusion


@pytest.mark.parametrize("metric", ["p50", "p90", "p99", "throughput"])
@pytest.mark.parametrize(("by", "verdict", "code"), [(1.2, "slower", EXIT_NOTHING_TO_SHIP), (0.8, "faster", EXIT_OK)])
def test_a_planted_change_is_found_in_its_cell_only(metric: str, by: float, verdict: str, code: int) -> None:
    result = compared(new=slower("tvm/fp32/cpu", by), metrics=(metric,))
    change = of(result, "tvm/fp32/cpu", metric)
    assert change.verdict == verdict
    assert change.ratio is not None
    expected = 1 / by if metric == "throughput" else by
    assert change.ratio.low < expected < change.ratio.high
    assert {x.verdict for x in result.changes if x is not change} <= {"same", "inconclusive"}
    assert result.exit_code == code


def resumed_run(folder: Path, *, seed: int, state: float, by: float = 1.0) -> Path:
    """A run of which one cell was finished later, when the machine was `state` times slower, by itself `by` times slower."""
    later = "tvm/fp32/cpu"
    first = planted_samples({name: run_s for name, run_s in TIMES_S.items() if name != later}, seed=seed)
    second = planted_samples({REFERENCE: TIMES_S[REFERENCE], later: by * TIMES_S[later]}, seed=seed + 100, state=state)
    record, there = a_run(first), a_run(second)
    (finished,) = [cell for cell in there.cells if cell.name == later]
    session = Session(
        machine=MACHINE.id,
        folder="resumed/1",
        deploycnn_version="0.1.0",
        created="2026-01-02T00:00:00+00:00",
        command="deploycnn resume",
        finished={later: later},
        reference=there.cells[0],
        noise_floor=there.noise_floor,
    )
    (folder / session.folder).mkdir(parents=True)
    write_samples(folder / SAMPLES_NAME, first)
    write_samples(folder / session.folder / SAMPLES_NAME, second)
    write_record(folder, record.model_copy(update={"cells": (*record.cells, finished), "sessions": (session,)}))
    return folder


@pytest.mark.parametrize(("by", "verdicts"), [(1.0, {"same", "inconclusive"}), (1.3, {"slower"})])
def test_resumed_cells_are_compared_by_their_own_samples_and_control(tmp_path: Path, by: float, verdicts: set[str]) -> None:
    base = resumed_run(tmp_path / "base", seed=1, state=1.0)
    new = resumed_run(tmp_path / "new", seed=2, state=1.15, by=by)  # slower as a machine too, which the session's control tells
    result = compare_runs([base, new])
    change = of(result, "tvm/fp32/cpu")
    assert change.verdict in verdicts
    assert change.ratio is not None
    assert change.ratio.value == pytest.approx(by, rel=0.06)
    assert of(result, "onnxruntime/fp32/cpu").verdict in {"same", "inconclusive"}
    shifts = sorted(shift.ratio.value for shift in result.machine_shifts)
    assert shifts == [pytest.approx(1.0, rel=0.05), pytest.approx(1.15, rel=0.05)]


@pytest.mark.parametrize("lost", ["samples", "folder"])
def test_resumed_cells_without_samples_fall_back_on_the_record(tmp_path: Path, lost: str) -> None:
    base = resumed_run(tmp_path / "base", seed=1, state=1.0)
    new = resumed_run(tmp_path / "new", seed=2, state=1.0)
    (new / "resumed/1" / SAMPLES_NAME).unlink()
    if lost == "folder":
        (new / "resumed/1").rmdir()
    change = of(compare_runs([base, new]), "tvm/fp32/cpu")
    assert change.ratio is not None
    assert change.verdict != "incomparable"


def test_a_slowdown_within_the_limit_is_said_and_allowed() -> None:
    result = compared(new=slower("tvm/fp32/cpu", 1.2), fail_above=0.5)
    assert of(result, "tvm/fp32/cpu").verdict == "slower"
    assert result.exit_code == EXIT_OK


@pytest.mark.parametrize("state", [0.6, 1.3, 1.9])
def test_a_slower_machine_is_not_blamed_on_artifacts(state: float) -> None:
    result = compared(state=state)
    assert not {"faster", "slower"} & {change.verdict for change in result.changes}
    (shift,) = result.machine_shifts
    assert shift.measured_by == CONTROL
    assert shift.ratio.value == pytest.approx(state, rel=0.05)


def put_aside(samples: Mapping[str, Samples], share: float, seed: int) -> dict[str, Samples]:
    """The same on cores where other processes take `share` of the time, in turns of 4 ms."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, row in samples.items():
        turns = rng.poisson(row.time_ns / 4e6 * share / (1 - share))
        found[name] = replace(row, time_ns=(row.time_ns + 4e6 * turns).astype(np.int64))
    return found


@pytest.mark.parametrize("metric", ["p50", "p90", "throughput"])
def test_other_processes_that_only_long_runs_feel_are_not_blamed_on_artifacts(metric: str) -> None:
    times_s = {**TIMES_S, "torch/fp32/cpu": 8e-3, "tvm/fp32/cpu": 5e-3}
    samples = planted_samples(times_s, seed=0), put_aside(planted_samples(times_s, seed=1), 0.5, seed=2)
    base, new = a_run(samples[0]), a_run(samples[1])
    result = compare(base, new.model_copy(update={"noise_floor": base.noise_floor}), *samples, metrics=(metric,))  # type: ignore[arg-type]
    moved = [change.cell for change in result.changes if change.base and change.new and change.new.value > 1.3 * change.base.value]
    assert metric == "throughput" or {"torch/fp32/cpu", "tvm/fp32/cpu"} <= set(moved)
    assert not {"faster", "slower"} & {change.verdict for change in result.changes}


def test_without_a_control_an_unchanged_reference_tells_the_machine_from_the_artifacts() -> None:
    samples = [planted_samples(times, seed=i, state=1 + 0.1 * i) for i, times in enumerate((TIMES_S, slower("tvm/fp32/cpu", 1.5)))]
    for found in samples:
        del found[sample_name(CONTROL, 1)]
    result = compare(a_run(samples[0]), a_run(samples[1]), *samples)
    assert result.machine_shifts[0].measured_by == REFERENCE
    assert of(result, "tvm/fp32/cpu").verdict == "slower"
    assert of(result, "onnxruntime/fp32/cpu").verdict != "slower"


def test_without_anything_in_common_it_says_that_the_machine_cannot_be_told_apart() -> None:
    other = MACHINE.model_copy(update={"packages": {"numpy": "2.5.0"}})
    samples = planted_samples(TIMES_S, seed=0), planted_samples(TIMES_S, seed=1)
    base, new = a_run(samples[0]), a_run(samples[1], environments={MACHINE.id: other})
    new = new.model_copy(update={"cells": with_cell(new.cells, REFERENCE, artifact=an_artifact(REFERENCE, 1))})
    result = compare(base, new, *samples)
    assert result.machine_shifts == ()
    assert any("cannot be told" in note for note in result.notes)
    assert any("numpy 2.4.6 to 2.5.0" in note for note in result.notes)


def test_the_control_does_not_speak_for_a_gpu() -> None:
    reference, other = "torch/fp32/cuda", "tensorrt/fp16/cuda"
    times_s = {REFERENCE: 4e-4, reference: 3e-4, other: 1e-4}
    samples = planted_samples(times_s, seed=0), planted_samples({**times_s, other: 1.3e-4}, seed=1)
    records = [a_run(found, reference=reference) for found in samples]
    result = compare(*records, *samples)
    assert {(shift.device, shift.measured_by) for shift in result.machine_shifts} == {("cpu", CONTROL), ("cuda", reference)}
    assert of(result, other).verdict == "slower"


def test_no_difference_below_the_noise_floor_is_called_one() -> None:
    loud = {"1": Interval(value=1.3, low=1.2, high=1.4)}
    result = compared(new=slower("tvm/fp32/cpu", 1.2), new_changes={"noise_floor": loud})
    change = of(result, "tvm/fp32/cpu")
    assert change.verdict == "inconclusive"
    assert "noise floor" in change.reason
    assert result.exit_code == EXIT_INCONCLUSIVE


def test_a_wide_interval_is_inconclusive_and_has_its_exit_code() -> None:
    samples = planted_samples(TIMES_S, seed=0, luck=0.2), planted_samples(TIMES_S, seed=1, luck=0.2)
    result = compare(a_run(samples[0]), a_run(samples[1]), *samples)
    assert {change.verdict for change in result.changes} == {"inconclusive"}
    assert result.exit_code == EXIT_INCONCLUSIVE
    assert "Inconclusive" in result.conclusion


def test_the_very_same_samples_are_the_same_and_that_is_said() -> None:
    samples = planted_samples(TIMES_S, seed=0)
    record = a_run(samples)
    result = compare(record, record, samples, samples)
    assert {change.verdict for change in result.changes} == {"same"}
    assert any("very same samples" in note for note in result.notes)
    assert all(change.ratio is not None and change.ratio.value == 1 for change in result.changes)


def test_records_without_samples_are_compared_by_their_intervals() -> None:
    samples = planted_samples(TIMES_S, seed=0), planted_samples(slower("tvm/fp32/cpu", 1.5), seed=1)
    result = compare(a_run(samples[0]), a_run(samples[1]), None, samples[1])
    assert of(result, "tvm/fp32/cpu").verdict == "slower"
    assert any("no samples.npz" in note for note in result.notes)


@pytest.mark.slow
def test_false_alarms_stay_rare_and_a_slowdown_of_ten_percent_is_found() -> None:
    """The simulated form of benchmarks/false_alarms.py and power.py: machine state, drift, restarts and all."""
    rng = np.random.default_rng(11)
    called = rows = found = 0
    for trial in range(60):
        state = float(np.exp(rng.normal(0, 0.03)))
        result = compared(new=slower("tvm/fp32/cpu", 1.1), seed=100 + trial, state=state)
        planted = of(result, "tvm/fp32/cpu")
        found += planted.verdict == "slower"
        others = [change for change in result.changes if change is not planted]
        called += sum(change.verdict in ("faster", "slower") for change in others)
        rows += len(others)
    assert called / rows <= 0.05
    assert found / 60 >= 0.95


# --- what cannot be compared ----------------------------------------------------------------


def _other_machine(run: Record) -> dict[str, Any]:
    other = MACHINE.model_copy(update={"cpu": MACHINE.cpu.model_copy(update={"model": "another processor"})})
    return {"environments": {other.id: other}, "cells": tuple(cell.model_copy(update={"machine": other.id}) for cell in run.cells)}


def _latency(**changes: Any):  # type: ignore[no-untyped-def]
    def change(run: Record) -> dict[str, Any]:
        return {
            "cells": tuple(c.model_copy(update={"latencies": tuple(x.model_copy(update=changes) for x in c.latencies)}) for c in run.cells)
        }

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(_other_machine, "other machine: a processor", id="machine"),
        pytest.param(_latency(boundary="device"), "other boundary: host-to-host and device", id="boundary"),
        pytest.param(_latency(threads=2), "other threads: 1 and 2", id="threads"),
        pytest.param(_latency(streams=4), "other streams: 1 and 4", id="streams"),
        pytest.param(_latency(batch=64), "batch 1 was not measured in the new run", id="batch"),
        pytest.param(lambda run: {"data": run.data.model_copy(update={"sha256": "b" * 64})}, "other data set: cifar10", id="data set"),
        pytest.param(lambda run: {"cells": ()}, "the new run does not have it", id="gone"),
        pytest.param(
            lambda run: {"cells": tuple(c.model_copy(update={"outcome": Failed(stage="load", reason="no")}) for c in run.cells)},
            "new run: failed in load: no",
            id="failed",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    samples = planted_samples(TIMES_S, seed=0), planted_samples(TIMES_S, seed=1)
    base, new = a_run(samples[0]), a_run(samples[1])
    result = compare(base, new.model_copy(update=change(new)), *samples)
    assert {found.verdict for found in result.changes} == {"incomparable"}
    assert all(reason in found.reason for found in result.changes)
    assert result.exit_code == EXIT_INCOMPARABLE


def test_a_regression_outweighs_a_cell_that_is_gone() -> None:
    samples = planted_samples(TIMES_S, seed=0), planted_samples(slower("tvm/fp32/cpu", 1.5), seed=1)
    new = a_run(samples[1])
    new = new.model_copy(update={"cells": tuple(cell for cell in new.cells if cell.backend != "torch")})
    result = compare(a_run(samples[0]), new, *samples)
    assert of(result, REFERENCE).verdict == "incomparable"
    assert result.exit_code == EXIT_NOTHING_TO_SHIP


def test_a_new_cell_is_named_and_harms_nothing() -> None:
    samples = planted_samples(TIMES_S, seed=0), planted_samples(TIMES_S, seed=1)
    base = a_run(samples[0])
    base = base.model_copy(update={"cells": tuple(cell for cell in base.cells if cell.backend != "tvm")})
    result = compare(base, a_run(samples[1]), *samples)
    assert result.added == ("tvm/fp32/cpu",)
    assert result.exit_code == EXIT_OK


def test_cells_that_never_worked_are_not_spoken_of() -> None:
    samples = planted_samples(TIMES_S, seed=0), planted_samples(TIMES_S, seed=1)
    broken = {"outcome": Failed(stage="compile", reason="no"), "latencies": ()}
    records = [r.model_copy(update={"cells": with_cell(r.cells, "tvm/fp32/cpu", **broken)}) for r in map(a_run, samples)]
    result = compare(*records, *samples)
    assert len(result.changes) == 3


def test_a_percentile_that_a_sample_could_not_carry_is_not_compared() -> None:
    result = compared({REFERENCE: 0.01}, {REFERENCE: 0.01}, metrics=("p99",))
    (change,) = result.changes
    assert change.verdict == "incomparable"
    assert "too few samples" in change.reason


# --- accuracy and size ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "graph", "verdict", "code"),
    [
        (10, "2", "same", EXIT_OK),
        (300, "2", "worse", EXIT_NOTHING_TO_SHIP),
        (60, "2", "worse", EXIT_OK),  # half a point: certain, and within the limit of one
        (60, "9", "inconclusive", EXIT_INCONCLUSIVE),  # images of another graph cannot be paired
    ],
)
def test_top1(lost: int, graph: str, verdict: str, code: int) -> None:
    samples = planted_samples(TIMES_S, seed=0)
    base = a_run(samples)
    new = base.model_copy(
        update={
            "cells": with_cell(base.cells, "tvm/fp32/cpu", accuracy=an_accuracy(lost=lost)),
            "model": base.model.model_copy(update={"graph_sha256": graph * 64}),
        }
    )
    result = compare(base, new, None, None, metrics=("top1",))
    change = of(result, "tvm/fp32/cpu", "top1")
    assert change.verdict == verdict
    assert change.difference is not None
    assert change.difference.value == pytest.approx((10 - lost) / 10_000)
    assert change.difference.low <= change.difference.value <= change.difference.high
    assert result.exit_code == code


def test_top1_that_rose_is_better() -> None:
    base = a_run(planted_samples(TIMES_S, seed=0))
    new = base.model_copy(update={"cells": with_cell(base.cells, "tvm/fp32/cpu", accuracy=an_accuracy(won=200))})
    result = compare(base, new, None, None, metrics=("top1",))
    assert of(result, "tvm/fp32/cpu", "top1").verdict == "better"
    assert result.exit_code == EXIT_OK


@pytest.mark.parametrize(
    ("size_bytes", "verdict", "code"), [(250_000, "same", 0), (260_000, "worse", 0), (300_000, "worse", 1), (9, "better", 0)]
)
def test_size_is_exact(size_bytes: int, verdict: str, code: int) -> None:
    base = a_run(planted_samples(TIMES_S, seed=0))
    new = base.model_copy(update={"cells": with_cell(base.cells, "tvm/fp32/cpu", artifact=an_artifact("tvm/fp32/cpu", size_bytes))})
    result = compare(base, new, None, None, metrics=("size",))
    assert of(result, "tvm/fp32/cpu", "size").verdict == verdict
    assert result.exit_code == code
    assert result.notes == ()


# --- from files -----------------------------------------------------------------------------


def written(folder: Path, seed: int, times_s: Mapping[str, float] = TIMES_S) -> Path:
    samples = planted_samples(times_s, seed=seed)
    folder.mkdir()
    write_record(folder, a_run(samples))
    write_samples(folder / SAMPLES_NAME, samples)
    return folder


def test_runs_are_compared_from_their_folders_or_records(tmp_path: Path) -> None:
    base, new = written(tmp_path / "monday", 0), written(tmp_path / "tuesday", 1, slower("tvm/fp32/cpu", 1.3))
    by_folder, by_file = compare_runs([base, new]), compare_runs([base / "record.json", new / "record.json"])
    assert by_folder == by_file
    assert (by_folder.base.name, by_folder.new.name) == ("monday", "tuesday")
    assert by_folder.exit_code == EXIT_NOTHING_TO_SHIP
    assert not by_folder.history


def test_three_runs_have_a_history(tmp_path: Path) -> None:
    runs = [written(tmp_path / name, i) for i, name in enumerate(("monday", "tuesday", "wednesday"))]
    result = compare_runs(runs, metrics=("p50", "size"))
    assert (result.base.name, result.new.name) == ("monday", "wednesday")
    assert len(result.history) == 8
    assert all([point.run for point in row.points] == ["monday", "tuesday", "wednesday"] for row in result.history)
    assert all(point.value is not None for row in result.history for point in row.points)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
    result = compare_runs([written(tmp_path / "a" / "run", 0), written(tmp_path / "b" / "run", 1)])
    assert result.base.name != result.new.name


def test_one_run_alone_or_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    base = written(tmp_path / "base", 0)
    with pytest.raises(RecipeError, match="one run"):
        compare_runs([base])
    with pytest.raises(RecordError, match="there is no run"):
        compare_runs([base, tmp_path / "nowhere"])
    broken = written(tmp_path / "broken", 1)
    (broken / SAMPLES_NAME).write_bytes(b"PK")
    with pytest.raises(RecordError, match="damaged"):
        compare_runs([base, broken])


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), (".5", 0.5), ("0.5pp", 0.005), ("0", 0.0)])
def test_limits(text: str, share: float) -> None:
    assert parse_limit(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "five", "-5%", "5%%", "nan", "inf"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="not a limit"):
        parse_limit(text)


def test_metrics() -> None:
    assert parse_metric("p99") == "p99"
    with pytest.raises(RecipeError, match="p50, p90"):
        parse_metric("p95")


def test_json_is_valid_under_its_schema() -> None:
    document = json.loads(render_json(compared(metrics=("p50", "top1", "size"))))
    jsonschema.validate(document, comparison_schema(), cls=jsonschema.Draft202012Validator)
    assert document["comparison_version"] == 1
    assert document["exit_code"] == 0
    assert len(document["changes"]) == 12
