"""The table of all artifacts: every figure with its tooltip and what it is sorted by."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Cell, Latency, Record
from deploycnn.report import numbers, rows
from deploycnn.report.html.values import NONE, Number

LATENCY_HEADINGS = ("p50", "95 % CI", "p90", "p99", "images/s", "ratio")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading, and which batch size it belongs to (None: all)."""

    text: str
    hint: str
    batch: int | None = None
    numeric: bool = True


@dataclass(frozen=True, kw_only=True)
class Row:
    """One artifact. `numbers` are in the order of the columns after name and verdict."""

    cell: str
    backend: str
    precision: str
    target: str
    verdict: str
    state: str  # pass, fail, waits, skipped
    why: str
    shipped: bool
    colour: int
    numbers: tuple[tuple[int | None, Number], ...]  # (batch, number)


@dataclass(frozen=True, kw_only=True)
class Table:
    """See the module."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    counts: dict[str, int]  # by state


def artifact_table(record: Record, shipped: str | None, judged: int | None) -> Table:
    """What is shipped first, then as fast as they are, then the rest in the record's order."""
    from deploycnn.report.palette import backend_colours

    colours = backend_colours(record)
    cells = sorted(record.cells, key=lambda cell: (cell.name != shipped, *_place(cell, judged)))
    found = tuple(_row(record, cell, colours[cell.backend], shipped) for cell in cells)
    counts = {state: sum(row.state == state for row in found) for state in ("pass", "fail", "waits", "skipped")}
    return Table(columns=_columns(record), rows=found, counts={state: n for state, n in counts.items() if n})


def _place(cell: Cell, judged: int | None) -> tuple[int, float]:
    latency = cell.latency(judged) if judged is not None else None
    if latency is not None:
        return 0, latency.p50_s.value
    return {"done": 1, "failed": 1, "deferred": 2, "skipped": 3}[cell.outcome.state], 0.0


def _columns(record: Record) -> tuple[Column, ...]:
    hints = {
        "p50": "median latency of one run",
        "95 % CI": "half width of the median's interval; noisy: wider than asked",
        "p90": "nine runs in ten are faster",
        "p99": "99 runs in 100 are faster; missing where the sample cannot carry it",
        "images/s": "back-to-back runs",
        "ratio": f"time over {record.reference}, paired round by round",
    }
    first = [
        Column(text="top-1", hint="share of test images that are right"),
        Column(text="change", hint="against the fp32 reference, paired on the same images"),
        Column(text="agree", hint="share of images with the reference's answer"),
    ]
    latency = [Column(text=text, hint=hints[text], batch=batch) for batch in rows.batches(record) for text in LATENCY_HEADINGS]
    last = [
        Column(text="size", hint="of the artifact's files"),
        Column(text="build", hint="from variant to artifact, tuning included"),
        Column(text="memory", hint="peak of the worker process"),
    ]
    return (*first, *latency, *last)


def _row(record: Record, cell: Cell, colour: int, shipped: str | None) -> Row:
    said = rows.verdict(record, cell)
    state = {"pass": "pass", "deferred": "waits", "skipped": "skipped"}.get(said, "fail")
    return Row(
        cell=cell.name,
        backend=cell.backend,
        precision=cell.precision,
        target=str(cell.target),
        verdict="waits" if said == "deferred" else said,
        state=state,
        why=_why(cell),
        shipped=cell.name == shipped,
        colour=colour,
        numbers=tuple(_numbers(record, cell)),
    )


def _why(cell: Cell) -> str:
    from deploycnn.report.remarks import plain

    outcome = cell.outcome
    if outcome.state == "deferred":
        return plain(f"waits for a machine: {outcome.waits_for}")
    if outcome.state != "done":
        return plain(f"{outcome.reason}\n{outcome.remedy}".strip())
    checks = [("evidence", cell.evidence), ("accuracy", cell.accuracy.verdict if cell.accuracy else None)]
    return "\n".join(plain(f"{name}: {check.reason}") for name, check in checks if check)


def _numbers(record: Record, cell: Cell) -> list[tuple[int | None, Number]]:
    found: list[tuple[int | None, Number]] = [(None, number) for number in _accuracy(record, cell)]
    for batch in rows.batches(record):
        found += [(batch, number) for number in _latency(record, cell, cell.latency(batch))]
    return [*found, *((None, number) for number in _cost(cell))]


def _accuracy(record: Record, cell: Cell) -> list[Number]:
    accuracy = cell.accuracy
    if accuracy is None:
        return [NONE, NONE, NONE]
    change = -accuracy.drop.value
    is_reference = cell.name == record.reference
    return [
        Number(text=units.percent(accuracy.top1.value), tip=numbers.top1_tip(accuracy), sort=accuracy.top1.value),
        Number(text="ref" if is_reference else units.points(change), tip=numbers.change_tip(accuracy), sort=change),
        Number(text=units.percent(accuracy.agreement, 1), tip=numbers.agreement_tip(accuracy), sort=accuracy.agreement),
    ]


def _latency(record: Record, cell: Cell, latency: Latency | None) -> list[Number]:
    if latency is None:
        return [NONE] * len(LATENCY_HEADINGS)
    median = latency.p50_s
    row = next(row for row in rows.latency_rows(record, latency.batch) if (row.name, row.precision, row.target) == _key(cell))
    tip = numbers.median_tip(cell, latency)
    found = [
        Number(text=row.p50, tip=tip, sort=median.value),
        Number(text=row.spread, tip=tip, sort=(median.high - median.low) / median.value if median.value else 0.0, kind=_noisy(latency)),
    ]
    for name, text, tail in (("p90", row.p90, latency.p90_s), ("p99", row.p99, latency.p99_s)):
        number = Number(text=text if tail else NONE.text, tip=numbers.percentile_tip(latency, name, tail))
        found.append(number if tail is None else Number(text=text, tip=number.tip, sort=tail.value))
    rate, ratio = latency.images_per_s, latency.ratio
    return [
        *found,
        Number(text=row.rate, tip=numbers.rate_tip(latency), sort=rate.value),
        Number(text=row.ratio, tip=numbers.ratio_tip(latency, record.reference), sort=ratio.value if ratio else 1.0),
    ]


def _noisy(latency: Latency) -> str:
    return "noisy" if latency.noisy else ""


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.backend, cell.precision, str(cell.target)


def _cost(cell: Cell) -> list[Number]:
    artifact, loading = cell.artifact, cell.loading
    size = Number(text=units.size(artifact.size_bytes), tip=numbers.size_tip(cell), sort=artifact.size_bytes) if artifact else NONE
    build = Number(text=units.seconds(artifact.build_s), tip=numbers.build_tip(cell), sort=artifact.build_s) if artifact else NONE
    memory = Number(text=units.size(loading.peak_bytes), tip=numbers.memory_tip(cell), sort=loading.peak_bytes) if loading else NONE
    return [size, build, memory]
