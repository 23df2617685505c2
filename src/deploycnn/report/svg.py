"""Drawing by hand: scales with round ticks, and an SVG that grows element by element.

Colours and fonts are classes; the page's style sheet or a static file's own style gives them their values, for light and
dark alike. Coordinates are in CSS pixels, so that text keeps its size: a chart is drawn once for each width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

from deploycnn import units

TEXT_PX = 12
_CHARACTER_PX = 6.9  # average of a system font at 12 px; text is placed with it, never cut


class Scale:
    """Values to pixels.

    Args:
        low, high: the values at the ends.
        start, end: their pixels; start may be the larger one.
        log: logarithmic; both values must then be above 0.
    """

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        if log and not (low > 0 and high > 0):
            raise ValueError(f"a logarithmic scale from {low} to {high}")
        if high <= low:
            low, high = (low / 1.5, high * 1.5) if log else (low - 0.5, high + 0.5)
        self.low, self.high, self.log = low, high, log
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """The pixel of a value, kept inside the scale."""
        value = min(max(value, self.low), self.high)
        low, high, at = (math.log(self.low), math.log(self.high), math.log(value)) if self.log else (self.low, self.high, value)
        return self._start + (at - low) / (high - low) * (self._end - self._start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values inside the scale, ascending, about `most` of them."""
        decades = self.log and self.high >= 3 * self.low  # within less, steps of 1, 2 and 5 are too coarse
        return _log_ticks(self.low, self.high, most) if decades else _linear_ticks(self.low, self.high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * i:.12g}") for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) <= most:
            return found
    step = math.ceil(len(found) / most)
    return found[::step]


def padded(values: Iterable[float], *, log: bool = False, share: float = 0.06) -> tuple[float, float]:
    """The ends of a scale with some air around all values."""
    low, high = min(values := list(values)), max(values)
    if log:
        air = (high / low) ** share if high > low else 1.3
        return low / air, high * air
    air = (high - low) * share
    return low - air, high + air


def round_text(text: str) -> str:
    """A formatted figure without idle zeros: `20.0 µs` is `20 µs`."""
    return re.sub(r"(\d)\.(\d*?)0+(?=\D|$)", lambda match: f"{match[1]}.{match[2]}" if match[2] else match[1], text)


def seconds_tick(value_s: float) -> str:
    """`20 µs`, `1.5 ms`."""
    return round_text(units.seconds(value_s))


def text_px(text: str) -> float:
    """Estimated width of a label."""
    return len(text) * _CHARACTER_PX


class Drawing:
    """One chart, in CSS pixels.

    Args:
        title: what it shows, read aloud.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def element(self, tag: str, text: str = "", /, **attributes: str | float | None) -> None:
        """`class_` and `stroke_width` are written `class` and `stroke-width`; None leaves an attribute out."""
        self._parts.append(_element(tag, escape(text), attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, **attributes: str | float | None) -> None:
        self.element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, **attributes)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "label",
        anchor: Literal["start", "middle", "end"] = "start",
        **more: str | float | None,
    ) -> None:
        """Text whose middle is at height y."""
        self.element("text", text, x=x, y=y + TEXT_PX * 0.35, class_=kind, text_anchor=None if anchor == "start" else anchor, **more)

    def path(self, points: Sequence[tuple[float, float]], kind: str, *, closed: bool = False, **attributes: str | float | None) -> None:
        if points:
            self.element("path", d=path_data(points, closed=closed), class_=kind, **attributes)

    def open_mark(self, tip: str, kind: str = "", **attributes: str | float | None) -> None:
        """Begins a group that carries a tooltip and can be reached by keyboard; `close` ends it."""
        self._parts.append(_element("g", None, {"class": f"mark {kind}".strip(), **attributes}))
        self._parts.append(f"<title>{escape(tip)}</title>")

    def open(self, **attributes: str | float | None) -> None:
        """Begins a plain group."""
        self._parts.append(_element("g", None, attributes))

    def close(self) -> None:
        self._parts.append("</g>")

    def render(self) -> str:
        """As part of a page, whose style sheet colours it."""
        return self._render("", "", role="group")

    def render_file(self, style: str) -> str:
        """As a file of its own, with its style and a background inside."""
        paper = '<rect width="100%" height="100%" class="paper"/>'
        return self._render(' xmlns="http://www.w3.org/2000/svg"', f"<style>{style}</style>{paper}", role="img") + "\n"

    def _render(self, namespace: str, first: str, role: str) -> str:
        return (
            f'<svg{namespace} class="chart" viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}" '
            f'role="{role}" aria-label="{escape(self.title)}">{first}{"".join(self._parts)}</svg>'
        )


def path_data(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    """Straight lines through points."""
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points) + ("Z" if closed else "")


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _element(tag: str, inside: str | None, attributes: dict[str, str | float | None]) -> str:
    """`inside` None leaves the element open."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_number(value) if isinstance(value, int | float) else escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if inside is None:
        return f"<{tag}{written}>"
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"


def x_axis(drawing: Drawing, scale: Scale, top: float, bottom: float, labels: Sequence[tuple[float, str]], title: str) -> None:
    """Vertical grid lines with labels below, and what the axis means under them; labels that would touch are left out."""
    free_from = -math.inf
    for value, label in labels:
        x = scale(value)
        drawing.line(x, top, x, bottom, "grid")
        half = text_px(label) / 2
        if x - half > free_from:
            drawing.text(x, bottom + 14, label, "tick", "middle")
            free_from = x + half + 6
    middle = (scale(scale.low) + scale(scale.high)) / 2
    drawing.text(middle, bottom + 34, title, "axis", "middle")


def y_axis(drawing: Drawing, scale: Scale, left: float, right: float, labels: Sequence[tuple[float, str]], title: str) -> None:
    """Horizontal grid lines with labels at their left; the title stands over them."""
    for value, label in labels:
        y = scale(value)
        drawing.line(left, y, right, y, "grid")
        drawing.text(left - 8, y, label, "tick", "end")
    drawing.text(4, min(scale(scale.low), scale(scale.high)) - 16, title, "axis")
