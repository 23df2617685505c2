"""Which artifact to ship: constraints first, then the objective, ties called ties. Decides from a record alone.

Never chosen: a cell that is deferred, skipped or failed, whose accuracy did not pass, whose precision or provider is
unproven, whose low precision is only simulated, or that was not measured at the batch size judged.
"""

from __future__ import annotations

from typing import Literal

from deploycnn import units
from deploycnn.recipe import RecommendOptions
from deploycnn.record import Cell, Latency, Record
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


def recommend(record: Record, options: RecommendOptions) -> Recommendation:
    """The artifact to ship under `options`."""
    batch = _batch_judged(record, options)
    eligible: list[tuple[Cell, Interval]] = []
    out: list[Candidate] = []
    for cell in record.cells:
        reason = _why_out(cell, batch, options)
        figure = _figure(cell, batch, options.objective)
        if reason or figure is None:
            value = figure.value if figure else None
            out.append(Candidate(cell=cell.name, figure=value, lost_on=reason or "has no figure for the objective"))
        else:
            eligible.append((cell, figure))
    if not eligible:
        return _nothing(record, options, batch, out)

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
        candidates=(*ranked, *out),
        ties=tuple(cell.name for cell in tied if cell is not chosen),
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


def _why_out(cell: Cell, batch: int | None, options: RecommendOptions) -> str:
    outcome = cell.outcome
    if outcome.state == "deferred":
        return f"deferred: waits for {outcome.waits_for}"
    if outcome.state == "skipped":
        return f"skipped: {outcome.reason}"
    if outcome.state == "failed":
        return f"failed in {outcome.stage}: {outcome.reason.splitlines()[0]}"
    if cell.accuracy is None or cell.accuracy.verdict.state != "pass":
        return f"accuracy: {cell.accuracy.verdict.reason}" if cell.accuracy else "accuracy was not validated"
    if cell.evidence is None or cell.evidence.state != "pass":
        return f"evidence: {cell.evidence.reason}" if cell.evidence else "what ran was not proved"
    return _over_limits(cell, batch, options)


def _over_limits(cell: Cell, batch: int | None, options: RecommendOptions) -> str:
    latency = _latency(cell, batch)
    if options.objective != "size" and latency is None:
        return f"not measured at batch {batch}"
    if options.p99_ms is not None:
        if latency is None or latency.p99_s is None:
            return f"p99 is not known (too few samples), limit {units.seconds(options.p99_ms / 1e3)}"
        if latency.p99_s.value > options.p99_ms / 1e3:
            return f"p99 {units.seconds(latency.p99_s.value)} is over the limit of {units.seconds(options.p99_ms / 1e3)}"
    if options.memory_mb is not None:
        if cell.loading is None:
            return "memory is not known"
        if cell.loading.peak_bytes > options.memory_mb * 1e6:
            return f"peak memory {units.size(cell.loading.peak_bytes)} is over the limit of {units.size(options.memory_mb * 1e6)}"
    if options.size_mb is not None and cell.artifact is not None and cell.artifact.size_bytes > options.size_mb * 1e6:
        return f"size {units.size(cell.artifact.size_bytes)} is over the limit of {units.size(options.size_mb * 1e6)}"
    return ""


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
    """Simpler first: plain fp32 before lower precision, then what is built quicker."""
    return (0 if cell.precision == "fp32" else 1, cell.artifact.build_s if cell.artifact else 0.0)


def _text(value: float, objective: str) -> str:
    if objective == "latency":
        return units.seconds(value)
    return units.rate(value, "images") if objective == "throughput" else units.size(value)


def _because(chosen: Cell, figure: Interval, tied: list[Cell], batch: int | None, options: RecommendOptions) -> str:
    accuracy = chosen.accuracy
    what = {"latency": "fastest", "throughput": "highest throughput", "size": "smallest"}[options.objective]
    at = f" at batch {batch}" if batch is not None and options.objective != "size" else ""
    text = f"{what}{at} ({_text(figure.value, options.objective)}) of the artifacts that pass"
    if len(tied) > 1:
        others = ", ".join(cell.name for cell in tied if cell is not chosen)
        text = f"{what}{at} within the noise ({_text(figure.value, options.objective)}), tied with {others}; the simplest of them"
    if accuracy:
        text += f"; top-1 {units.percent(accuracy.top1.value)}, {units.points(-accuracy.drop.value)} against the reference"
    return text


def _lost_on(cell: Cell, figure: Interval, chosen: Cell, best: Interval, tied: list[Cell], options: RecommendOptions) -> str:
    if cell in tied:
        return f"tied with {chosen.name}, which is simpler"
    noun = {"latency": "time", "throughput": "images/s", "size": "size"}[options.objective]
    return f"{units.ratio(figure.value / best.value)} the {noun}"


def _nothing(record: Record, options: RecommendOptions, batch: int | None, out: list[Candidate]) -> Recommendation:
    done = [(cell, candidate) for cell in record.cells for candidate in out if candidate.cell == cell.name and cell.outcome.state == "done"]
    reverse = options.objective == "throughput"
    with_figure = sorted((pair for pair in done if pair[1].figure is not None), key=lambda pair: pair[1].figure or 0.0, reverse=reverse)
    nearest = with_figure[0][1] if with_figure else None
    because = "no artifact meets the limits"
    if nearest:
        because += f"; the nearest is {nearest.cell}, which lost on {nearest.lost_on}"
    return Recommendation(
        ship=None,
        because=because,
        objective=options.objective,
        batch=batch,
        candidates=tuple(out),
        nearest=nearest.cell if nearest else None,
    )
