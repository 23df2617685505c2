"""Where accuracy was won and lost: classes over artifacts."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Cell, ClassAccuracy, Record
from deploycnn.report.html.values import Number
from deploycnn.report.remarks import cell_name, together

MOST_CLASSES = 24


@dataclass(frozen=True, kw_only=True)
class ClassCell:
    """Change of one class in one artifact. `share` is 0 to 1 of the largest change shown."""

    number: Number
    share: float
    side: str  # gain, loss, same


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class."""

    name: str
    reference: Number
    cells: tuple[ClassCell, ...]


@dataclass(frozen=True, kw_only=True)
class ClassMap:
    """See the module. Classes that move most come first where not all are shown."""

    names: tuple[str, ...]  # of the artifacts
    rows: tuple[ClassRow, ...]
    left_out: int
    unmoved: str  # artifacts with flips that cancel out in every class


def class_map(record: Record) -> ClassMap | None:
    """None where no artifact was validated."""
    validated = [cell for cell in record.cells if cell.accuracy is not None and cell.name != record.reference]
    moved = [cell for cell in validated if any(_change(row) for row in _classes(cell))]
    if not validated:
        return None
    classes = _classes(validated[0])
    largest = {i: max((abs(_change(_classes(cell)[i])) for cell in moved), default=0.0) for i in range(len(classes))}
    shown = list(range(len(classes)))
    if len(classes) > MOST_CLASSES:
        shown = sorted(sorted(largest, key=lambda i: -largest[i])[:MOST_CLASSES])
    scale = max(largest.values(), default=0.0) or 1.0
    return ClassMap(
        names=tuple(cell_name(cell) for cell in moved),
        rows=tuple(_row(classes[i], [_classes(cell)[i] for cell in moved], moved, scale) for i in shown),
        left_out=len(classes) - len(shown),
        unmoved=together([cell for cell in validated if cell not in moved and _flips(cell)]),
    )


def _flips(cell: Cell) -> bool:
    return cell.accuracy is not None and bool(cell.accuracy.right_to_wrong or cell.accuracy.wrong_to_right)


def _classes(cell: Cell) -> tuple[ClassAccuracy, ...]:
    return cell.accuracy.per_class if cell.accuracy else ()


def _change(row: ClassAccuracy) -> float:
    return row.top1 - row.reference_top1


def _row(first: ClassAccuracy, rows: list[ClassAccuracy], cells: list[Cell], scale: float) -> ClassRow:
    reference = Number(
        text=units.percent(first.reference_top1, 1),
        tip=f"{first.name}: the reference is right on {round(first.reference_top1 * first.n_images):,} of {first.n_images:,} images",
    )
    return ClassRow(
        name=first.name, reference=reference, cells=tuple(_cell(row, cell, scale) for row, cell in zip(rows, cells, strict=True))
    )


def _cell(row: ClassAccuracy, cell: Cell, scale: float) -> ClassCell:
    change = _change(row)
    text = units.points(change, 1).removesuffix(" pp")
    right = round(row.top1 * row.n_images)
    tip = f"{cell_name(cell)}, {row.name}: right on {right:,} of {row.n_images:,} images\n{units.points(change)} against the reference"
    side = "same" if change == 0 else "gain" if change > 0 else "loss"
    return ClassCell(number=Number(text=text, tip=tip, sort=change), share=abs(change) / scale, side=side)
