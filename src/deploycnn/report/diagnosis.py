"""Why each artifact is as fast as it is: what bounds it, and how much of its time is the call itself."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Record, RooflinePoint
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import NOTHING, batches
from deploycnn.report.svg_roofline import points


@dataclass(frozen=True, kw_only=True)
class BoundRow:
    """One artifact at one batch size, as text."""

    name: str
    batch: int
    bound: str
    peak: str  # share of the measured peak that it reaches
    call: str  # share of its time that the same backend takes for a graph of next to nothing
    sentence: str


def bound_rows(record: Record) -> list[BoundRow]:
    """Batch by batch, fastest first; nothing where no peaks were measured."""
    return [
        BoundRow(
            name=cell_name(cell),
            batch=batch,
            bound=f"{point.bound}-bound",
            peak=units.percent(point.share, 0),
            call=call_share(point, latency.p50_s.value),
            sentence=point.sentence,
        )
        for batch in batches(record)
        for cell, latency, point in points(record, batch)
    ]


def call_share(point: RooflinePoint, p50_s: float) -> str:
    """The call's share of the median, `NOTHING` where it is not known. A call can take longer than a fused artifact: then it is all."""
    return NOTHING if point.dispatch_s is None else units.percent(min(1.0, point.dispatch_s / p50_s), 0)


def bound_lines(record: Record) -> list[str]:
    """A line for each batch size and bound, with the artifacts that it holds for and the call's share of their time."""
    groups: dict[tuple[int, str], list[str]] = {}
    for row in bound_rows(record):
        share = "" if row.call == NOTHING else f" ({row.call})"
        groups.setdefault((row.batch, row.bound), []).append(row.name + share)
    return [f"batch {batch}, {bound}: {', '.join(names)}" for (batch, bound), names in groups.items()]
