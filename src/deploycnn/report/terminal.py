"""The verdict and the tables on a terminal: readable at 80 columns, one wide table where there is room."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploycnn import units
from deploycnn.record import Record
from deploycnn.report import rows
from deploycnn.report.recommend import Recommendation

WIDE = 150  # columns from which accuracy and latency share one table


def render(record: Record, recommendation: Recommendation, console: Console) -> None:
    """Prints the report of one run."""
    console.print()
    console.print(f"[bold]{escape(rows.headline(record))}[/]")
    if console.width >= WIDE and rows.batches(record):
        for batch in rows.batches(record):
            console.print(_wide_table(record, batch, recommendation))
    else:
        console.print(_accuracy_table(record, recommendation))
        for batch in rows.batches(record):
            console.print(_latency_table(record, batch, recommendation))
    if rows.deferred_rows(record):
        console.print(_deferred_table(record))
    _print_remarks(record, console)
    _print_verdict(recommendation, console)


def _table(title: str, columns: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="italic", box=None, pad_edge=False, header_style="bold")
    for heading, side in columns:
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=side == "right", overflow="fold")
    return table


def _name(backend: str, precision: str, target: str) -> str:
    return f"{backend} {precision}" + ("" if target == "cpu" else f" {target}")


def _marked(row_name: tuple[str, str, str], recommendation: Recommendation) -> str:
    """The artifact that is shipped carries an arrow, so that it is found without colour."""
    mark = "→ " if recommendation.ship == "/".join(row_name) else "  "
    return mark + _name(*row_name)


def _accuracy_table(record: Record, recommendation: Recommendation) -> Table:
    columns = [("artifact", ""), ("top-1", "right"), ("change", "right"), ("agree", "right"), ("size", "right"), ("verdict", "")]
    table = _table("Accuracy, against the fp32 reference on the same images", columns)
    for row in rows.accuracy_rows(record):
        name = _marked((row.name, row.precision, row.target), recommendation)
        table.add_row(name, row.top1, row.change, row.agreement, row.size, row.verdict, style=_style(row.verdict))
    return table


def _latency_table(record: Record, batch: int, recommendation: Recommendation) -> Table:
    columns = [("artifact", ""), ("p50", "right"), ("95 % CI", "right"), ("p90", "right"), ("p99", "right")]
    table = _table(_latency_title(record, batch), [*columns, ("images/s", "right"), ("ratio", "right")])
    for row in rows.latency_rows(record, batch):
        name = _marked((row.name, row.precision, row.target), recommendation)
        table.add_row(name, row.p50, row.spread, row.p90, row.p99, row.rate, row.ratio)
    return table


def _deferred_table(record: Record) -> Table:
    columns = [("artifact", ""), ("size", "right"), ("build", "right"), ("precision", "")]
    table = _table("\nBuilt here, finished by `resume` there", columns)
    for row in rows.deferred_rows(record):
        table.add_row("  " + _name(row.name, row.precision, row.target), row.size, row.build, row.evidence)
    return table


def _wide_table(record: Record, batch: int, recommendation: Recommendation) -> Table:
    headings = ["top-1", "change", "agree", "p50", "95 % CI", "p90", "p99", "images/s", "ratio", "size", "build"]
    table = _table(_latency_title(record, batch), [("artifact", ""), *((text, "right") for text in headings), ("verdict", "")])
    latency_by_name = {(row.name, row.precision, row.target): row for row in rows.latency_rows(record, batch)}
    for row in rows.accuracy_rows(record):
        key = (row.name, row.precision, row.target)
        latency = latency_by_name.get(key)
        speed = [latency.p50, latency.spread, latency.p90, latency.p99, latency.rate, latency.ratio] if latency else [rows.NOTHING] * 6
        cells = [_marked(key, recommendation), row.top1, row.change, row.agreement, *speed, row.size, row.build, row.verdict]
        table.add_row(*cells, style=_style(row.verdict))
    return table


def _latency_title(record: Record, batch: int) -> str:
    latency = next(found for cell in record.cells if (found := cell.latency(batch)))
    threads = f"{latency.threads} thread" + ("s" if latency.threads > 1 else "")
    reference = f"; ratio = time over {record.reference}" if record.reference else ""
    floor = record.noise_floor.get(str(batch))
    noise = f"; noise floor (A/A) {floor.low:.3f}-{floor.high:.3f}" if floor else ""
    return f"\nLatency, batch {batch}, {threads}, {latency.boundary.replace('-', ' ')}{reference}{noise}"


def _style(verdict: str) -> str:
    if verdict == "pass":
        return ""
    return "dim" if verdict in ("deferred", "skipped") else "red"


def _print_remarks(record: Record, console: Console) -> None:
    remarks = rows.remarks(record)
    doubts = {doubt.kind: doubt for cell in record.cells for latency in cell.latencies for doubt in latency.doubts}
    doubts |= {doubt.kind: doubt for doubt in record.doubts}
    if remarks:
        console.print("\n[bold]Not recommended, because[/]")
        for name, why in remarks:
            console.print(f"  {escape(name)}: {escape(why)}")
    if doubts:
        console.print("\n[bold]Doubts about the latencies[/]")
        for doubt in doubts.values():
            console.print(f"  {escape(doubt.what)}; {escape(doubt.remedy)}")
    for note in (*record.data.notes, *record.model.notes, *record.notes):
        console.print(f"  note: {escape(note)}")


def _print_verdict(recommendation: Recommendation, console: Console) -> None:
    console.print()
    if recommendation.ship:
        console.print(f"[bold green]Ship {escape(recommendation.ship)}[/]: {escape(recommendation.because)}.")
    else:
        console.print(f"[bold red]Ship nothing[/]: {escape(recommendation.because)}.")


def render_stages(record: Record, console: Console) -> None:
    """One line: where the time went."""
    total_s = sum(record.stage_s.values())
    parts = ", ".join(f"{stage} {units.seconds(time_s)}" for stage, time_s in record.stage_s.items())
    console.print(f"Took {units.seconds(total_s)}: {parts}.")
