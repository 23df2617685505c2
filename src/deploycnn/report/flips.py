"""Images that an artifact answers differently from the reference, right on one side only: `flips.npz` beside `record.json`.

A plain numpy archive. `image_F` holds indices into the test images, ascending, `images_FCHW` their pixels (uint8) and
`label_F` their classes; for a cell named `onnxruntime/int8/cpu`, `onnxruntime/int8/cpu.row_M` says which of them are its
flips, `.answer_M` and `.reference_M` which class it and the reference gave (-1: NaN or inf).
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploycnn.disk import write_atomic
from deploycnn.errors import RecordError

FLIPS_NAME = "flips.npz"


@dataclass(frozen=True, kw_only=True)
class CellFlips:
    """Flips of one cell. M of them, the lost ones first."""

    row_M: NDArray[np.int64]  # into the rows of Flips
    answer_M: NDArray[np.int64]
    reference_M: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Flips:
    """Flips of a run. F images, each once, however many cells flip it."""

    image_F: NDArray[np.int64]
    images_FCHW: NDArray[np.uint8]
    label_F: NDArray[np.int64]
    cells: Mapping[str, CellFlips]


def write_flips(folder: Path, flips: Flips) -> None:
    """Writes the file whole or leaves the old one.

    Raises:
        StoreError: the disk said no.
    """
    arrays: dict[str, np.ndarray] = {"image_F": flips.image_F, "images_FCHW": flips.images_FCHW, "label_F": flips.label_F}
    for name, cell in flips.cells.items():
        arrays |= {f"{name}.row_M": cell.row_M, f"{name}.answer_M": cell.answer_M, f"{name}.reference_M": cell.reference_M}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomic(folder / FLIPS_NAME, buffer.getvalue())


def read_flips(folder: Path) -> Flips | None:
    """The flips of a run's folder, None where it has none: a record can be read without its images.

    Raises:
        RecordError: the file is damaged.
    """
    path = folder / FLIPS_NAME
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = [name.removesuffix(".row_M") for name in archive.files if name.endswith(".row_M")]
            cells = {
                name: CellFlips(**{part: archive[f"{name}.{part}"] for part in ("row_M", "answer_M", "reference_M")}) for name in names
            }
            return Flips(image_F=archive["image_F"], images_FCHW=archive["images_FCHW"], label_F=archive["label_F"], cells=cells)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, KeyError, EOFError) as error:
        raise RecordError(f"the images {path} are damaged", found=str(error), remedy="remove that file, or run again") from error
