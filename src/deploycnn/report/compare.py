"""Two runs: which cell became faster, slower, better, worse, which is the same, and for which nobody can say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np

from deploycnn.errors import RecipeError
from deploycnn.measure.estimates import Row
from deploycnn.measure.schedule import CONTROL
from deploycnn.record import Cell, Latency, Record
from deploycnn.recordfile import read_record
from deploycnn.report.compare_history import history
from deploycnn.report.compare_latency import Times, floor, recorded
from deploycnn.report.compare_matching import same_work, times_incomparable, why_incomparable
from deploycnn.report.compare_notes import graph_notes, run_facts, time_notes
from deploycnn.report.compare_quality import same_answers_expected, top1_change
from deploycnn.report.compare_values import TIMES, Change, Comparison, MachineShift, Metric, Verdict, figure
from deploycnn.report.compare_verdict import Undecided, judged
from deploycnn.samples import SAMPLES_NAME, Samples, read_samples, sample_name, split_name
from deploycnn.types import Interval

LIMIT = 0.05  # of times and size
LIMIT_TOP1 = 0.01  # 1 percentage point
FEWEST_ROUNDS = 5  # that a row must share with the yardstick


def parse_limit(text: str) -> float:
    """`5%` or `0.05` as a share. Raises RecipeError where it is neither."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%|pp)?\s*", text)
    if not match:
        raise RecipeError(f"'{text}' is not a limit", remedy="write a percentage such as 5%, or a share such as 0.05")
    return float(match[1]) / (100 if match[2] else 1)


def parse_metric(text: str) -> Metric:
    """A metric's name. Raises RecipeError where there is no such metric."""
    for metric in get_args(Metric):
        if metric == text:
            return metric  # type: ignore[no-any-return]
    raise RecipeError(f"there is no metric '{text}'", remedy=f"use one of {', '.join(get_args(Metric))}")


def compare_runs(paths: Sequence[Path], *, fail_above: float | None = None, metrics: Sequence[Metric] = ("p50",)) -> Comparison:
    """Compares the first run with the last; three or more also give the history of every cell.

    Args:
        paths: folders of runs, or their records.
        fail_above: share by which a figure may get worse; None: 5 % for times and size, 1 percentage point for top1.

    Raises:
        RecordError: a record is missing, damaged or of another schema version; its samples are damaged.
        RecipeError: fewer than two runs.
    """
    if len(paths) < 2:
        raise RecipeError("one run cannot be compared", remedy="give the folders of two runs or more, the older one first")
    records = [read_record(path) for path in paths]
    names = _names(paths)
    ends = [(paths[i], records[i]) for i in (0, -1)]
    result = compare(
        records[0],
        records[-1],
        *(_samples_beside(path) for path, _ in ends),
        fail_above=fail_above,
        metrics=metrics,
        names=(names[0], names[-1]),
        resumed=(_resumed_samples(*ends[0]), _resumed_samples(*ends[1])),
    )
    if len(paths) == 2:
        return result
    return result.model_copy(update={"history": history(list(zip(names, records, strict=True)), metrics)})


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names of runs: the folder's, or the file's where that is not record.json."""
    folders = [path.parent if path.name == "record.json" else path for path in paths]
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _samples_beside(path: Path) -> Mapping[str, Samples] | None:
    folder = path if path.is_dir() else path.parent
    return read_samples(folder) if (folder / SAMPLES_NAME).is_file() else None


def _resumed_samples(path: Path, record: Record) -> dict[str, Mapping[str, Samples]]:
    """Samples of what was finished on another machine, by the session's folder."""
    folder = path if path.is_dir() else path.parent
    found = {session.folder: _samples_beside(folder / session.folder) for session in record.sessions if (folder / session.folder).is_dir()}
    return {place: samples for place, samples in found.items() if samples is not None}


Where = tuple[int, str, str, str]  # batch size, kind of device, and where base and new were measured: see _place


def _place(record: Record, cell: str) -> str:
    """Folder of the session that finished a cell, "" for the run itself: each holds samples of one measurement."""
    return next((session.folder for session in record.sessions if cell in session.finished), "")


def _noise_floor(record: Record, place: str) -> Mapping[str, Interval]:
    return next((session.noise_floor for session in record.sessions if session.folder == place), record.noise_floor)


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two runs, and how they are compared."""

    base: Record
    new: Record
    times: Mapping[Where, Times]  # where both runs have samples
    fail_above: float | None
    confidence: float

    def limit(self, metric: Metric) -> float:
        """How much worse a figure may get, as a share."""
        if self.fail_above is not None:
            return self.fail_above
        return LIMIT_TOP1 if metric == "top1" else LIMIT

    def floor(self, batch: int, places: tuple[str, str] = ("", "")) -> float:
        """The noise floor of both runs, as a logarithm, by the measurements in these places."""
        floors = [_noise_floor(record, place) for record, place in zip((self.base, self.new), places, strict=True)]
        return floor([found[str(batch)] for found in floors if str(batch) in found])


def compare(
    base: Record,
    new: Record,
    base_samples: Mapping[str, Samples] | None,
    new_samples: Mapping[str, Samples] | None,
    *,
    fail_above: float | None = None,
    metrics: Sequence[Metric] = ("p50",),
    names: tuple[str, str] = ("base", "new"),
    confidence: float = 0.95,
    resumed: tuple[Mapping[str, Mapping[str, Samples]], Mapping[str, Mapping[str, Samples]]] = ({}, {}),
) -> Comparison:
    """Compares two runs cell by cell. See compare_latency for how times are.

    Args:
        base_samples: of `base`, None where they are not at hand; then the record's intervals must do.
        resumed: samples of `base` and `new` that other machines took, by the session's folder.
    """
    timed = bool(set(metrics) & set(TIMES))
    measured = [{"": samples or {}, **elsewhere} for samples, elsewhere in zip((base_samples, new_samples), resumed, strict=True)]
    times = _times(base, new, measured[0], measured[1]) if timed else {}
    pair = _Pair(base=base, new=new, times=times, fail_above=fail_above, confidence=confidence)
    rows = [row for metric in metrics for cell in base.cells for row in _cell_rows(pair, cell, metric)]
    notes = list(graph_notes(base, new))
    if timed:
        notes += time_notes(base_samples, new_samples, yardstick=all(entry.yardstick for entry in times.values()))
    return Comparison(
        base=run_facts(base, names[0]),
        new=run_facts(new, names[1]),
        metrics=tuple(metrics),
        fail_above=fail_above,
        confidence=confidence,
        changes=tuple(judged(rows, confidence)),
        added=tuple(cell.name for cell in new.cells if cell.outcome.state == "done" and base.cell(cell.name) is None),
        machine_shifts=_shifts(times, confidence),
        noise_floors=tuple((batch, math.expm1(pair.floor(batch))) for batch in sorted({batch for batch, *_ in times})),
        notes=tuple(notes),
    )


def _times(
    base: Record, new: Record, base_samples: Mapping[str, Mapping[str, Samples]], new_samples: Mapping[str, Mapping[str, Samples]]
) -> dict[Where, Times]:
    """Where both runs have samples; rows of one measurement only, as rounds pair no others. The control knows nothing of a GPU.

    Args:
        base_samples, new_samples: by place.
    """
    found: dict[Where, Times] = {}
    for places in product(base_samples, new_samples):
        both = base_samples[places[0]], new_samples[places[1]]
        here = [cell for cell in base.cells if (_place(base, cell.name), _place(new, cell.name)) == places]
        for batch in sorted({split_name(name)[1] for name in both[0]} & {split_name(name)[1] for name in both[1]}):
            for device in sorted({cell.target.device for cell in here}):
                cells = [cell.name for cell in here if cell.target.device == device] + ([CONTROL] if device == "cpu" else [])
                names = {cell: name for cell in cells if all((name := sample_name(cell, batch)) in samples for samples in both)}
                sides = [{cell: Row(samples[name]) for cell, name in names.items()} for samples in both]
                yardstick = next((cell for cell in same_work(base, new, CONTROL) if all(_ran_with_all(side, cell) for side in sides)), None)
                if names:
                    found[batch, device, *places] = Times(sides[0], sides[1], yardstick)
    return found


def _ran_with_all(rows: Mapping[str, Row], yardstick: str) -> bool:
    """Whether enough rounds of every row have the yardstick in them; one that crashed half way is none."""
    if yardstick not in rows:
        return False
    rounds = rows[yardstick].samples.round_B
    return all(np.isin(row.samples.round_B, rounds).sum() >= min(FEWEST_ROUNDS, row.samples.n_blocks) for row in rows.values())


def _cell_rows(pair: _Pair, ours: Cell, metric: Metric) -> list[Change | Undecided]:
    theirs = pair.new.cell(ours.name)
    if ours.outcome.state != "done" and (theirs is None or theirs.outcome.state != "done"):
        return []  # there was nothing before and there is nothing now
    why = why_incomparable(pair.base, pair.new, ours, theirs, metric)
    if why or theirs is None:
        return [Change(cell=ours.name, metric=metric, verdict="incomparable", reason=why)]
    if metric == "size":
        return [_size(ours, theirs, pair.limit(metric))]
    if metric == "top1":
        return [_top1(pair, ours, theirs)]
    if not ours.latencies:
        return [Change(cell=ours.name, metric=metric, verdict="incomparable", reason="it was not measured in the base run")]
    return [_time(pair, ours.name, latency, theirs, metric) for latency in ours.latencies]


def _time(pair: _Pair, cell: str, ours: Latency, other: Cell, metric: Metric) -> Change | Undecided:
    alike = [x for x in other.latencies if x.batch == ours.batch]
    theirs = next((x for x in alike if not times_incomparable(ours, x)), alike[0] if alike else None)
    change = Change(cell=cell, metric=metric, batch=ours.batch, verdict="incomparable", reason=times_incomparable(ours, theirs))
    if change.reason or theirs is None:
        return change
    before, after = figure(ours, metric), figure(theirs, metric)
    change = change.model_copy(update={"base": before, "new": after})
    if before is None or after is None:
        return change.model_copy(update={"reason": f"too few samples for {metric}"})
    places = _place(pair.base, cell), _place(pair.new, cell)
    times = pair.times.get((ours.batch, other.target.device, *places))
    estimate = times.change(cell, metric) if times is not None and times.has(cell) else recorded(before, after)
    interval = estimate.interval(pair.confidence)
    sign = -1 if metric == "throughput" else 1
    best, worst = sorted(sign * math.log(bound) for bound in (interval.low, interval.high))
    return Undecided(
        change=change.model_copy(update={"ratio": interval}),
        p_value=estimate.p_value,
        worse=sign * estimate.log_ratio,
        worst=worst,
        best=best,
        floor=pair.floor(ours.batch, places),
        limit=math.log1p(pair.limit(metric)),
    )


def _size(ours: Cell, theirs: Cell, limit: float) -> Change:
    assert ours.artifact is not None
    assert theirs.artifact is not None
    before, after = float(ours.artifact.size_bytes), float(theirs.artifact.size_bytes)
    ratio = after / before if before else (1.0 if after == before else math.inf)
    verdict: Verdict = "same" if after == before else "worse" if after > before else "better"
    return Change(
        cell=ours.name,
        metric="size",
        base=_exact(before),
        new=_exact(after),
        ratio=_exact(ratio),
        verdict=verdict,
        regression=ratio > 1 + limit,
        reason="the same file" if ours.artifact.sha256 == theirs.artifact.sha256 else "",
    )


def _exact(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def _top1(pair: _Pair, ours: Cell, theirs: Cell) -> Undecided:
    assert ours.accuracy is not None
    assert theirs.accuracy is not None
    paired = same_answers_expected(pair.base, pair.new)
    interval, p_value = top1_change(ours.accuracy, theirs.accuracy, paired=paired, confidence=pair.confidence)
    change = Change(
        cell=ours.name,
        metric="top1",
        base=ours.accuracy.top1,
        new=theirs.accuracy.top1,
        difference=interval,
        verdict="inconclusive",
        reason="" if paired else "another graph: images cannot be paired",
    )
    limit = pair.limit("top1")
    return Undecided(
        change=change, p_value=p_value, worse=-interval.value, worst=-interval.low, best=-interval.high, floor=0.0, limit=limit
    )


def _shifts(times: Mapping[Where, Times], confidence: float) -> tuple[MachineShift, ...]:
    found = []
    for (batch, device, *_), entry in times.items():
        shift = entry.shift(confidence)
        if shift is not None and entry.yardstick is not None:
            found.append(MachineShift(batch=batch, device=device, measured_by=entry.yardstick, ratio=shift))
    return tuple(found)
