"""One sentence for each artifact on why it is as fast as it is."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Record, RooflinePoint
from deploycnn.report.diagnosis import call_share
from deploycnn.report.html.values import Number
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import NOTHING, batches
from deploycnn.report.svg_roofline import points


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One artifact at one batch size."""

    batch: int
    name: str
    share: Number
    width: float  # of a bar, 0 to 1
    sentence: str


def diagnoses(record: Record) -> list[Diagnosis]:
    """Batch by batch, fastest first."""
    return [
        Diagnosis(
            batch=batch,
            name=cell_name(cell),
            share=Number(
                text=units.percent(point.share, 0),
                tip=f"{units.seconds(point.floor_s)} at the fp32 peaks over the median of {units.seconds(latency.p50_s.value)}"
                + (f"\na call of next to nothing takes {units.seconds(point.dispatch_s)}" if point.dispatch_s is not None else ""),
            ),
            width=min(point.share, 1.0),
            sentence=_sentence(point, latency.p50_s.value),
        )
        for batch in batches(record)
        for cell, latency, point in points(record, batch)
    ]


def _sentence(point: RooflinePoint, p50_s: float) -> str:
    """With the share of the call, where the sentence does not say it already."""
    share = call_share(point, p50_s)
    return point.sentence if point.bound == "launch" or share == NOTHING else f"{point.sentence}; {share} of the time is the call itself"
