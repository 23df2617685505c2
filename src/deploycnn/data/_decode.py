"""Whole trees of image files to one array, every fault found and listed before anything is done with the images.

Threads, because Pillow decodes and resizes outside of the interpreter's lock; small images gain little, large ones all.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image

from deploycnn.data._contract import Decoded
from deploycnn.data._images import UnreadableImage, decode_file
from deploycnn.data._trees import ImageTree
from deploycnn.environment import usable_cores
from deploycnn.errors import DataError
from deploycnn.store import disk_errors
from deploycnn.types import Progress, ProgressCallback, Value

_CHUNK_IMAGES = 64
_CHUNK_BYTES = 2**23
_NAMED_IN_NOTES = 5


class Treatment(Value):
    """How files become arrays; see `_images`."""

    channels: Literal[1, 3] = 3
    size: int | None = None
    skip_unreadable: bool = False


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What came of one file. With a reason, or of another shape than asked for, it was not written."""

    reason: str = ""
    shape_CHW: tuple[int, ...] = ()
    converted: str = ""
    several_frames: bool = False


def decode_trees(
    trees: Mapping[str, ImageTree], classes: Sequence[str], treatment: Treatment, scratch: Path, progress: ProgressCallback
) -> Decoded:
    """Decodes the trees `train` and `test`.

    Args:
        classes: names in the order of the labels; every class of both trees is among them.
        scratch: an empty folder for the arrays.

    Raises:
        DataError: unreadable images (all are listed), images of different sizes, a class without training images.
        StoreError: the disk is full.
    """
    parts = ("train", "test")
    paths = [Path(path) for part in parts for members in trees[part].classes.values() for path in members]
    labels = {name: label for label, name in enumerate(classes)}
    labels_N = np.array([labels[name] for part in parts for name, members in trees[part].classes.items() for _ in members], np.int64)
    with warnings.catch_warnings():
        # Pillow warns of what it can mend. An image that is suspiciously large is refused like a broken one.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        shape_CHW = _first_shape(paths, treatment)
        results = _decode_all(paths, shape_CHW, treatment, scratch / "images", progress)
    _check_readable(paths, results, treatment)
    _check_shapes(paths, results)
    kept_N = np.array([not result.reason for result in results], bool)
    images_NCHW = _mapped(scratch / "images", np.flatnonzero(kept_N), shape_CHW)
    n_train = int(kept_N[: len(trees["train"])].sum())
    labels_N = labels_N[kept_N]
    _check_classes(labels_N[:n_train], labels_N[n_train:], classes, trees)
    return Decoded(
        classes=tuple(classes),
        train=(images_NCHW[:n_train], labels_N[:n_train]),
        test=(images_NCHW[n_train:], labels_N[n_train:]),
        notes=_notes(paths, results, treatment),
    )


def _first_shape(paths: Sequence[Path], treatment: Treatment) -> tuple[int, ...]:
    """Shape of the first image that can be read; that of no image where none can, which is an error soon after."""
    for path in paths:
        try:
            return decode_file(path, treatment.channels, treatment.size).pixels_CHW.shape
        except UnreadableImage:
            continue
    return (treatment.channels, 0, 0)


def _decode_all(
    paths: Sequence[Path], shape_CHW: tuple[int, ...], treatment: Treatment, target: Path, progress: ProgressCallback
) -> list[_Result]:
    """Writes image i of `paths` at row i of the file `target`."""
    row_bytes = int(np.prod(shape_CHW))
    step = max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // max(1, row_bytes)))
    results: dict[int, list[_Result]] = {}
    done = 0
    with disk_errors(target), target.open("wb") as file:
        guard = threading.Lock()
        pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode")
        try:
            futures = {
                pool.submit(_decode_chunk, paths[start : start + step], shape_CHW, treatment, file, guard, start * row_bytes): start
                for start in range(0, len(paths), step)
            }
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                done += len(results[futures[future]])
                progress(Progress(done=done, total=len(paths), unit="images"))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [result for start in sorted(results) for result in results[start]]


def _decode_chunk(
    paths: Sequence[Path], shape_CHW: tuple[int, ...], treatment: Treatment, file: BinaryIO, guard: threading.Lock, offset: int
) -> list[_Result]:
    images_NCHW = np.zeros((len(paths), *shape_CHW), np.uint8)
    results = []
    for row, path in enumerate(paths):
        try:
            picture = decode_file(path, treatment.channels, treatment.size)
        except UnreadableImage as error:
            results.append(_Result(reason=str(error)))
            continue
        shape = picture.pixels_CHW.shape
        if shape == shape_CHW:
            images_NCHW[row] = picture.pixels_CHW
        results.append(_Result(shape_CHW=shape, converted=picture.converted, several_frames=picture.several_frames))
    with guard:
        file.seek(offset)
        file.write(images_NCHW.data)
    return results


def _mapped(file: Path, kept_N: np.ndarray, shape_CHW: tuple[int, ...]) -> np.ndarray:
    """The rows `kept_N` of the file as an array, moved together in the file itself: there may be more than fits in memory."""
    row_bytes = int(np.prod(shape_CHW))
    with file.open("r+b") as rows:
        for target, source in enumerate(kept_N.tolist()):
            if target != source:
                rows.seek(source * row_bytes)
                data = rows.read(row_bytes)
                rows.seek(target * row_bytes)
                rows.write(data)
        rows.truncate(len(kept_N) * row_bytes)
    return np.memmap(file, np.uint8, "r", shape=(len(kept_N), *shape_CHW))


# --- what can be wrong --------------------------------------------------------------------


def _check_readable(paths: Sequence[Path], results: Sequence[_Result], treatment: Treatment) -> None:
    bad = [f"{path}: {result.reason}" for path, result in zip(paths, results, strict=True) if result.reason]
    if len(bad) == len(paths) or (bad and not treatment.skip_unreadable):
        raise DataError(
            f"{len(bad)} of {len(paths)} images cannot be read",
            found="\n    ".join(bad),
            remedy="replace or remove these files, or set data.skip_unreadable=true to go on without them",
        )


def _check_shapes(paths: Sequence[Path], results: Sequence[_Result]) -> None:
    shapes: dict[tuple[int, ...], list[Path]] = {}
    for path, result in zip(paths, results, strict=True):
        if not result.reason:
            shapes.setdefault(result.shape_CHW[1:], []).append(path)
    if len(shapes) > 1:
        by_count = sorted(shapes, key=lambda shape: -len(shapes[shape]))
        examples = [f"{shapes[shape][0]} is {shape[1]}x{shape[0]}" for shape in (by_count[0], by_count[-1])]
        raise DataError(
            f"the images have {len(shapes)} different sizes",
            found=", ".join(examples),
            remedy=f"set data.size, for example data.size={min(by_count[0])}, to have all cut to squares of that size",
        )


def _check_classes(train_N: np.ndarray, test_N: np.ndarray, classes: Sequence[str], trees: Mapping[str, ImageTree]) -> None:
    empty = [name for name, count in zip(classes, np.bincount(train_N, minlength=len(classes)), strict=True) if count == 0]
    if empty:
        raise DataError(
            f"there are classes without an image in {trees['train'].root}",
            found=", ".join(empty),
            remedy="bring images of them, or remove the folders",
        )
    if len(test_N) == 0:
        raise DataError(f"there is no image in {trees['test'].root}", remedy="bring images to test with")


def _notes(paths: Sequence[Path], results: Sequence[_Result], treatment: Treatment) -> tuple[str, ...]:
    notes = []
    bad = [str(path) for path, result in zip(paths, results, strict=True) if result.reason]
    if bad:
        more = f" and {len(bad) - _NAMED_IN_NOTES} more" if len(bad) > _NAMED_IN_NOTES else ""
        notes.append(f"{len(bad)} of {len(paths)} images skipped because they cannot be read: {', '.join(bad[:_NAMED_IN_NOTES])}{more}")
    modes = Counter(result.converted for result in results if result.converted)
    if modes:
        counts = ", ".join(f"{mode} {count}" for mode, count in sorted(modes.items()))
        notes.append(f"images converted to {'grey' if treatment.channels == 1 else 'RGB'} (transparent parts on white): {counts}")
    if frames := sum(result.several_frames for result in results):
        notes.append(f"{frames} images have several frames: the first one is used")
    return tuple(notes)
