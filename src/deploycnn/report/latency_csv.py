"""`latency.csv`: one line per artifact, batch size and boundary; plain numbers, seconds and bytes."""

from __future__ import annotations

import csv
import io

from deploycnn.record import Cell, Latency, Record
from deploycnn.report.machines import parts
from deploycnn.types import Interval

COLUMNS = (
    "backend", "precision", "target", "machine", "data", "outcome", "batch", "threads", "streams", "boundary",
    "n_samples", "n_blocks", "n_rounds", "n_processes", "p50_s", "p50_low_s", "p50_high_s", "p90_s", "p95_s", "p99_s", "p999_s",
    "mean_s", "min_s", "max_s", "images_per_s", "ratio", "ratio_low", "ratio_high", "noisy",
    "top1", "drop", "agreement", "size_bytes", "build_s", "load_s", "first_run_s", "peak_bytes",
)  # fmt: skip


def latency_csv(record: Record) -> str:
    """The latencies of one run, unrounded; what is not known is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cell in (cell for part in parts(record) for cell in part.cells):
        for latency in (*cell.latencies, *cell.device_latencies):
            writer.writerow(_cell_fields(record, cell) | _latency_fields(latency))
        if not cell.latencies:
            writer.writerow(_cell_fields(record, cell))
    return text.getvalue()


def _cell_fields(record: Record, cell: Cell) -> dict[str, object]:
    accuracy, artifact, loading = cell.accuracy, cell.artifact, cell.loading
    return {
        "backend": cell.backend,
        "precision": cell.precision,
        "target": str(cell.target),
        "machine": cell.machine or "",
        "data": record.data.name,
        "outcome": cell.outcome.state,
        "top1": accuracy.top1.value if accuracy else "",
        "drop": accuracy.drop.value if accuracy else "",
        "agreement": accuracy.agreement if accuracy else "",
        "size_bytes": artifact.size_bytes if artifact else "",
        "build_s": artifact.build_s if artifact else "",
        "load_s": loading.load_s if loading else "",
        "first_run_s": loading.first_run_s if loading else "",
        "peak_bytes": loading.peak_bytes if loading else "",
    }


def _latency_fields(latency: Latency) -> dict[str, object]:
    return {
        "batch": latency.batch,
        "threads": latency.threads,
        "streams": latency.streams,
        "boundary": latency.boundary,
        "n_samples": latency.n_samples,
        "n_blocks": latency.n_blocks,
        "n_rounds": latency.n_rounds,
        "n_processes": latency.n_processes,
        "p50_s": latency.p50_s.value,
        "p50_low_s": latency.p50_s.low,
        "p50_high_s": latency.p50_s.high,
        "p90_s": _value(latency.p90_s),
        "p95_s": _value(latency.p95_s),
        "p99_s": _value(latency.p99_s),
        "p999_s": _value(latency.p999_s),
        "mean_s": latency.mean_s,
        "min_s": latency.min_s,
        "max_s": latency.max_s,
        "images_per_s": latency.images_per_s.value,
        "ratio": _value(latency.ratio),
        "ratio_low": latency.ratio.low if latency.ratio else "",
        "ratio_high": latency.ratio.high if latency.ratio else "",
        "noisy": latency.noisy,
    }


def _value(interval: Interval | None) -> float | str:
    return interval.value if interval else ""
