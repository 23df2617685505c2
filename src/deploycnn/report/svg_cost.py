"""Total time over the number of images: where the lines cross, the longer build has paid."""

from __future__ import annotations

import math

from deploycnn import units
from deploycnn.record import Record
from deploycnn.report.costs import Cost, costs
from deploycnn.report.palette import Look, looks
from deploycnn.report.pareto import front
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import verdict
from deploycnn.report.svg import Drawing, Scale, padded, round_text, seconds_tick, text_px, x_axis, y_axis
from deploycnn.report.svg_lines import Line, draw_lines

MOST_LINES = 8
POINTS = 60


def cumulative(record: Record, batch: int, shipped: str | None, width: int) -> Drawing | None:
    """None where fewer than two proved artifacts have a cost. Proved artifacts only, and not more than can be told apart."""
    chosen = _chosen(record, batch, shipped)
    if len(chosen) < 2:
        return None
    wide = width > 500
    last = _last_images(chosen)
    images = [10 ** (i * math.log10(last) / POINTS) for i in range(POINTS + 1)]
    lines = [_line(record, one, images, looks(record)[one.cell], shipped) for one in chosen]
    left, top, bottom = 70.0, 36.0, 330.0 if wide else 280.0
    right = width - (max(text_px(line.name) for line in lines) + 20 if wide else 14.0)
    drawing = Drawing(width, bottom + 46, f"Total time over the number of images, {len(lines)} artifacts")
    x = Scale(1, last, left, right - 12, log=True)
    y = Scale(*padded([value for line in lines for _, value in line.points], log=True), bottom, top, log=True)
    x_axis(drawing, x, top, bottom, [(value, _count(value)) for value in x.ticks(8 if wide else 4)], "images answered (log)")
    y_axis(drawing, y, left, right, _time_ticks(y), "build + load + run (log)")
    draw_lines(drawing, lines, x, y, right + 4 if wide else None)
    return drawing


def _chosen(record: Record, batch: int, shipped: str | None) -> list[Cost]:
    """What is shipped, the reference, the front; then whatever starts soonest."""
    proved = {cell.name for cell in record.cells if verdict(record, cell) == "pass"}
    found = [one for one in costs(record, batch) if one.cell in proved]
    first = [shipped, record.reference, *(cell.name for cell in front(record, batch))]
    found.sort(key=lambda one: (one.cell not in first, one.start_s))
    return found[:MOST_LINES]


def _last_images(chosen: list[Cost]) -> float:
    """Until running has outweighed every start tenfold, rounded up to a power of ten."""
    enough = max(one.start_s for one in chosen) / min(one.image_s for one in chosen)
    return float(10 ** min(12, max(3, 1 + round(math.log10(enough)))))


def _line(record: Record, one: Cost, images: list[float], look: Look, shipped: str | None) -> Line:
    cell = record.cell(one.cell)
    name = cell_name(cell) if cell else one.cell
    parts = f"build {units.seconds(one.build_s)}, load {units.seconds(one.load_s)}, first run {units.seconds(one.first_run_s)}"
    return Line(
        name=name,
        look=look,
        points=tuple((n, one.total_s(n)) for n in images),
        tip=f"{name}\n{parts}\nthen {units.seconds(one.image_s)} an image",
        strong=one.cell == shipped,
    )


_TIMES = (*(10.0**power for power in range(-9, 2)), 60.0, 600.0, 3600.0, *(36000.0 * 10**power for power in range(8)))


def _time_ticks(scale: Scale) -> list[tuple[float, str]]:
    """Tenfold steps below a minute, then minutes and hours."""
    found = [value for value in _TIMES if scale.low <= value <= scale.high]
    return [
        (value, f"{value / 3600:,.0f} h" if value >= 3600 else f"{value / 60:.0f} min" if value >= 60 else seconds_tick(value))
        for value in found
    ]


def _count(value: float) -> str:
    """`1`, `1,000`, `10 million`."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= scale:
            return f"{round_text(units.significant(value / scale))} {word}"
    return f"{value:,.0f}"
