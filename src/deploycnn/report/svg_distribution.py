"""Latency distributions: every run of every artifact, not a bar of its mean."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from deploycnn import units
from deploycnn.record import Cell, Latency, Record
from deploycnn.report import numbers
from deploycnn.report.palette import looks, measured
from deploycnn.report.remarks import cell_name
from deploycnn.report.svg import Drawing, Scale, seconds_tick, x_axis
from deploycnn.samples import Samples, sample_name

BINS = 150  # of the density, over the chart's width
WIDE_ROW, NARROW_ROW = 40.0, 56.0


def distributions(record: Record, samples: Mapping[str, Samples], batch: int, shipped: str | None, width: int) -> Drawing | None:
    """None where no samples of that batch size are there. A row per artifact, fastest first, on one logarithmic axis."""
    rows = [
        (cell, latency, samples[sample_name(cell.name, batch)].time_ns / 1e9)
        for cell in measured(record, batch)
        if (latency := cell.latency(batch)) and sample_name(cell.name, batch) in samples
    ]
    if not rows:
        return None
    wide = width > 500
    row_px = WIDE_ROW if wide else NARROW_ROW
    left, right, top = (176.0 if wide else 8.0), width - (78.0 if wide else 10.0), 8.0
    bottom = top + row_px * len(rows)
    title = f"Distribution of latency at batch {batch}, {len(rows)} artifacts, fastest first"
    drawing = Drawing(width, bottom + 46, title)
    x = _scale([times_s for _, _, times_s in rows], left, right)
    x_axis(drawing, x, top, bottom, [(value, seconds_tick(value)) for value in x.ticks(7 if wide else 4)], "latency of one run (log)")
    look = looks(record)
    for index, (cell, latency, times_s) in enumerate(rows):
        base = top + row_px * (index + 1) - 8
        _row(drawing, cell, latency, times_s, x, base, look[cell.name].colour, shipped=cell.name == shipped, wide=wide)
    return drawing


def _scale(all_times_s: list[NDArray[np.float64]], left: float, right: float) -> Scale:
    """From the fastest run to what one run in 200 of some artifact exceeds; what is beyond stands at the edge."""
    low = min(float(times_s.min()) for times_s in all_times_s)
    high = max(float(np.quantile(times_s, 0.995)) for times_s in all_times_s)
    return Scale(max(low, 1e-9) / 1.06, max(high, 2e-9) * 1.06, left, right, log=True)


def _row(
    drawing: Drawing,
    cell: Cell,
    latency: Latency,
    times_s: NDArray[np.float64],
    x: Scale,
    base: float,
    colour: int,
    *,
    shipped: bool,
    wide: bool,
) -> None:
    tall = 26.0
    drawing.open_mark(_tip(cell, latency), data_cell=cell.name)
    drawing.element("rect", x=0.0, y=base - tall - 4, width=drawing.width, height=tall + 12, class_="hit")
    drawing.line(x(x.low), base, x(x.high), base, "base")
    drawing.path(_density(times_s, x, base, tall), f"density s{colour}", closed=True)
    median = latency.p50_s
    drawing.line(x(median.low), base, x(median.high), base, f"interval s{colour}")
    for tail in (latency.p90_s, latency.p99_s):
        if tail is not None:
            drawing.line(x(tail.value), base - 5, x(tail.value), base + 5, f"tail s{colour}")
    drawing.element("circle", cx=x(median.value), cy=base, r=4, class_=f"median s{colour}")
    name, figure = cell_name(cell), units.seconds(median.value) + (" ?" if latency.noisy else "")
    if wide:
        drawing.text(4, base - 6, name, "name strong" if shipped else "name")
        drawing.text(drawing.width - 4, base - 6, figure, "figure", "end")
    else:
        drawing.text(x(x.low), base - tall - 9, name, "name strong" if shipped else "name")
        drawing.text(drawing.width - 8, base - tall - 9, figure, "figure", "end")
    drawing.close()


def _density(times_s: NDArray[np.float64], x: Scale, base: float, tall: float) -> list[tuple[float, float]]:
    """Outline of a histogram over the logarithm, lightly smoothed, its highest point `tall` over `base`."""
    edges = np.geomspace(x.low, x.high, BINS + 1)
    counts = np.histogram(np.clip(times_s, x.low, x.high), edges)[0].astype(float)
    kernel = np.exp(-0.5 * (np.arange(-4, 5) / 1.3) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same")
    heights = smooth / max(float(smooth.max()), 1e-12) * tall
    shown = np.flatnonzero(heights > 0.25)
    if not len(shown):
        return []
    first, last = max(int(shown[0]) - 1, 0), min(int(shown[-1]) + 1, BINS - 1)
    middles = np.sqrt(edges[:-1] * edges[1:])
    outline = [(x(float(middles[i])), base - float(heights[i])) for i in range(first, last + 1)]
    return [(outline[0][0], base), *outline, (outline[-1][0], base)]


def _tip(cell: Cell, latency: Latency) -> str:
    tails = [
        f"{name} {units.seconds(tail.value)} ({units.seconds(tail.low)} to {units.seconds(tail.high)})"
        for name, tail in (("p90", latency.p90_s), ("p99", latency.p99_s), ("p99.9", latency.p999_s))
        if tail is not None
    ]
    extremes = f"fastest {units.seconds(latency.min_s)}, mean {units.seconds(latency.mean_s)}, slowest {units.seconds(latency.max_s)}"
    return "\n".join([cell_name(cell), numbers.median_tip(cell, latency), *tails, extremes])
