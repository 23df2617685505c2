"""Throughput over batch size."""

from __future__ import annotations

from deploycnn import units
from deploycnn.record import Cell, Record
from deploycnn.report import numbers
from deploycnn.report.palette import Look, looks
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import batches
from deploycnn.report.svg import Drawing, Scale, padded, round_text, text_px, x_axis, y_axis
from deploycnn.report.svg_lines import Line, draw_lines


def sweep(record: Record, shipped: str | None, width: int) -> Drawing | None:
    """None where fewer than two batch sizes were measured."""
    measured = batches(record)
    lines = [line for cell in record.cells if (line := _line(record, cell, looks(record)[cell.name], shipped))]
    if len(measured) < 2 or not lines:
        return None
    wide = width > 500
    left, top, bottom = 62.0, 36.0, 360.0 if wide else 300.0
    names_px = max(text_px(line.name) for line in lines) + 20 if wide else 14.0
    right = width - names_px
    drawing = Drawing(width, bottom + 46, f"Images per second over batch sizes {', '.join(map(str, measured))}, {len(lines)} artifacts")
    x = Scale(measured[0], measured[-1], left + 8, right - 12, log=True)
    ends = [end for line in lines for pair in line.whiskers for end in pair] + [rate for line in lines for _, rate in line.points]
    y = Scale(*padded(ends, log=True), bottom, top, log=True)
    x_axis(drawing, x, top, bottom, [(batch, str(batch)) for batch in measured], "batch size (log)")
    y_axis(drawing, y, left, right, [(value, round_text(f"{units.significant(value)}")) for value in y.ticks(7)], "images/s (log)")
    draw_lines(drawing, lines, x, y, right + 4 if wide else None)
    return drawing


def _line(record: Record, cell: Cell, look: Look, shipped: str | None) -> Line | None:
    rows = sorted((latency for latency in cell.latencies if latency.streams == 1), key=lambda latency: latency.batch)
    if not rows:
        return None
    return Line(
        name=cell_name(cell),
        look=look,
        points=tuple((float(latency.batch), latency.images_per_s.value) for latency in rows),
        whiskers=tuple((latency.images_per_s.low, latency.images_per_s.high) for latency in rows),
        tips=tuple(f"{cell_name(cell)}\n{numbers.rate_tip(latency)}" for latency in rows),
        strong=cell.name == shipped,
    )
