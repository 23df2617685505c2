"""IDX files, the format of MNIST: two zero bytes, element type, number of dimensions, sizes (big-endian), data.

Source: the description of the format on the MNIST page. Names with a dot before `idx` occur too.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from deploycnn.data._contract import Decoded, Found
from deploycnn.data._files import corrupt, fingerprint, unreadable
from deploycnn.errors import DataError
from deploycnn.types import Progress, ProgressCallback

STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
COUNTS = {"train": 60_000, "t10k": 10_000}
N_CLASSES = 10
# MD5 of the uncompressed files: Debian, for one, compresses them again. MNIST and Fashion-MNIST have the same file names.
OFFICIAL_MD5 = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
_UINT8 = 0x08
_REMEDY = "bring the file again; the four files together hold 60,000 and 10,000 images"


def read_idx(path: Path, n_dimensions: int) -> tuple[np.ndarray, str]:
    """The array in an IDX file of unsigned bytes, gzip-compressed or not, and the MD5 of the uncompressed file.

    Raises:
        DataError: not such a file, or shorter or longer than it says.
    """
    data = _bytes(path)
    header_bytes = 4 + 4 * n_dimensions
    magic = bytes([0, 0, _UINT8, n_dimensions])
    if data[:4] != magic or len(data) < header_bytes:
        expected = f"{magic.hex()} (unsigned bytes in {n_dimensions} dimensions)"
        raise corrupt(path, expected=expected, found=f"it begins with {data[:4].hex() or 'nothing'}", remedy=_REMEDY)
    shape = struct.unpack(f">{n_dimensions}I", data[4:header_bytes])
    if len(data) - header_bytes != math.prod(shape):
        size = " x ".join(f"{side:,}" for side in shape)
        raise corrupt(
            path, expected=f"{math.prod(shape):,} for {size}", found=f"{len(data) - header_bytes:,} bytes of data", remedy=_REMEDY
        )
    array = np.frombuffer(data, np.uint8, offset=header_bytes).reshape(shape)
    return array, hashlib.md5(data, usedforsecurity=False).hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise corrupt(path, expected="a whole gzip file", found=f"{path.stat().st_size:,} bytes, {error}", remedy=_REMEDY) from error
    except OSError as error:
        raise unreadable(path, error) from error


def find_idx(name: str, folders: Sequence[Path], classes: Sequence[str]) -> Found | None:
    """The four files of data set `name` in the first of `folders` that holds any of them.

    Raises:
        DataError: some of the four are missing there.
    """
    for folder in folders:
        there = {stem: path for stem in STEMS if (path := _variant(folder, stem))}
        if not there:
            continue
        if missing := [stem for stem in STEMS if stem not in there]:
            raise DataError(
                f"{folder} is incomplete",
                found=f"no {', no '.join(missing)} (with or without .gz)",
                remedy="bring the missing files, or remove the folder to have them downloaded",
            )
        return Found(source=str(folder), fingerprint={"files": fingerprint(there.values())}, decode=_decoder(name, there, classes))
    return None


def _variant(folder: Path, stem: str) -> Path | None:
    dotted = stem.replace("-idx", ".idx")
    paths = (folder / name for name in (stem, f"{stem}.gz", dotted, f"{dotted}.gz"))
    return next((path for path in paths if path.is_file()), None)


def _decoder(name: str, paths: Mapping[str, Path], classes: Sequence[str]) -> Callable[[Path, ProgressCallback], Decoded]:
    def decode(scratch: Path, progress: ProgressCallback) -> Decoded:
        sets = {}
        differing: list[str] = []
        for part, count in COUNTS.items():
            image_stem, label_stem = (stem for stem in STEMS if stem.startswith(part))
            images_NHW, images_md5 = read_idx(paths[image_stem], 3)
            labels_N, labels_md5 = read_idx(paths[label_stem], 1)
            _check(paths[image_stem], images_NHW, paths[label_stem], labels_N, count)
            sets[part] = (images_NHW[:, None], labels_N.astype(np.int64))
            found_md5 = {image_stem: images_md5, label_stem: labels_md5}
            _check_name(name, {paths[stem]: md5 for stem, md5 in found_md5.items()})
            differing += [stem for stem, md5 in found_md5.items() if md5 != OFFICIAL_MD5[name][stem]]
            progress(Progress(done=sum(len(labels) for _, labels in sets.values()), total=sum(COUNTS.values()), unit="images"))
        notes = (f"not the official files: other contents in {', '.join(differing)}",) if differing else ()
        return Decoded(classes=tuple(classes), train=sets["train"], test=sets["t10k"], official=not differing, notes=notes)

    return decode


def _check(image_path: Path, images_NHW: np.ndarray, label_path: Path, labels_N: np.ndarray, count: int) -> None:
    if images_NHW.shape != (count, 28, 28):
        raise corrupt(image_path, expected=f"{count:,} images of 28x28", found=f"shape {images_NHW.shape}", remedy=_REMEDY)
    if labels_N.shape != (count,):
        raise corrupt(label_path, expected=f"{count:,} labels", found=f"{len(labels_N):,}", remedy=_REMEDY)
    if labels_N.max() >= N_CLASSES:
        raise corrupt(label_path, expected=f"labels 0 to {N_CLASSES - 1}", found=f"label {labels_N.max()}", remedy=_REMEDY)


def _check_name(name: str, found_md5: Mapping[Path, str]) -> None:
    for other, digests in OFFICIAL_MD5.items():
        for path, md5 in found_md5.items():
            if other != name and md5 in digests.values():
                raise DataError(
                    f"{path} is not of {name}", found=f"the official file of {other}", remedy=f"use data.name={other}, or another data.root"
                )
