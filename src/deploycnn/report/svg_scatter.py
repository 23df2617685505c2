"""Accuracy against latency, with the Pareto front."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Accuracy, Cell, Latency, Record
from deploycnn.report import numbers
from deploycnn.report.palette import Look, looks, marker, measured, shipped_ring
from deploycnn.report.pareto import front
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import verdict
from deploycnn.report.svg import Drawing, Scale, padded, seconds_tick, text_px, x_axis, y_axis


@dataclass(frozen=True, kw_only=True)
class _Point:
    cell: Cell
    latency: Latency
    accuracy: Accuracy
    look: Look

    @property
    def change_pp(self) -> float:
        return -100 * self.accuracy.drop.value

    @property
    def ends_pp(self) -> tuple[float, float]:
        return -100 * self.accuracy.drop.high, -100 * self.accuracy.drop.low


def scatter(record: Record, batch: int, shipped: str | None, width: int) -> Drawing | None:
    """None where nothing was both validated and measured at that batch size.

    Height is the change of top-1 against the reference, on the same images, since that is known far better than either
    top-1 alone; the left axis says what top-1 that makes.
    """
    points = _points(record, batch)
    if not points:
        return None
    left, right, top, bottom = 62.0, width - (58.0 if width > 500 else 20.0), 40.0, 352.0 if width > 500 else 300.0
    drawing = Drawing(width, bottom + 46, f"Top-1 against median latency at batch {batch}, {len(points)} artifacts")
    x = _x_scale(points, left, right)
    y = _y_scale(record, points, bottom, top)
    reference_top1 = points[0].accuracy.reference_top1
    x_axis(drawing, x, top, bottom, [(value, seconds_tick(value)) for value in x.ticks(7 if width > 500 else 4)], "median latency (log)")
    shares = [(value, f"{100 * reference_top1 + value:.1f} %") for value in y.ticks(6)]
    y_axis(drawing, y, left, right, shares, "top-1, from the paired change")
    if width > 500:
        for value in y.ticks(6):
            drawing.text(right + 6, y(value), f"{value:+.1f} pp" if value else "0 pp", "tick")
    _limit(drawing, record, y, left, right)
    _front(drawing, record, batch, x, y, right)
    for point in points:
        _whiskers(drawing, point, x, y)
    for point in reversed(points):
        _mark(drawing, record, point, x, y, shipped)
    _labels(drawing, record, points, x, y, shipped, batch, everyone=width > 500)
    return drawing


def _points(record: Record, batch: int) -> list[_Point]:
    look = looks(record)
    found = []
    for cell in measured(record, batch):
        latency = cell.latency(batch)
        if latency is not None and cell.accuracy is not None:
            found.append(_Point(cell=cell, latency=latency, accuracy=cell.accuracy, look=look[cell.name]))
    return found


def _x_scale(points: list[_Point], left: float, right: float) -> Scale:
    low, high = padded([max(point.latency.p50_s.value, 1e-9) for point in points], log=True, share=0.08)
    return Scale(low, high, left, right, log=True)


def _y_scale(record: Record, points: list[_Point], bottom: float, top: float) -> Scale:
    """Room for every estimate and for the limit; one broken artifact must not squeeze the others into a line."""
    limit = -_limit_pp(record)
    values = [point.change_pp for point in points] + [limit, 0.0]
    near = [value for value in values if value >= 4 * limit - 2]
    ends = [end for point in points if point.change_pp >= 4 * limit - 2 for end in point.ends_pp]
    low, high = padded([*near, *(max(min(end, 1.5 * -limit), 1.5 * limit) for end in ends)], share=0.1)
    return Scale(low, high, bottom, top)


def _limit_pp(record: Record) -> float:
    return float(record.recipe.get("validate", {}).get("max_drop_pp", 1.0))


def _limit(drawing: Drawing, record: Record, y: Scale, left: float, right: float) -> None:
    limit = y(-_limit_pp(record))
    drawing.line(left, limit, right, limit, "limit")
    drawing.text(right - 4, limit - 9, f"limit: {_limit_pp(record):g} pp may be lost", "tick", "end")


def _front(drawing: Drawing, record: Record, batch: int, x: Scale, y: Scale, right: float) -> None:
    """Steps: from each artifact on, its accuracy is to be had."""
    steps: list[tuple[float, float]] = []
    for cell in front(record, batch):
        latency, accuracy = cell.latency(batch), cell.accuracy
        if latency is None or accuracy is None:
            continue
        at = x(latency.p50_s.value), y(-100 * accuracy.drop.value)
        if steps:
            steps.append((at[0], steps[-1][1]))
        steps.append(at)
    if steps:
        drawing.path([*steps, (right, steps[-1][1])], "front")


def _whiskers(drawing: Drawing, point: _Point, x: Scale, y: Scale) -> None:
    at_x, at_y = x(point.latency.p50_s.value), y(point.change_pp)
    kind = f"whisker s{point.look.colour}"
    drawing.line(x(max(point.latency.p50_s.low, x.low)), at_y, x(point.latency.p50_s.high), at_y, kind)
    low, high = point.ends_pp
    drawing.line(at_x, y(low), at_x, y(high), kind)


def _mark(drawing: Drawing, record: Record, point: _Point, x: Scale, y: Scale, shipped: str | None) -> None:
    at = x(point.latency.p50_s.value), y(point.change_pp)
    drawing.open_mark(_tip(record, point), data_cell=point.cell.name)
    if point.cell.name == shipped:
        shipped_ring(drawing, *at)
    marker(drawing, *at, point.look)
    if point.change_pp < y.low:
        drawing.text(at[0], at[1] - 14, f"{point.change_pp:.1f} pp ↓", "tick", "middle")
    drawing.close()


def _tip(record: Record, point: _Point) -> str:
    said = verdict(record, point.cell)
    return "\n".join(
        [
            f"{cell_name(point.cell)}: {said}",
            numbers.median_tip(point.cell, point.latency),
            f"top-1 {units.percent(point.accuracy.top1.value)}, {numbers.change_tip(point.accuracy)}",
        ]
    )


def _labels(
    drawing: Drawing, record: Record, points: list[_Point], x: Scale, y: Scale, shipped: str | None, batch: int, *, everyone: bool
) -> None:
    """Names where they hide nothing: first what is shipped, then the front, then the others as far as there is room."""
    on_front = {cell.name for cell in front(record, batch)}
    marks = [(x(point.latency.p50_s.value), y(point.change_pp)) for point in points]
    taken = [(at_x - 8, at_y - 8, at_x + 8, at_y + 8) for at_x, at_y in marks]
    order = sorted(zip(points, marks, strict=True), key=lambda pair: (pair[0].cell.name != shipped, pair[0].cell.name not in on_front))
    for point, (at_x, at_y) in order:
        wanted = point.cell.name == shipped or point.cell.name in on_front
        if not (wanted or everyone):
            continue
        name = cell_name(point.cell)
        long = text_px(name)
        middles = [at_x, max(at_x, x(x.low) + long / 2), min(at_x, x(x.high) - long / 2)]
        above_and_below = [(middle, at_y + dy) for dy in (-19, 19, -33, 33) for middle in dict.fromkeys(middles)]
        places = [*above_and_below[:6], (at_x + 14 + long / 2, at_y), (at_x - 14 - long / 2, at_y), *above_and_below[6:]]
        for middle, height in places if point.look.solid else places[:6]:
            box = (middle - long / 2 - 2, height - 7, middle + long / 2 + 2, height + 7)
            inside = box[0] > x(x.low) - 4 and box[2] < x(x.high) + 4 and box[1] > 22 and box[3] < y(y.low) + 2
            if inside and not any(_touch(box, other) for other in taken):
                drawing.text(middle, height, name, "name strong" if point.cell.name == shipped else "name", "middle")
                taken.append(box)
                break


def _touch(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
