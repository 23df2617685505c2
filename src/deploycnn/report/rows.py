"""A record as rows of text: what the terminal, markdown and HTML tables share."""

from __future__ import annotations

from deploycnn import units
from deploycnn.record import Accuracy, Cell, Latency, Record
from deploycnn.types import Interval, Value

NOTHING = "-"


class AccuracyRow(Value):
    """One artifact's accuracy and size."""

    name: str
    precision: str
    target: str
    top1: str
    change: str
    agreement: str
    size: str
    build: str
    verdict: str


class LatencyRow(Value):
    """One artifact's latency at one batch size."""

    name: str
    precision: str
    target: str
    p50: str
    spread: str  # half width of the median's interval; "noisy 97 %" where it stayed wider than asked
    p90: str
    p99: str
    rate: str
    ratio: str


class DeferredRow(Value):
    """One artifact that was built here and waits for the machine that it is for."""

    name: str
    precision: str
    target: str
    size: str
    build: str
    evidence: str


def accuracy_rows(record: Record) -> list[AccuracyRow]:
    """A row per cell that was to run here, in the record's order."""
    return [_accuracy_row(record, cell) for cell in record.cells if cell.outcome.state in ("done", "failed")]


def deferred_rows(record: Record) -> list[DeferredRow]:
    """A row per artifact that waits for another machine, in the record's order."""
    return [_deferred_row(cell) for cell in record.cells if cell.outcome.state == "deferred"]


def latency_rows(record: Record, batch: int) -> list[LatencyRow]:
    """A row per cell measured at that batch size, fastest first."""
    measured = [(cell, latency) for cell in record.cells if (latency := cell.latency(batch))]
    measured.sort(key=lambda pair: pair[1].p50_s.value)
    return [_latency_row(record, cell, latency) for cell, latency in measured]


def batches(record: Record) -> list[int]:
    """Batch sizes that were measured, ascending."""
    return sorted({latency.batch for cell in record.cells for latency in cell.latencies})


def _accuracy_row(record: Record, cell: Cell) -> AccuracyRow:
    accuracy = cell.accuracy
    is_reference = cell.name == record.reference
    return AccuracyRow(
        name=cell.backend,
        precision=cell.precision,
        target=str(cell.target),
        top1=units.percent(accuracy.top1.value) if accuracy else NOTHING,
        change=_change(accuracy, is_reference),
        agreement=units.percent(accuracy.agreement, 1) if accuracy else NOTHING,
        size=units.size(cell.artifact.size_bytes) if cell.artifact else NOTHING,
        build=units.seconds(cell.artifact.build_s) if cell.artifact else NOTHING,
        verdict=verdict(record, cell),
    )


def _deferred_row(cell: Cell) -> DeferredRow:
    return DeferredRow(
        name=cell.backend,
        precision=cell.precision,
        target=str(cell.target),
        size=units.size(cell.artifact.size_bytes) if cell.artifact else NOTHING,
        build=units.seconds(cell.artifact.build_s) if cell.artifact else NOTHING,
        evidence={"pass": "proved", "fail": "fail"}.get(cell.evidence.state, "when it runs") if cell.evidence else NOTHING,
    )


def _change(accuracy: Accuracy | None, is_reference: bool) -> str:
    if accuracy is None:
        return NOTHING
    return "reference" if is_reference else units.points(-accuracy.drop.value)


def _latency_row(record: Record, cell: Cell, latency: Latency) -> LatencyRow:
    return LatencyRow(
        name=cell.backend,
        precision=cell.precision,
        target=str(cell.target),
        p50=units.seconds(latency.p50_s.value),
        spread=_spread(latency),
        p90=_tail(latency.p90_s),
        p99=_tail(latency.p99_s),
        rate=units.significant(latency.images_per_s.value),
        ratio=units.ratio(latency.ratio.value) if latency.ratio else "ref" if cell.name == record.reference else NOTHING,
    )


def _spread(latency: Latency) -> str:
    """Of the median; where it is noisy, of the median or the ratio, whichever is known less well."""
    if not latency.p50_s.value:
        return NOTHING
    known = [latency.p50_s, latency.ratio] if latency.noisy and latency.ratio else [latency.p50_s]
    half = max((interval.high - interval.low) / 2 / interval.value for interval in known)
    return f"{'noisy ' if latency.noisy else '±'}{units.significant(100 * half, 2)} %"


def _tail(interval: Interval | None) -> str:
    return units.seconds(interval.value) if interval else NOTHING


def verdict(record: Record, cell: Cell) -> str:
    """What came of a cell, in a word or a short clause."""
    outcome = cell.outcome
    if outcome.state == "deferred":
        return "deferred"
    if outcome.state == "skipped":
        return "skipped"
    if outcome.state == "failed":
        return f"failed: {outcome.stage}"
    if cell.evidence and cell.evidence.state == "fail":
        return "fail: evidence"
    if cell.accuracy and cell.accuracy.verdict.state != "pass":
        return {"fail": "fail: accuracy", "not enough images": "too few images"}.get(cell.accuracy.verdict.state, "unproven")
    if cell.evidence is None or cell.evidence.state != "pass":
        return "unproven"
    return "pass"


def headline(record: Record) -> str:
    """Which network on which images: stands over every table."""
    data = record.data
    name = data.name if data.name == data.asked else f"{data.name} (NOT {data.asked})"
    official = " (not the official files)" if data.official is False else ""
    return f"{record.model.name} on {name}{official}, {data.n_test:,} test images"
