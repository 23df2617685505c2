"""Lines of artifacts over a common axis, named at their ends."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn.report.palette import Look, marker
from deploycnn.report.svg import Drawing, Scale, text_px

LINE_PX = 15.0  # between two names


@dataclass(frozen=True, kw_only=True)
class Line:
    """One artifact's line."""

    name: str
    look: Look
    points: tuple[tuple[float, float], ...]  # values of both axes
    tips: tuple[str, ...] = ()  # one for each point; none: the line has no markers and `tip` says what it is
    whiskers: tuple[tuple[float, float], ...] = ()  # low and high of each point
    tip: str = ""
    strong: bool = False


def draw_lines(drawing: Drawing, lines: list[Line], x: Scale, y: Scale, names_at: float | None) -> None:
    """Lines, their intervals and markers; names in a column at `names_at`, or nowhere."""
    for line in lines:
        drawing.path(
            [(x(a), y(b)) for a, b in line.points], f"line s{line.look.colour} k{line.look.corners}" + (" strong" if line.strong else "")
        )
        for (a, _), (low, high) in zip(line.points, line.whiskers, strict=False):
            drawing.line(x(a), y(low), x(a), y(high), f"whisker s{line.look.colour}")
    for line in lines:
        for (a, b), tip in zip(line.points, line.tips, strict=False):
            drawing.open_mark(tip)
            marker(drawing, x(a), y(b), line.look, radius=5.0)
            drawing.close()
    if names_at is not None:
        _names(drawing, lines, y, names_at)


def _names(drawing: Drawing, lines: list[Line], y: Scale, at: float) -> None:
    """Each at the height of its line's end, pushed apart where they would touch; a thin line leads to it."""
    ends = sorted(((y(line.points[-1][1]), line) for line in lines if line.points), key=lambda pair: pair[0])
    heights = spread([height for height, _ in ends], LINE_PX)
    for (height, line), placed in zip(ends, heights, strict=True):
        drawing.path([(at - 12, height), (at - 3, placed)], f"lead s{line.look.colour}")
        if line.tip:
            drawing.open_mark(line.tip)
            drawing.element("rect", x=at - 2, y=placed - 7, width=text_px(line.name) + 4, height=14.0, class_="hit")
        drawing.text(at, placed, line.name, "name strong" if line.strong else "name")
        if line.tip:
            drawing.close()


def spread(heights: list[float], least: float) -> list[float]:
    """Ascending heights moved as little as needed so that neighbours are `least` apart, the middle of each heap kept."""
    heaps: list[list[float]] = []  # [first, count, sum of where each member would like the heap's first one to be]
    for height in heights:
        heaps.append([height, 1, height])
        while len(heaps) > 1 and heaps[-2][0] + heaps[-2][1] * least > heaps[-1][0]:
            _, count, wish = heaps.pop()
            below = heaps[-1]
            below[2] += wish - count * below[1] * least
            below[1] += count
            below[0] = below[2] / below[1]
    return [first + i * least for first, count, _ in heaps for i in range(int(count))]
