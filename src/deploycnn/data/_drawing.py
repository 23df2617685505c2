"""How the images of `synthetic10` are drawn: batches at a time, on integers alone.

Lengths are in 1/64 of a pixel, coverage and opacity in 1/128, angles in 1/1024 of a turn. `distance` is to the edge of
a shape and negative inside, all arrays are (n, 32, 32) or broadcast to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Shorts = npt.NDArray[np.int16]  # colours and coverage: a difference of colours times a coverage just fits, at twice the speed

SIDE = 32
PIXEL = 64
OPAQUE = 128
TURN = 1024
_UNIT_BITS = 12
# A libm that is off by one unit in the last place still rounds to the same integers.
_SINE = np.array([round(math.sin(2 * math.pi * step / TURN) * 2**_UNIT_BITS) for step in range(TURN)], np.int32)
_GRID = 5  # control points a side of the smooth ground
_REACH = 2048  # no pixel is further from a shape that touches the image; keeps squares exact in float32


class Dice:
    """Random integers from the raw stream of PCG64, which numpy promises to keep; its distributions may change."""

    def __init__(self, seed: Sequence[int]) -> None:
        self._stream = np.random.PCG64([value % 2**64 for value in seed])

    def integers(self, low: int | Ints, high: int | Ints, shape: tuple[int, ...]) -> Ints:
        """int32 from `low` to below `high`, elementwise."""
        raw = (self._stream.random_raw(math.prod(shape)) >> np.uint64(32)).astype(np.int64).reshape(shape)
        return (low + (raw * (np.asarray(high, np.int64) - low) >> 32)).astype(np.int32)

    def order(self, rows: int, columns: int) -> npt.NDArray[np.intp]:
        """(rows, columns): in each row a permutation of the columns' indices."""
        return np.argsort(self._stream.random_raw(rows * columns).reshape(rows, columns), axis=1, kind="stable")

    def noise(self, shape: tuple[int, ...]) -> Shorts:
        """int16 from -255 to 255, triangular, standard deviation 104."""
        size = math.prod(shape)
        raw = self._stream.random_raw(-(-size // 4)).astype("<u8").view(np.uint8)
        return raw[:size].astype(np.int16).reshape(shape) + raw[size : 2 * size].reshape(shape) - 255


def local(point_2N: Ints, angle_N: Ints) -> tuple[Ints, Ints]:
    """Pixel centres as seen from points (x, y) turned by `angle`: u and v, each (n, 32, 32)."""
    centres = np.arange(SIDE, dtype=np.int32) * PIXEL + PIXEL // 2
    dx = centres[None, None, :] - point_2N[0][:, None, None]
    dy = centres[None, :, None] - point_2N[1][:, None, None]
    cosine, sine = _SINE[(angle_N + TURN // 4) % TURN][:, None, None], _SINE[angle_N % TURN][:, None, None]
    u = (cosine * dx + sine * dy) >> _UNIT_BITS
    v = (cosine * dy - sine * dx) >> _UNIT_BITS
    return u, v


def coverage(distance: Ints) -> Shorts:
    """How much of each pixel is inside, 0 to 128: an edge is one pixel wide."""
    return np.clip(OPAQUE // 2 - distance * (OPAQUE // PIXEL), 0, OPAQUE).astype(np.int16)


def paint(canvas_N3HW: Shorts, colour_N3: Ints, cover_NHW: Shorts) -> None:
    """Lays a colour over the canvas, in place."""
    change_N3HW = colour_N3.astype(np.int16)[:, :, None, None] - canvas_N3HW
    change_N3HW *= cover_NHW[:, None]
    change_N3HW >>= 7
    canvas_N3HW += change_N3HW


def ground(control_N3GG: Ints) -> Shorts:
    """int16 (n, 3, 32, 32): smooth between 5x5 control values from 0 to 255."""
    position = np.arange(SIDE) * (_GRID - 1) * 2 + (_GRID - 1)  # of pixel centres, in 1/64 of the spacing of control points
    weights = np.clip(2 * SIDE - np.abs(position[:, None] - 2 * SIDE * np.arange(_GRID)[None, :]), 0, None).astype(np.float32)
    # Whole numbers below 2**24: exact in float32 in whatever order they are summed.
    summed: npt.NDArray[np.float32] = weights @ control_N3GG.astype(np.float32) @ weights.T
    return (summed.astype(np.int32) >> 12).astype(np.int16)


def absolute(values: Ints) -> Ints:
    """np.abs with its type."""
    magnitudes: Ints = np.abs(values)
    return magnitudes


def both(a: Ints, b: Ints) -> Ints:
    """Distance to what two shapes have in common."""
    distance: Ints = np.maximum(a, b)
    return distance


def root(u: Ints, v: Ints) -> Ints:
    """Distance from the origin, rounded down: the sum of squares and its root are exact as IEEE 754 defines them."""
    u, v = np.clip(u, -_REACH, _REACH), np.clip(v, -_REACH, _REACH)
    return np.sqrt((u * u + v * v).astype(np.float32)).astype(np.int32)


def bar(u: Ints, v: Ints, length: Ints, width: Ints) -> Ints:
    """Distance to a rectangle of half sides `length` and `width`."""
    return both(absolute(u) - length, absolute(v) - width)


# --- plain shapes: distance from u, v and the radius ---------------------------------------


def _disc(u: Ints, v: Ints, radius: Ints) -> Ints:
    return root(u, v) - radius * 7 // 8


def _ring(u: Ints, v: Ints, radius: Ints) -> Ints:
    return absolute(root(u, v) - radius * 5 // 8) - radius // 4


def _square(u: Ints, v: Ints, radius: Ints) -> Ints:
    return bar(u, v, radius * 3 // 4, radius * 3 // 4)


def _triangle(u: Ints, v: Ints, radius: Ints) -> Ints:
    return both(v, (absolute(u) * 887 - v * 512) >> 10) - radius * 9 // 16


def _cross(u: Ints, v: Ints, radius: Ints) -> Ints:
    return np.minimum(bar(u, v, radius, radius // 3), bar(v, u, radius, radius // 3))


def _star(u: Ints, v: Ints, radius: Ints) -> Ints:
    a, b = absolute(u), absolute(v)
    return (a + b + np.minimum(a, b) - radius * 5 // 4) * 115 >> 8  # 115/256 is one over the square root of five


def _crescent(u: Ints, v: Ints, radius: Ints) -> Ints:
    return both(root(u, v) - radius, radius * 7 // 8 - root(u - radius * 5 // 8, v))


# --- textures: coverage by their second colour, from u, v and the period ----------------------


def _wave(u: Ints, period: Ints) -> Ints:
    """Distance to stripes across u that are as wide as the gaps between them."""
    return absolute(u % period - period // 2) - period // 4


def _stripes(u: Ints, v: Ints, period: Ints) -> Shorts:
    return coverage(_wave(u, period))


def _checks(u: Ints, v: Ints, period: Ints) -> Shorts:
    a, b = coverage(_wave(u, period)), coverage(_wave(v, period))
    return a + b - (a * b >> 6)


def _dots(u: Ints, v: Ints, period: Ints) -> Shorts:
    return coverage(root(u % period - period // 2, v % period - period // 2) - period // 4)


SHAPES: dict[str, Callable[[Ints, Ints, Ints], Ints]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "star": _star,
    "crescent": _crescent,
}
TEXTURES: dict[str, Callable[[Ints, Ints, Ints], Shorts]] = {"stripes": _stripes, "checks": _checks, "dots": _dots}
