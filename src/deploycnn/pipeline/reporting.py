"""Reports of a record: the files beside it, and the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from deploycnn.disk import disk_errors, write_atomic
from deploycnn.pipeline.console import stdout_console
from deploycnn.recipe import RecommendOptions
from deploycnn.record import Record
from deploycnn.recordfile import read_record
from deploycnn.report.latency_csv import latency_csv
from deploycnn.report.markdown import markdown
from deploycnn.report.recommend import Recommendation, recommend
from deploycnn.report.terminal import render


def recommendation_of(record: Record) -> Recommendation:
    """What the record's own recipe decides."""
    return recommend(record, RecommendOptions.model_validate(record.recipe.get("recommend", {})))


def write_reports(folder: Path, record: Record) -> Recommendation:
    """Writes report.md and latency.csv beside the record."""
    recommendation = recommendation_of(record)
    with disk_errors(folder):
        write_atomic(folder / "report.md", markdown(record, recommendation))
        write_atomic(folder / "latency.csv", latency_csv(record))
    return recommendation


def show(record: Record, recommendation: Recommendation, console: Console) -> None:
    """Prints the report on a terminal."""
    render(record, recommendation, console)


def report_again(run_folder: Path) -> None:
    """Prints the report of a finished run and rewrites its files."""
    record = read_record(run_folder)
    folder = run_folder if run_folder.is_dir() else run_folder.parent
    show(record, write_reports(folder, record), stdout_console())
