"""The same cell over several runs."""

from __future__ import annotations

from collections.abc import Sequence

from deploycnn.record import Cell, Record
from deploycnn.report.compare_values import TIMES, HistoryPoint, HistoryRow, Metric, figure
from deploycnn.types import Interval


def history(runs: Sequence[tuple[str, Record]], metrics: Sequence[Metric]) -> tuple[HistoryRow, ...]:
    """A row for every cell, metric and batch size that any run has; runs in the order given."""
    rows: dict[tuple[str, Metric, int | None], None] = {}
    for _, record in runs:
        for metric in metrics:
            for cell in record.cells:
                batches = sorted({latency.batch for latency in cell.latencies}) if metric in TIMES else [None]
                rows.update({(cell.name, metric, batch): None for batch in batches if _figure(cell, metric, batch) is not None})
    return tuple(
        HistoryRow(
            cell=name,
            metric=metric,
            batch=batch,
            points=tuple(
                HistoryPoint(run=run, created=record.created, value=_figure(record.cell(name), metric, batch)) for run, record in runs
            ),
        )
        for name, metric, batch in rows
    )


def _figure(cell: Cell | None, metric: Metric, batch: int | None) -> Interval | None:
    if cell is None or cell.outcome.state != "done":
        return None
    if metric == "top1":
        return cell.accuracy.top1 if cell.accuracy else None
    if metric == "size":
        size_bytes = float(cell.artifact.size_bytes) if cell.artifact else None
        return None if size_bytes is None else Interval(value=size_bytes, low=size_bytes, high=size_bytes)
    latency = cell.latency(batch) if batch is not None else None
    return figure(latency, metric) if latency else None
