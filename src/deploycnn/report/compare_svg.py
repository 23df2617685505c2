"""Small drawings for the HTML comparison, as inline SVG: an interval per row, and a cell's history."""

from __future__ import annotations

import math
from html import escape

from deploycnn.report.compare_rows import row_of, shown
from deploycnn.report.compare_values import Change, HistoryRow

WIDTH, HEIGHT = 160, 18
HISTORY_WIDTH, HISTORY_HEIGHT = 320, 90


def reach(changes: list[Change]) -> float:
    """The largest change that any interval reaches, for a common scale; at least 2 %, or half a point of top-1."""
    ends = [abs(end) for change in changes for end in _ends(change)]
    least = 0.005 if changes and changes[0].metric == "top1" else 0.02
    return max([least, *(end for end in ends if math.isfinite(end))]) * 1.05


def interval_svg(change: Change, scale: float) -> str:
    """The change as a point with its interval around no change in the middle; "" where there is none."""
    ends = _ends(change)
    if not ends:
        return ""
    low, value, high = (WIDTH / 2 * (1 + max(-1.0, min(1.0, end / scale))) for end in ends)
    middle = HEIGHT / 2
    row = row_of(change)
    return (
        f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(f"{row.change}, {row.interval}")}">'
        f'<line class="zero" x1="{WIDTH / 2}" x2="{WIDTH / 2}" y1="0" y2="{HEIGHT}"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
        f'<circle cx="{value:.1f}" cy="{middle}" r="3.5"/></svg>'
    )


def _ends(change: Change) -> tuple[float, float, float] | tuple[()]:
    """Low, value and high of a change, 0 for none."""
    if change.difference is not None:
        return change.difference.low, change.difference.value, change.difference.high
    if change.ratio is not None:
        return change.ratio.low - 1, change.ratio.value - 1, change.ratio.high - 1
    return ()


def history_svg(row: HistoryRow) -> str:
    """A cell's figure over runs, with intervals; runs that lack it leave a gap."""
    known = [point.value for point in row.points if point.value is not None]
    top = max(value.high for value in known)
    bottom = min(value.low for value in known)
    span = (top - bottom) or abs(top) or 1.0
    step = HISTORY_WIDTH / max(1, len(row.points))

    def y(value: float) -> float:
        return 8 + (HISTORY_HEIGHT - 16) * (1 - (value - bottom) / span)

    drawn, path, pen = [], "", "M"
    for index, point in enumerate(row.points):
        if point.value is None:
            pen = "M"
            continue
        x = step * (index + 0.5)
        path += f"{pen}{x:.1f},{y(point.value.value):.1f} "
        pen = "L"
        drawn.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(point.value.low):.1f}" y2="{y(point.value.high):.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y(point.value.value):.1f}" r="3">'
            f"<title>{escape(f'{point.run}: {shown(row.metric, point.value)}')}</title></circle>"
        )
    label = ", ".join(f"{point.run} {shown(row.metric, point.value)}" for point in row.points)
    return (
        f'<svg class="history" viewBox="0 0 {HISTORY_WIDTH} {HISTORY_HEIGHT}" width="{HISTORY_WIDTH}" height="{HISTORY_HEIGHT}" '
        f'role="img" aria-label="{escape(label)}"><path d="{path.strip()}"/>{"".join(drawn)}</svg>'
    )
