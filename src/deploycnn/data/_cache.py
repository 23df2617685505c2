"""Decoded once: arrays in the cache, found again by names, sizes and times of the source files.

Two entries for each data set. `data-source` is keyed by what identifies the source files without reading them and holds
the digest of what they contain; `data-arrays` is keyed by that digest and holds the arrays. So touching a file costs one
decoding and no second copy, and the same images found in two places are stored once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from deploycnn.data._contract import Decoded, ImageSet
from deploycnn.errors import DataError
from deploycnn.store import Key, Store, file_sha256

_CHUNK_BYTES = 2**24
_DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """Decoded images in the cache."""

    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    official: bool | None
    notes: tuple[str, ...]
    sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def remembered(store: Store, fingerprint: Mapping[str, Any], decode: Callable[[Path], Decoded]) -> Content:
    """What `decode` makes, made only when the cache does not know this fingerprint.

    Args:
        fingerprint: JSON values; the code of this folder is added, so that a changed reader reads again.
        decode: gets an empty folder for scratch files.

    Raises:
        DataError: from `decode`.
        StoreError: the cache cannot be written to.
    """
    source_key = Key(stage="data-source", parts={**fingerprint, "code": _code_sha256()})
    source = store.build(source_key, lambda folder: _read(store, folder, decode))
    facts = json.loads((source.path / "facts.json").read_text(encoding="utf-8"))
    arrays = store.build(_arrays_key(facts["sha256"]), lambda folder: _read_again(folder, decode, facts["sha256"]))
    sets = json.loads((arrays.path / "sets.json").read_text(encoding="utf-8"))
    return Content(
        classes=tuple(facts["classes"]),
        train=_opened(arrays.path, "train", sets["train"]),
        test=_opened(arrays.path, "test", sets["test"]),
        official=facts["official"],
        notes=tuple(facts["notes"]),
        sha256=facts["sha256"],
        mean=tuple(sets["mean"]),
        std=tuple(sets["std"]),
    )


@cache
def _code_sha256() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()


@cache
def _layout_sha256() -> str:
    return file_sha256(Path(__file__))


def _arrays_key(sha256: str) -> Key:
    # Of the code only this file: another reader that reads the same images needs no second copy of them.
    return Key(stage="data-arrays", parts={"content": sha256, "code": _layout_sha256()})


def _read(store: Store, folder: Path, decode: Callable[[Path], Decoded]) -> None:
    """Fills a `data-source` entry, and beside it the entry of its arrays."""
    arrays = folder / "arrays"
    arrays.mkdir()
    decoded, sha256 = _written(arrays, decode)

    def move(target: Path) -> None:
        for file in list(arrays.iterdir()):
            file.rename(target / file.name)

    store.build(_arrays_key(sha256), move)
    shutil.rmtree(arrays)
    facts = {"classes": decoded.classes, "official": decoded.official, "notes": decoded.notes, "sha256": sha256}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _read_again(folder: Path, decode: Callable[[Path], Decoded], expected: str) -> None:
    """Fills a `data-arrays` entry that was dropped although its source is remembered."""
    _, sha256 = _written(folder, decode)
    if sha256 != expected:
        raise DataError(
            "the images changed without a change of their names, sizes or times",
            found=f"content {sha256[:12]} instead of {expected[:12]}",
            remedy="touch the files (their times tell what changed) and run again",
        )


def _written(folder: Path, decode: Callable[[Path], Decoded]) -> tuple[Decoded, str]:
    scratch = folder / "scratch"
    scratch.mkdir()
    decoded = decode(scratch)
    sha256 = {part: _write_set(folder, part, *getattr(decoded, part)) for part in ("train", "test")}
    mean, std = channel_statistics(decoded.train[0])
    (folder / "sets.json").write_text(json.dumps({**sha256, "mean": mean, "std": std}), encoding="utf-8")
    shutil.rmtree(scratch)
    return decoded, _joint_sha256(decoded.classes, sha256["train"], sha256["test"])


def _joint_sha256(classes: tuple[str, ...], train: str, test: str) -> str:
    return hashlib.sha256(json.dumps([classes, train, test]).encode()).hexdigest()


def _write_set(folder: Path, part: str, images_NCHW: np.ndarray, labels_N: np.ndarray) -> str:
    """Writes the three arrays of a set. Gives the digest of its content."""
    assert images_NCHW.dtype == np.uint8
    assert images_NCHW.ndim == 4
    assert labels_N.shape == images_NCHW.shape[:1]
    content = hashlib.sha256(f"uint8 {images_NCHW.shape}".encode())
    digests = bytearray()
    step = max(1, _CHUNK_BYTES // max(1, images_NCHW[0].size))
    with (folder / f"{part}_images.npy").open("wb") as file:
        _write_header(file, images_NCHW.dtype, images_NCHW.shape)
        for start in range(0, len(images_NCHW), step):
            chunk = np.ascontiguousarray(images_NCHW[start : start + step])
            content.update(chunk.data)
            digests += b"".join(hashlib.blake2b(image, digest_size=_DIGEST_BYTES).digest() for image in chunk)
            file.write(chunk.data)
    labels = np.ascontiguousarray(labels_N, dtype="<i8")
    content.update(labels.data)
    _save(folder / f"{part}_labels.npy", labels)
    _save(folder / f"{part}_digests.npy", np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES))
    return content.hexdigest()


def _write_header(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _save(path: Path, array: np.ndarray) -> None:
    # Not np.save: on a full disk it raises an error that does not say so.
    with path.open("wb") as file:
        _write_header(file, array.dtype, array.shape)
        file.write(np.ascontiguousarray(array).data)


def _opened(folder: Path, part: str, sha256: str) -> ImageSet:
    images, labels, digests = (np.load(folder / f"{part}_{kind}.npy", mmap_mode="r") for kind in ("images", "labels", "digests"))
    return ImageSet(images_NCHW=images, labels_N=labels, digests_ND=digests, sha256=sha256)


def channel_statistics(images_NCHW: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels / 255, per channel, over all images: from exact integer sums.

    A channel that never changes gets the deviation of one grey level, so that nobody divides by zero.
    """
    n, channels = images_NCHW.shape[0], images_NCHW.shape[1]
    sums = [0] * channels
    squares = [0] * channels
    step = max(1, _CHUNK_BYTES // images_NCHW[0].size)
    for start in range(0, n, step):
        for channel in range(channels):
            counts = np.bincount(images_NCHW[start : start + step, channel].ravel(), minlength=256).tolist()
            sums[channel] += sum(value * count for value, count in enumerate(counts))
            squares[channel] += sum(value * value * count for value, count in enumerate(counts))
    pixels = images_NCHW.size // channels
    mean = [total / pixels for total in sums]
    # Integers until the division: the difference of two large floats would lose digits.
    variance = [(square * pixels - total * total) / (pixels * pixels) for square, total in zip(squares, sums, strict=True)]
    std = [max(value**0.5, 1.0) for value in variance]
    return tuple(value / 255 for value in mean), tuple(value / 255 for value in std)
