"""The charts of the page, each drawn for a desk and for a phone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from deploycnn.record import Record
from deploycnn.report.palette import Look, backend_colours, corners, marker
from deploycnn.report.rows import batches
from deploycnn.report.svg import Drawing
from deploycnn.report.svg_cost import cumulative
from deploycnn.report.svg_distribution import distributions
from deploycnn.report.svg_roofline import roofline_chart
from deploycnn.report.svg_scatter import scatter
from deploycnn.report.svg_sweep import sweep
from deploycnn.samples import Samples

WIDE, NARROW = 1160, 358

B = TypeVar("B", int, None)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One chart at two widths. `batch` None: of all batch sizes."""

    batch: int | None
    wide: str
    narrow: str


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A marker and what it means."""

    svg: str
    text: str


def charts(record: Record, samples: Mapping[str, Samples], shipped: str | None, judged: int | None) -> dict[str, list[Picture]]:
    """By the place where they stand; a list is empty where there is nothing to draw."""
    measured = batches(record)
    return {
        "scatter": _pictures(measured, lambda batch, width: scatter(record, batch, shipped, width)),
        "distributions": _pictures(measured, lambda batch, width: distributions(record, samples, batch, shipped, width)),
        "sweep": _pictures([None], lambda _, width: sweep(record, shipped, width)),
        "roofline": _pictures(measured, lambda batch, width: roofline_chart(record, batch, shipped, width)),
        "cumulative": _pictures(measured, lambda batch, width: cumulative(record, batch, shipped, width)) if judged else [],
    }


def _pictures(batch_sizes: Sequence[B], draw: Callable[[B, int], Drawing | None]) -> list[Picture]:
    found = []
    for batch in batch_sizes:
        wide, narrow = draw(batch, WIDE), draw(batch, NARROW)
        if wide is not None and narrow is not None:
            found.append(Picture(batch=batch, wide=wide.render(), narrow=narrow.render()))
    return found


def legend(record: Record) -> list[LegendEntry]:
    """Colours of the backends, shapes of the precisions, and what hollow means; of what was drawn only."""
    drawn = [cell for cell in record.cells if cell.latencies]
    colours = backend_colours(record)
    entries = [
        LegendEntry(svg=_swatch(Look(colour=colours[name], corners=0, solid=True), bar=True), text=name)
        for name in dict.fromkeys(cell.backend for cell in drawn)
    ]
    entries += [
        LegendEntry(svg=_swatch(Look(colour=0, corners=corners(name), solid=True)), text=name)
        for name in dict.fromkeys(cell.precision for cell in drawn)
    ]
    if drawn:
        entries.append(LegendEntry(svg=_swatch(Look(colour=0, corners=0, solid=False)), text="hollow: did not pass"))
    return entries


def _swatch(look: Look, *, bar: bool = False) -> str:
    drawing = Drawing(18, 16, "")
    if bar:
        drawing.element("rect", x=1.0, y=3.0, width=16.0, height=10.0, rx=3.0, class_=f"marker s{look.colour}")
    else:
        marker(drawing, 9, 8, look, radius=5.5)
    return drawing.render().replace('role="group" aria-label=""', 'aria-hidden="true"')
