"""Artifacts under the machine's roofline (Williams, Waterman and Patterson 2009)."""

from __future__ import annotations

from deploycnn import units
from deploycnn.record import Cell, Latency, Peak, Record, RooflinePoint
from deploycnn.report import numbers
from deploycnn.report.palette import looks, marker, measured, shipped_ring
from deploycnn.report.remarks import cell_name
from deploycnn.report.svg import Drawing, Scale, padded, round_text, text_px, x_axis, y_axis
from deploycnn.report.svg_lines import LINE_PX, spread


def peak_of(record: Record) -> Peak | None:
    """Of the machine that measured, None where it is not known."""
    return next((record.peaks[name] for name in record.environments if name in record.peaks), None)


def points(record: Record, batch: int) -> list[tuple[Cell, Latency, RooflinePoint]]:
    """Artifacts with a place under the roofline, fastest first."""
    found = []
    for cell in measured(record, batch):
        latency = cell.latency(batch)
        point = next((point for point in cell.rooflines if point.batch == batch), None)
        if latency is not None and point is not None:
            found.append((cell, latency, point))
    return found


def roofline_chart(record: Record, batch: int, shipped: str | None, width: int) -> Drawing | None:
    """None where the peaks or every artifact's place are not known."""
    peak, found = peak_of(record), points(record, batch)
    if peak is None or not found:
        return None
    wide = width > 500
    left, top, bottom = 86.0 if wide else 78.0, 40.0, 360.0 if wide else 310.0
    right = width - (max(text_px(cell_name(cell)) for cell, _, _ in found) + 24 if wide else 14.0)
    drawing = Drawing(width, bottom + 46, f"Roofline at batch {batch}, {len(found)} artifacts")
    intensities = [point.flops / point.bytes for _, _, point in found]
    reached = [point.flops / latency.p50_s.value for _, latency, point in found]
    ridge = peak.flops_per_s / peak.memory_bytes_per_s
    x = Scale(*padded([*intensities, ridge, peak.flops_per_s / peak.cache_bytes_per_s], log=True, share=0.25), left, right, log=True)
    y = Scale(*padded([*reached, peak.flops_per_s], log=True, share=0.1), bottom, top, log=True)
    x_axis(drawing, x, top, bottom, [(value, round_text(units.significant(value))) for value in x.ticks(6)], "operations per byte (log)")
    y_axis(drawing, y, left, right, [(value, _flops(value)) for value in y.ticks(6)], "operations per second (log)")
    _roofs(drawing, peak, x, y, right)
    _marks(drawing, record, found, x, y, shipped, names_at=right + 6 if wide else None)
    return drawing


def _flops(value: float) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{round_text(units.significant(value / scale))} {unit}FLOP/s"
    return f"{value:,.0f} FLOP/s"


def _roofs(drawing: Drawing, peak: Peak, x: Scale, y: Scale, right: float) -> None:
    """Copying bounds the left, arithmetic the right; one slope for the cache and one for memory."""
    for rate, name in ((peak.cache_bytes_per_s, "cache"), (peak.memory_bytes_per_s, "memory")):
        corner = min(max(peak.flops_per_s / rate, x.low), x.high)
        begin = max(x.low, y.low / rate)
        drawing.path([(x(begin), y(begin * rate)), (x(corner), y(corner * rate))], "roof")
        if corner > x.low:
            drawing.text(x(begin) + 8, y(begin * rate) + 14, f"{name}, {round_text(units.size(rate))}/s", "tick haloed")
    corner = min(max(peak.flops_per_s / max(peak.cache_bytes_per_s, peak.memory_bytes_per_s), x.low), x.high)
    drawing.path([(x(corner), y(peak.flops_per_s)), (right, y(peak.flops_per_s))], "roof")
    drawing.text(right - 4, y(peak.flops_per_s) - 11, f"fp32 arithmetic, {_flops(peak.flops_per_s)}", "tick haloed", "end")


def _marks(
    drawing: Drawing,
    record: Record,
    found: list[tuple[Cell, Latency, RooflinePoint]],
    x: Scale,
    y: Scale,
    shipped: str | None,
    names_at: float | None,
) -> None:
    look = looks(record)
    placed = sorted(
        ((y(point.flops / latency.p50_s.value), cell, latency, point) for cell, latency, point in found), key=lambda one: one[0]
    )
    heights = spread([at_y for at_y, *_ in placed], LINE_PX)
    for (at_y, cell, latency, point), name_y in zip(placed, heights, strict=True):
        at_x = x(point.flops / point.bytes)
        if names_at is not None:
            drawing.path([(at_x, at_y), (names_at - 14, name_y), (names_at - 3, name_y)], f"lead s{look[cell.name].colour}")
            drawing.text(names_at, name_y, cell_name(cell), "name strong" if cell.name == shipped else "name")
        drawing.open_mark(_tip(cell, latency, point), data_cell=cell.name)
        if cell.name == shipped:
            shipped_ring(drawing, at_x, at_y)
        marker(drawing, at_x, at_y, look[cell.name])
        drawing.close()


def _tip(cell: Cell, latency: Latency, point: RooflinePoint) -> str:
    work = f"{units.significant(point.flops / 1e6)} million operations and at least {units.size(point.bytes)} a run"
    floor = f"{units.seconds(point.floor_s)} at the measured fp32 peaks: {units.percent(point.share, 0)} of the median"
    return "\n".join([f"{cell_name(cell)}: {point.sentence}", work, floor, numbers.percentile_tip(latency, "p50", latency.p50_s)])
