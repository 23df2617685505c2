"""How artifacts look in every chart: colour says the backend, shape says the precision, hollow says that it did not pass.

Colours are Okabe and Ito's (2008), told apart with any kind of colour vision; the shapes say it again without colour.
"""

from __future__ import annotations

import math
import re

from deploycnn.record import Cell, Record
from deploycnn.report.rows import verdict
from deploycnn.report.svg import Drawing, path_data
from deploycnn.types import Value

COLOURS = 8  # classes s0 to s7; s0 is grey, for the reference's backend

LIGHT = ("#66707a", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00")
DARK = ("#a7b1bb", "#4fa8e0", "#f58a4b", "#35c99b", "#e39fc6", "#f2b942", "#86cdf5", "#c9a64a")

_SHAPES = {"fp32": 0, "fp16": 4, "bf16": 40, "int8": 3}  # corners; 40 is a diamond: a square on its tip


class Look(Value):
    """Of one artifact."""

    colour: int  # s0 to s7
    corners: int  # of its marker; 0 is a disc
    solid: bool


def looks(record: Record) -> dict[str, Look]:
    """By cell name."""
    colours = backend_colours(record)
    return {
        cell.name: Look(colour=colours[cell.backend], corners=corners(cell.precision), solid=verdict(record, cell) == "pass")
        for cell in record.cells
    }


def backend_colours(record: Record) -> dict[str, int]:
    """Colour by backend, in the record's order; the reference's is grey."""
    reference = record.cell(record.reference) if record.reference else None
    colours = {reference.backend: 0} if reference else {}
    for cell in record.cells:
        colours.setdefault(cell.backend, 1 + (len(colours) - (reference is not None)) % (COLOURS - 1))
    return colours


def corners(precision: str) -> int:
    """Corners of a precision's marker."""
    if precision in _SHAPES:
        return _SHAPES[precision]
    return 5 if re.match(r"int8", precision) else 6


def marker(drawing: Drawing, x: float, y: float, look: Look, radius: float = 6.0) -> None:
    """One artifact's marker."""
    kind = f"marker s{look.colour}" + ("" if look.solid else " hollow")
    if look.corners == 0:
        drawing.element("circle", cx=x, cy=y, r=radius, class_=kind)
        return
    n, turn = (4, 0.0) if look.corners == 40 else (look.corners, math.pi / 4 if look.corners == 4 else 0.0)
    reach = radius * (1.25 if n == 3 else 1.15)
    lift = radius * 0.15 if n == 3 else 0.0
    angles = [turn - math.pi / 2 + 2 * math.pi * i / n for i in range(n)]
    points = [(x + reach * math.cos(angle), y + lift + reach * math.sin(angle)) for angle in angles]
    drawing.element("path", d=path_data(points, closed=True), class_=kind)


def shipped_ring(drawing: Drawing, x: float, y: float, radius: float = 11.0) -> None:
    """The ring around what is shipped."""
    drawing.element("circle", cx=x, cy=y, r=radius, class_="ring")


def measured(record: Record, batch: int) -> list[Cell]:
    """Cells with a latency at that batch size, fastest first."""
    found = [(latency.p50_s.value, cell) for cell in record.cells if (latency := cell.latency(batch))]
    return [cell for _, cell in sorted(found, key=lambda pair: pair[0])]
