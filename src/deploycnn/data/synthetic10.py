"""Ten classes of drawn shapes and textures, 32x32 RGB, made from a seed: for machines without images and without a network.

One object an image, of random place, size, rotation, colours and contrast, partly covered now and then, on a ground of
smooth colour changes and stray fragments, under noise. Some are so small, faint or covered that they can hardly be told:
that keeps a classifier's answers close to its decision boundaries, where bad quantisation shows.

The same seed gives the same bytes on every machine (see `_drawing` for why; a test holds the digest), and the first
images are the same whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from deploycnn.data._contract import DataSource, Decoded, Found
from deploycnn.data._drawing import OPAQUE, PIXEL, SHAPES, SIDE, TEXTURES, TURN, Dice, Shorts, bar, coverage, ground, local, paint
from deploycnn.recipe import DataOptions
from deploycnn.types import Progress, ProgressCallback

CLASSES = (*SHAPES, *TEXTURES)
DEFAULT_COUNTS = {"train": 25_000, "test": 5_000}
LARGEST_COUNTS = {"train": 50_000, "test": 10_000}
FRAGMENTS = 3
_CHUNK = 100  # images made together: their arrays fit a core's cache. A multiple of the number of classes
_MIDDLE = SIDE * PIXEL // 2
# Objects of a class tend to a colour, as real ones do: networks find that first, and it gets them off the ground.
_TINTS = 16 * np.array(
    [[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1], [-1, -1, -1], [1, 0, -1], [-1, 0, 1]], np.int32
)
_ACROSS = np.full((1, 1, 1), 2 * SIDE * PIXEL, np.int32)  # half length of a bar that crosses the whole image


class Synthetic10(DataSource):
    """See the module. `data.train` and `data.test` say how many images are made, up to 50,000 and 10,000."""

    name: ClassVar[str] = "synthetic10"

    def find(self, options: DataOptions) -> Found:
        asked = {"train": options.train, "test": options.test}
        counts = {part: min(count or DEFAULT_COUNTS[part], LARGEST_COUNTS[part]) for part, count in asked.items()}

        def decode(scratch: Path, progress: ProgressCallback) -> Decoded:
            total = sum(counts.values())
            train = generate(options.seed, "train", counts["train"], lambda done: progress(_step(done, total)))
            test = generate(options.seed, "test", counts["test"], lambda done: progress(_step(counts["train"] + done, total)))
            return Decoded(classes=CLASSES, train=train, test=test)

        # numpy's version because its raw streams are promised to stay, not proved to.
        fingerprint = {"seed": options.seed, "counts": counts, "numpy": np.__version__}
        return Found(source=f"built in, seed {options.seed}", fingerprint=fingerprint, decode=decode)

    def fetch(self, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> None:
        """Nothing to do."""

    def flips(self, classes: Sequence[str]) -> bool:
        return True


def _step(done: int, total: int) -> Progress:
    return Progress(done=done, total=total, unit="images")


def generate(seed: int, part: str, count: int, tell: Callable[[int], None] = lambda done: None) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` images of a part: uint8 (count, 3, 32, 32) and int64 labels, every ten images one of each class.

    Args:
        part: "train" or "test"; they share no random numbers.
        tell: gets the number of images made so far.
    """
    images_N3HW = np.empty((count, 3, SIDE, SIDE), np.uint8)
    labels_N = np.empty(count, np.int64)
    tag = ("train", "test").index(part)
    for number, start in enumerate(range(0, count, _CHUNK)):
        chunk_N3HW, chunk_labels_N = _draw(Dice((seed, tag, number)))
        n = min(_CHUNK, count - start)
        images_N3HW[start : start + n] = chunk_N3HW[:n]
        labels_N[start : start + n] = chunk_labels_N[:n]
        tell(start + n)
    return images_N3HW, labels_N


def _draw(dice: Dice) -> tuple[np.ndarray, np.ndarray]:
    labels_N = dice.order(_CHUNK // len(CLASSES), len(CLASSES)).ravel()
    base_N3 = dice.integers(24, 120, (_CHUNK, 3))
    spread_N = dice.integers(16, 64, (_CHUNK, 1, 1, 1))
    control = base_N3[:, :, None, None] + (dice.integers(-256, 256, (_CHUNK, 3, 5, 5)) * spread_N >> 8)
    canvas_N3HW = ground(np.clip(control, 0, 255))
    for _ in range(FRAGMENTS):
        _paint_fragment(canvas_N3HW, dice)
    _paint_object(canvas_N3HW, labels_N, dice)
    _paint_cover(canvas_N3HW, dice)
    amplitude_N = dice.integers(8, 56, (_CHUNK, 1, 1, 1)).astype(np.int16)
    canvas_N3HW += dice.noise(canvas_N3HW.shape) * amplitude_N >> 8
    return np.clip(canvas_N3HW, 0, 255).astype(np.uint8), labels_N


def _paint_fragment(canvas_N3HW: Shorts, dice: Dice) -> None:
    """A short bar anywhere, on the whole darker than the object."""
    u, v = local(dice.integers(0, SIDE * PIXEL, (2, _CHUNK)), dice.integers(0, TURN, (_CHUNK,)))
    length, width = dice.integers(PIXEL, 6 * PIXEL, (_CHUNK, 1, 1)), dice.integers(PIXEL // 2, 2 * PIXEL, (_CHUNK, 1, 1))
    paint(canvas_N3HW, dice.integers(16, 176, (_CHUNK, 3)), coverage(bar(u, v, length, width)))


def _paint_object(canvas_N3HW: Shorts, labels_N: np.ndarray, dice: Dice) -> None:
    radius_N = dice.integers(6 * PIXEL, 14 * PIXEL, (_CHUNK,))
    play_N = np.minimum(_MIDDLE - radius_N * 3 // 4, 4 * PIXEL)
    u, v = local(_MIDDLE + dice.integers(-play_N, play_N, (2, _CHUNK)), dice.integers(-TURN // 14, TURN // 14, (_CHUNK,)))
    period_N = dice.integers(4 * PIXEL, 7 * PIXEL, (_CHUNK,))
    round_N = dice.integers(0, 2, (_CHUNK,)) == 0
    outline, texture = np.empty(u.shape, np.int16), np.zeros(u.shape, np.int16)
    for label, name in enumerate(CLASSES):
        members = np.flatnonzero(labels_N == label)
        at = (u[members], v[members])
        if name in SHAPES:
            outline[members] = coverage(SHAPES[name](*at, radius_N[members, None, None]))
            continue
        texture[members] = TEXTURES[name](*at, period_N[members, None, None])
        patch_N = np.maximum(radius_N, 2 * period_N)  # room for two periods on either side of the middle
        for patch, these in (("disc", members[round_N[members]]), ("square", members[~round_N[members]])):
            outline[these] = coverage(SHAPES[patch](u[these], v[these], patch_N[these, None, None]))
    colour_N3 = dice.integers(144, 224, (_CHUNK, 3)) + _TINTS[labels_N]
    opacity_N = dice.integers(OPAQUE * 3 // 8, OPAQUE, (_CHUNK, 1, 1)).astype(np.int16)
    paint(canvas_N3HW, colour_N3, outline * opacity_N >> 7)
    paint(canvas_N3HW, dice.integers(24, 120, (_CHUNK, 3)), (outline * texture >> 7) * opacity_N >> 7)


def _paint_cover(canvas_N3HW: Shorts, dice: Dice) -> None:
    """A long bar over a third of the images."""
    u, v = local(dice.integers(_MIDDLE // 2, _MIDDLE * 3 // 2, (2, _CHUNK)), dice.integers(0, TURN, (_CHUNK,)))
    width = dice.integers(PIXEL, 4 * PIXEL, (_CHUNK, 1, 1))
    there = dice.integers(0, 3, (_CHUNK, 1, 1)) == 0
    paint(canvas_N3HW, dice.integers(0, 256, (_CHUNK, 3)), coverage(bar(u, v, _ACROSS, width)) * there)
