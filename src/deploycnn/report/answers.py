"""How answers differ from the reference's: flips by image number, the class that lost most, confidence, calibration error."""

from __future__ import annotations

from deploycnn import units
from deploycnn.record import Accuracy, ClassAccuracy, Record
from deploycnn.report.remarks import cell_name
from deploycnn.types import Value

SHOWN = 12  # image numbers of one kind; all of them are in record.json


class AnswerRow(Value):
    """One artifact that was validated, the reference among them."""

    who: str
    lost: str  # how many images went from right to wrong
    lost_images: str
    won: str  # likewise from wrong to right
    won_images: str
    worst_class: str
    confidence: str  # mean probability of the winner, and its drift
    ece: str  # expected calibration error, and its change


def answer_rows(record: Record) -> list[AnswerRow]:
    """A row per validated cell, in the record's order."""
    return [_row(cell_name(cell), cell.accuracy, cell.name == record.reference) for cell in record.cells if cell.accuracy is not None]


def _row(who: str, accuracy: Accuracy, is_reference: bool) -> AnswerRow:
    confidence, ece = units.percent(accuracy.mean_confidence), units.percent(accuracy.ece)
    if is_reference:
        nothing = {"lost": "reference", "lost_images": "", "won": "reference", "won_images": "", "worst_class": "reference"}
        return AnswerRow(who=who, confidence=confidence, ece=ece, **nothing)
    drift = units.points(accuracy.mean_confidence - accuracy.reference_mean_confidence)
    return AnswerRow(
        who=who,
        lost=f"{len(accuracy.right_to_wrong):,}",
        lost_images=_images(accuracy.right_to_wrong),
        won=f"{len(accuracy.wrong_to_right):,}",
        won_images=_images(accuracy.wrong_to_right),
        worst_class=_worst(accuracy.per_class),
        confidence=f"{confidence} ({drift})",
        ece=f"{ece} ({units.points(accuracy.ece - accuracy.reference_ece)})",
    )


def _images(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return shown + (f" and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else "")


def _worst(classes: tuple[ClassAccuracy, ...]) -> str:
    """The class that lost most; where none lost, that."""
    worst = min((row for row in classes if row.n_images), key=lambda row: row.top1 - row.reference_top1, default=None)
    if worst is None or worst.top1 >= worst.reference_top1:
        return "none lost"
    return f"{worst.name} {units.points(worst.top1 - worst.reference_top1, 1)}"
