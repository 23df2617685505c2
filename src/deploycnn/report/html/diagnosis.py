"""One sentence for each artifact on why it is as fast as it is."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Record
from deploycnn.report.html.values import Number
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import batches
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
                tip=f"{units.seconds(point.floor_s)} at the fp32 peaks over the median of {units.seconds(latency.p50_s.value)}",
            ),
            width=min(point.share, 1.0),
            sentence=point.sentence,
        )
        for batch in batches(record)
        for cell, latency, point in points(record, batch)
    ]
