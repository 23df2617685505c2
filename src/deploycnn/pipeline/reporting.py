"""Reports of a record: the files beside it, and the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from deploycnn.disk import disk_errors, write_atomic
from deploycnn.pipeline.console import stdout_console
from deploycnn.recipe import RecommendOptions
from deploycnn.record import Record
from deploycnn.recordfile import read_record
from deploycnn.report.flips import read_flips
from deploycnn.report.html import Part, render_page
from deploycnn.report.latency_csv import latency_csv
from deploycnn.report.machines import machine, parts
from deploycnn.report.markdown import markdown
from deploycnn.report.recommend import Recommendation, recommend
from deploycnn.report.svg_files import chart_files
from deploycnn.report.terminal import render
from deploycnn.samples import SAMPLES_NAME, read_samples


def recommendation_of(record: Record) -> Recommendation:
    """What the record's own recipe decides."""
    return recommend(record, RecommendOptions.model_validate(record.recipe.get("recommend", {})))


def write_reports(folder: Path, record: Record) -> Recommendation:
    """Writes report.html, report.md with its charts, and latency.csv beside the record.

    Gives back the decision on the machine that was measured last.

    Raises:
        RecordError: samples or images beside the record are damaged.
        StoreError: the disk said no.
    """
    pages = [_page_part(folder, part, where) for part, where in zip(parts(record), _folders(record), strict=True)]
    texts = []
    with disk_errors(folder):
        for number, page in enumerate(pages, 1):
            charts = chart_files(page.record, page.recommendation, page.samples, suffix=f"-{number}" if len(pages) > 1 else "")
            for name, svg in charts.items():
                write_atomic(folder / name, svg)
            texts.append(measured_on(page.record, record) + markdown(page.record, page.recommendation, tuple(charts)))
        write_atomic(folder / "report.html", render_page(pages, folder))
        write_atomic(folder / "report.md", "\n".join(texts))
        write_atomic(folder / "latency.csv", latency_csv(record))
    return pages[-1].recommendation


def _folders(record: Record) -> list[str]:
    """Where the samples and images of each part lie, in the run's folder."""
    return [".", *(session.folder for session in record.sessions)]


def _page_part(folder: Path, part: Record, where: str) -> Part:
    """A record can be read alone; then the page has neither distributions nor images."""
    samples = read_samples(folder / where) if (folder / where / SAMPLES_NAME).is_file() else {}
    return Part(record=part, recommendation=recommendation_of(part), samples=samples, flips=read_flips(folder / where))


def measured_on(part: Record, record: Record) -> str:
    """A line of Markdown over a part of a record that was resumed, "" for a record that is one part."""
    return f"*Measured on {machine(part)}.*\n\n" if record.sessions else ""


def show(record: Record, console: Console) -> None:
    """Prints the report on a terminal, one for each machine that worked on it."""
    for part in parts(record):
        if record.sessions:
            console.print(f"\nMeasured on {machine(part)}", style="bold", markup=False)
        render(part, recommendation_of(part), console)


def report_again(run_folder: Path) -> None:
    """Prints the report of a finished run and rewrites its files."""
    record = read_record(run_folder)
    folder = run_folder if run_folder.is_dir() else run_folder.parent
    write_reports(folder, record)
    show(record, stdout_console())
