"""Flipped images, side by side with what both sides took them for. All of them travel in one PNG."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

import numpy as np

from deploycnn.record import Cell, Record
from deploycnn.report.flips import CellFlips, Flips
from deploycnn.report.remarks import together

MOST_IMAGES = 96  # on the page
SIDE_PX = 48  # larger images are made smaller


@dataclass(frozen=True, kw_only=True)
class FlippedImage:
    """One image and both answers."""

    column: int
    row: int
    label: str  # read aloud and shown as tooltip
    truth: str
    reference: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class FlipGroup:
    """Artifacts with the very same flips."""

    names: str
    n_lost: int  # of all test images
    n_won: int
    lost: tuple[FlippedImage, ...]
    won: tuple[FlippedImage, ...]


@dataclass(frozen=True, kw_only=True)
class FlipSheet:
    """See the module."""

    png: str  # data URI of the sheet, "" where there are no images
    columns: int
    rows: int
    groups: tuple[FlipGroup, ...]
    unflipped: str  # artifacts that answer like the reference wherever either is right


def flip_sheet(record: Record, flips: Flips | None) -> FlipSheet | None:
    """None where no artifact but the reference was validated."""
    validated = [cell for cell in record.cells if cell.accuracy is not None and cell.name != record.reference]
    if not validated:
        return None
    same: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Cell]] = {}
    for cell in validated:
        if cell.accuracy is not None:
            same.setdefault((cell.accuracy.right_to_wrong, cell.accuracy.wrong_to_right), []).append(cell)
    unflipped = same.pop(((), ()), [])
    shown = _shown(flips, [cells[0].name for cells in same.values()])
    columns = max(1, math.ceil(math.sqrt(len(shown))))
    place = {row: divmod(position, columns) for position, row in enumerate(shown)}
    groups = tuple(_group(record, cells, flips, place) for cells in same.values())
    png = _sheet(flips, shown, columns) if flips is not None and shown else ""
    return FlipSheet(png=png, columns=columns, rows=max(1, math.ceil(len(shown) / columns)), groups=groups, unflipped=together(unflipped))


def _shown(flips: Flips | None, names: list[str]) -> list[int]:
    """Rows of `flips` that the page shows: taken in turn from every artifact, until the sheet is full."""
    if flips is None:
        return []
    queues = [list(flips.cells[name].row_M) for name in names if name in flips.cells]
    chosen: dict[int, None] = {}
    while any(queues) and len(chosen) < MOST_IMAGES:
        for queue in queues:
            if queue and len(chosen) < MOST_IMAGES:
                chosen.setdefault(int(queue.pop(0)))
    return list(chosen)


def _group(record: Record, cells: list[Cell], flips: Flips | None, place: dict[int, tuple[int, int]]) -> FlipGroup:
    accuracy = cells[0].accuracy
    assert accuracy is not None, "only validated cells come here"
    kept = flips.cells.get(cells[0].name) if flips is not None else None
    images = _images(record, flips, kept, place) if flips is not None and kept is not None else []
    return FlipGroup(
        names=together(cells),
        n_lost=len(accuracy.right_to_wrong),
        n_won=len(accuracy.wrong_to_right),
        lost=tuple(image for image in images if image.reference == image.truth),
        won=tuple(image for image in images if image.reference != image.truth),
    )


def _images(record: Record, flips: Flips, kept: CellFlips, place: dict[int, tuple[int, int]]) -> list[FlippedImage]:
    def named(index: int) -> str:
        return record.data.classes[index] if index >= 0 else "nothing (NaN)"

    found = []
    for flip, answer, reference in zip(kept.row_M, kept.answer_M, kept.reference_M, strict=True):
        if int(flip) not in place:
            continue
        row, column = place[int(flip)]
        truth, said, was = named(int(flips.label_F[flip])), named(int(answer)), named(int(reference))
        label = f"Test image {int(flips.image_F[flip])} is a {truth}: the reference says {was}, this artifact says {said}"
        found.append(FlippedImage(column=column, row=row, label=label, truth=truth, reference=was, answer=said))
    return found


def _sheet(flips: Flips, shown: list[int], columns: int) -> str:
    from PIL import Image

    rows = math.ceil(len(shown) / columns)
    sheet = Image.new("RGB", (SIDE_PX * columns, SIDE_PX * rows))
    for position, flip in enumerate(shown):
        row, column = divmod(position, columns)
        image = Image.fromarray(_rgb(flips.images_FCHW[flip]))
        small = max(image.size) <= SIDE_PX
        image = image.resize((SIDE_PX, SIDE_PX), Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)
        sheet.paste(image, (SIDE_PX * column, SIDE_PX * row))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _rgb(image_CHW: np.ndarray) -> np.ndarray:
    image_HWC = image_CHW.transpose(1, 2, 0)
    return np.ascontiguousarray(np.repeat(image_HWC, 3, axis=2) if image_HWC.shape[2] == 1 else image_HWC[:, :, :3])
