"""Which artifact to ship: constraints first, then the objective, ties called ties. Decides from a record alone.

Never chosen: a cell that is deferred, skipped or failed, whose accuracy did not pass, whose precision or provider is
unproven, whose low precision is only simulated, or that was not measured at the batch size judged.
"""

from __future__ import annotations

import math
from typing import Literal

from deploycnn import units
from deploycnn.recipe import RecommendOptions
from deploycnn.record import Cell, Latency, Record
from deploycnn.report import limits
from deploycnn.types import Interval, Value


class Candidate(Value):
    """One cell before the judge: its figure under the objective, or why it is out."""

    cell: str
    figure: float | None  # seconds, images/s or bytes; None where there is none
    low: float | None = None
    high: float | None = None
    lost_on: str = ""  # "" for the one that is shipped


class Recommendation(Value):
    """The answer."""

    ship: str | None  # name of the cell, None where nothing meets the limits
    because: str
    objective: Literal["latency", "throughput", "size"]
    batch: int | None
    candidates: tuple[Candidate, ...]  # best first, the ones that are out last
    ties: tuple[str, ...] = ()  # cells that cannot be told from the best one
    nearest: str | None = None  # where nothing meets the limits
    limits: tuple[str, ...] = ()  # that were judged, in words
    caveats: tuple[str, ...] = ()  # what the shipped one meets, but not for certain


def recommend(record: Record, options: RecommendOptions, *, max_drop_pp: float | None = None) -> Recommendation:
    """The artifact to ship under `options`.

    Args:
        max_drop_pp: another limit on lost top-1 than the one that the record was validated with, judged from the paired
            intervals in the record.
    """
    batch = _batch_judged(record, options)
    eligible: list[tuple[Cell, Interval]] = []
    out: list[Candidate] = []
    excess: dict[str, float] = {}  # of proved cells that break a limit
    for cell in record.cells:
        reason, over = _why_out(record, cell, batch, options, max_drop_pp)
        figure = _figure(cell, batch, options.objective)
        if reason or figure is None:
            value = figure.value if figure else None
            out.append(Candidate(cell=cell.name, figure=value, lost_on=reason or "has no figure for the objective"))
            if over is not None and figure is not None:
                excess[cell.name] = over
        else:
            eligible.append((cell, figure))
    words = limits.limits_in_words(record, options, max_drop_pp)
    if not eligible:
        return _nothing(options, batch, out, excess).model_copy(update={"limits": words})

    higher_is_better = options.objective == "throughput"
    eligible.sort(key=lambda pair: pair[1].value, reverse=higher_is_better)
    best_cell, best = eligible[0]
    tied = [cell for cell, figure in eligible if _same(record, best_cell, best, cell, figure, batch, options)]
    chosen = min(tied, key=_simplicity)
    chosen_figure = next(figure for cell, figure in eligible if cell is chosen)
    ranked = [
        Candidate(
            cell=cell.name,
            figure=figure.value,
            low=figure.low,
            high=figure.high,
            lost_on="" if cell is chosen else _lost_on(cell, figure, chosen, chosen_figure, tied, options),
        )
        for cell, figure in eligible
    ]
    return Recommendation(
        ship=chosen.name,
        because=_because(chosen, chosen_figure, tied, batch, options),
        objective=options.objective,
        batch=batch,
        candidates=(*ranked, *sorted(out, key=lambda candidate: _place(candidate, options))),
        ties=tuple(cell.name for cell in tied if cell is not chosen),
        limits=words,
        caveats=_caveats(chosen, batch, options),
    )


def _batch_judged(record: Record, options: RecommendOptions) -> int | None:
    if options.objective == "size":
        return options.batch
    if options.batch is not None:
        return options.batch
    batches = sorted({latency.batch for cell in record.cells for latency in cell.latencies})
    if not batches:
        return None
    return batches[0] if options.objective == "latency" else batches[-1]


def _latency(cell: Cell, batch: int | None) -> Latency | None:
    if batch is None:
        return cell.latencies[0] if cell.latencies else None
    return cell.latency(batch)


def _figure(cell: Cell, batch: int | None, objective: str) -> Interval | None:
    if objective == "size":
        if cell.artifact is None:
            return None
        size_bytes = float(cell.artifact.size_bytes)
        return Interval(value=size_bytes, low=size_bytes, high=size_bytes)
    latency = _latency(cell, batch)
    if latency is None:
        return None
    return latency.p50_s if objective == "latency" else latency.images_per_s


def _why_out(
    record: Record, cell: Cell, batch: int | None, options: RecommendOptions, max_drop_pp: float | None
) -> tuple[str, float | None]:
    """("", None) for a cell that may be shipped; for a proved one that breaks limits, also by how much of the limit."""
    if reason := limits.unproved(record, cell, max_drop_pp):
        return reason, None
    latency = _latency(cell, batch)
    if options.objective != "size" and latency is None:
        return f"not measured at batch {batch}", None
    broken = limits.breaches(record, cell, latency, options, max_drop_pp)
    return "; ".join(breach.text for breach in broken), max((breach.excess for breach in broken), default=None)


def _place(candidate: Candidate, options: RecommendOptions) -> tuple[bool, float]:
    """Better figures first, cells without one last."""
    figure = candidate.figure or 0.0
    return candidate.figure is None, -figure if options.objective == "throughput" else figure


def _same(
    record: Record, best_cell: Cell, best: Interval, cell: Cell, figure: Interval, batch: int | None, options: RecommendOptions
) -> bool:
    """Whether `cell` cannot be told from the best: intervals overlap, or the difference is under the A/A noise floor."""
    if cell is best_cell:
        return True
    if options.objective == "size":
        return figure.value == best.value
    mine, theirs = _comparable(record, (cell, figure), (best_cell, best), batch, options)
    if mine.low <= theirs.high and theirs.low <= mine.high:
        return True
    floor = record.noise_floor.get(str(batch))
    if floor is None:
        return False
    widest = max(abs(floor.high - 1), abs(1 - floor.low))
    return abs(mine.value / theirs.value - 1) <= widest


def _comparable(
    record: Record, one: tuple[Cell, Interval], other: tuple[Cell, Interval], batch: int | None, options: RecommendOptions
) -> tuple[Interval, Interval]:
    """For latency the ratios to the reference, paired by round: what slows the whole machine cannot blur them."""
    ratios = [_ratio(record, cell, batch) for cell, _ in (one, other)]
    if options.objective == "latency" and ratios[0] and ratios[1]:
        return ratios[0], ratios[1]
    return one[1], other[1]


def _ratio(record: Record, cell: Cell, batch: int | None) -> Interval | None:
    if cell.name == record.reference:
        return Interval(value=1.0, low=1.0, high=1.0)
    latency = _latency(cell, batch)
    return latency.ratio if latency else None


def _simplicity(cell: Cell) -> tuple[int, float]:
    """Simpler first: plain fp32, then lower precision, then what was repaired or trained for it; then what is built quicker."""
    searched = cell.precision.startswith("int8-")
    return (0 if cell.precision == "fp32" else 2 if searched else 1, cell.artifact.build_s if cell.artifact else 0.0)


def figure_text(value: float, objective: str) -> str:
    """The figure that an objective judges, with its unit."""
    if objective == "latency":
        return units.seconds(value)
    return units.rate(value, "images") if objective == "throughput" else units.size(value)


def _because(chosen: Cell, figure: Interval, tied: list[Cell], batch: int | None, options: RecommendOptions) -> str:
    accuracy = chosen.accuracy
    what = {"latency": "fastest", "throughput": "highest throughput", "size": "smallest"}[options.objective]
    at = f" at batch {batch}" if batch is not None and options.objective != "size" else ""
    text = f"{what}{at} ({figure_text(figure.value, options.objective)}) of the artifacts that pass"
    if len(tied) > 1:
        others = ", ".join(cell.name for cell in tied if cell is not chosen)
        text = f"{what}{at} within the noise ({figure_text(figure.value, options.objective)}), tied with {others}; the simplest of them"
    if accuracy:
        text += f"; top-1 {units.percent(accuracy.top1.value)}, {units.points(-accuracy.drop.value)} against the reference"
    return text


def _lost_on(cell: Cell, figure: Interval, chosen: Cell, best: Interval, tied: list[Cell], options: RecommendOptions) -> str:
    if cell in tied:
        return f"tied with {chosen.name}, which is simpler"
    noun = {"latency": "time", "throughput": "images/s", "size": "size"}[options.objective]
    return f"{units.ratio(figure.value / best.value)} the {noun}"


def _caveats(chosen: Cell, batch: int | None, options: RecommendOptions) -> tuple[str, ...]:
    """Limits that the estimate meets and its interval does not."""
    latency = _latency(chosen, batch)
    if options.p99_ms is None or latency is None or latency.p99_s is None or latency.p99_s.high <= options.p99_ms / 1e3:
        return ()
    known = f"p99 is {units.seconds(latency.p99_s.value)}, and its interval reaches {units.seconds(latency.p99_s.high)}"
    return (f"{known}, over the limit of {units.seconds(options.p99_ms / 1e3)}: measure longer to be sure",)


def _nothing(options: RecommendOptions, batch: int | None, out: list[Candidate], excess: dict[str, float]) -> Recommendation:
    """The nearest is the proved cell that breaks its worst limit by least; the better figure decides between equals."""
    ranked = sorted(
        out, key=lambda candidate: (excess.get(candidate.cell, math.inf), candidate.cell not in excess, _place(candidate, options))
    )
    nearest = ranked[0] if excess else None
    because = "no artifact meets the limits"
    if nearest:
        because += f"; the nearest is {nearest.cell}: {nearest.lost_on}"
    elif not any(candidate.figure is not None for candidate in out):
        because = "no artifact was proved and measured"
    return Recommendation(
        ship=None,
        because=because,
        objective=options.objective,
        batch=batch,
        candidates=tuple(ranked),
        nearest=nearest.cell if nearest else None,
    )
