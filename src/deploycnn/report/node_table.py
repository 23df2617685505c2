"""Node by node: a table of 80 columns, a sentence about the first node that breaks the tolerance, a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from deploycnn import units
from deploycnn.report.chart_style import file_css
from deploycnn.report.palette import Look
from deploycnn.report.svg import Drawing, Scale, padded, x_axis, y_axis
from deploycnn.report.svg_lines import Line, draw_lines
from deploycnn.types import Value

WIDTH_PX = 860
_SMALLEST = 1e-9  # where the chart ends below


class NodeRow(Value):
    """One node as it is printed. Errors are relative, shares 0 to 1; None: not known."""

    node: str
    op: str
    cosine: float | None
    file_error: float | None
    ran_error: float | None
    saturated: float
    subnormal: float
    infinite: float
    low: float
    high: float
    beyond: bool  # of the tolerance


def node_table(rows: Sequence[NodeRow]) -> str:
    """Lines of at most 80 characters. A mark stands at nodes beyond the tolerance."""
    head = f"  {'node':<17} {'op':<7} {'cosine':>6} {'file':>7} {'ran':>7} {'sat':>4} {'sub':>4} {'inf':>4} {'range':>14}"
    return "\n".join([head, *map(_line, rows)]) + "\n"


def _line(row: NodeRow) -> str:
    name = row.node if len(row.node) <= 17 else f"{row.node[:7]}…{row.node[-9:]}"
    mark = "> " if row.beyond else "  "
    shares = " ".join(f"{_share(value):>4}" for value in (row.saturated, row.subnormal, row.infinite))
    span = f"{_short(row.low)}..{_short(row.high)}"
    cosine = "-" if row.cosine is None else f"{row.cosine:.4f}"[:6]
    return f"{mark}{name:<17} {row.op[:7]:<7} {cosine:>6} {_error(row.file_error):>7} {_error(row.ran_error):>7} {shares} {span:>14}"


def _error(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def _share(value: float) -> str:
    """Percent in at most four characters."""
    if value == 0:
        return "0"
    return "<.1%" if value < 0.001 else f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.1f}%"


def _short(value: float) -> str:
    """At most six characters."""
    text = f"{value:.3g}"
    return text if len(text) <= 6 else f"{value:.0e}"


def sentence(rows: Sequence[NodeRow], tolerance: float) -> str:
    """Which node is the first beyond the tolerance, and what it was like before."""
    place = next((index for index, row in enumerate(rows) if row.beyond), None)
    if place is None:
        return f"No node is beyond the tolerance, a relative error of {tolerance:g}."
    row = rows[place]
    before = f"; the nodes before it stay at {_worst(rows[:place]):.1e}" if place else ""
    why = []
    if row.infinite:
        why.append(f"{units.percent(row.infinite, 1)} of its values are inf or NaN in that precision")
    if row.saturated:
        why.append(f"{units.percent(row.saturated, 1)} of the reference's values lie beyond its int8 range")
    if row.subnormal:
        why.append(f"{units.percent(row.subnormal, 1)} of the reference's values are too small for all digits")
    reasons = f" ({'; '.join(why)})" if why else ""
    error = max(row.file_error or 0.0, row.ran_error or 0.0)
    return f"The first node beyond a relative error of {tolerance:g} is {row.node} ({row.op}): {error:.1e}{reasons}{before}."


def _worst(rows: Sequence[NodeRow]) -> float:
    return max((max(row.file_error or 0.0, row.ran_error or 0.0) for row in rows), default=0.0)


def node_chart(rows: Sequence[NodeRow], tolerance: float, title: str) -> str:
    """An SVG file: relative error over the nodes in graph order, one line for the file and one for the artifact."""
    lines = [
        Line(
            name=name,
            look=Look(colour=colour, corners=corners, solid=True),
            points=tuple((float(index), _bounded(value)) for index, value in points),
            tips=tuple(f"{rows[index].node}\n{name}: {value:.2e}" for index, value in points),
        )
        for name, colour, corners, points in (
            ("file", 1, 0, [(index, row.file_error) for index, row in enumerate(rows) if row.file_error is not None]),
            ("artifact", 2, 4, [(index, row.ran_error) for index, row in enumerate(rows) if row.ran_error is not None]),
        )
        if points
    ]
    top, bottom, left, right = 36.0, 320.0, 70.0, WIDTH_PX - 90.0
    drawing = Drawing(WIDTH_PX, bottom + 46, title)
    x = Scale(0, max(len(rows) - 1, 1), left + 8, right - 12)
    y = Scale(*padded([tolerance, *(value for line in lines for _, value in line.points)], log=True), bottom, top, log=True)
    step = max(1, math.ceil(len(rows) / 8))
    x_axis(drawing, x, top, bottom, [(index, rows[index].node[:14]) for index in range(0, len(rows), step)], "nodes in graph order")
    y_axis(drawing, y, left, right, [(value, f"{value:g}") for value in y.ticks(7)], "relative error (log)")
    drawing.line(left, y(tolerance), right, y(tolerance), "limit")
    drawing.text(left + 4, y(tolerance) - 8, f"tolerance {tolerance:g}", "axis")
    draw_lines(drawing, lines, x, y, right + 4)
    return drawing.render_file(file_css())


def _bounded(error: float) -> float:
    """For a logarithmic scale: exact answers are drawn at its lower end."""
    return min(max(error, _SMALLEST), 1e9)
