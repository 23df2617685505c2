"""The artifacts that no other one beats in both accuracy and latency."""

from __future__ import annotations

from deploycnn.record import Cell, Record
from deploycnn.report.palette import measured
from deploycnn.report.rows import verdict


def front(record: Record, batch: int) -> list[Cell]:
    """Proved artifacts, fastest first, each more accurate than every faster one. Estimates decide, not intervals."""
    kept: list[Cell] = []
    best = float("-inf")
    for cell in measured(record, batch):
        accuracy = cell.accuracy
        if accuracy is None or verdict(record, cell) != "pass":
            continue
        top1 = accuracy.top1.value
        if top1 > best:
            kept.append(cell)
            best = top1
    return kept
