"""The verdict and the tables on a terminal: readable at 80 columns, one wide table where there is room."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploycnn import units
from deploycnn.record import Record
from deploycnn.report import low_precision, remarks, rows
from deploycnn.report.diagnosis import bound_lines
from deploycnn.report.recommend import Recommendation, figure_text

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
            console.print(_latency_table(record, batch, recommendation, console.width))
    if rows.deferred_rows(record):
        console.print(_deferred_table(record))
        for waits in remarks.waiting(record):
            _print_item(f"{waits.who} waits: {waits.why}", console)
    _print_remarks("Slower than fp32", low_precision.slower(record), console)
    _print_bounds(record, console)
    for choice in low_precision.choices(record):
        _print_item(f"{choice.title}: {choice.summary}", console)
    for spread in low_precision.spreads(record):
        _print_item(f"calibration, {low_precision.spread_line(spread)}", console)
    _print_remarks("Not recommended, because", remarks.not_passed(record), console)
    _print_remarks("Skipped", remarks.skipped(record), console)
    _print_doubts(record, console)
    _print_verdict(recommendation, console)


def _table(title: str, columns: list[tuple[str, str]], gap: int = 2) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="italic", box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, gap)
    )
    for heading, side in columns:
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=True, overflow="ellipsis")
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


def _latency_table(record: Record, batch: int, recommendation: Recommendation, width: int) -> Table:
    """Where names are long, what can be read from the other columns goes first: p90, then images/s."""
    headings = ["artifact", "p50", "95 % CI", "p90", "p99", "images/s", "ratio"]
    lines = [
        [_marked((row.name, row.precision, row.target), recommendation), row.p50, row.spread, row.p90, row.p99, row.rate, row.ratio]
        for row in rows.latency_rows(record, batch)
    ]
    columns = list(zip(headings, *lines, strict=True))
    for dispensable in ("p90", "images/s"):
        if _width(columns, gap=1) > width:
            columns = [column for column in columns if column[0] != dispensable]
    sides = [(column[0], "right" if i else "") for i, column in enumerate(columns)]
    table = _table(_latency_title(record, batch), sides, gap=2 if _width(columns, gap=2) <= width else 1)
    for line in list(zip(*columns, strict=True))[1:]:
        table.add_row(*line)
    return table


def _width(columns: list[tuple[str, ...]], gap: int) -> int:
    return sum(max(map(len, column)) for column in columns) + gap * (len(columns) - 1)


def _deferred_table(record: Record) -> Table:
    columns = [("artifact", ""), ("size", "right"), ("build", "right"), ("evidence", "")]
    table = _table("\nBuilt here, finished by `resume` where it can run", columns)
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


def _print_remarks(title: str, found: list[remarks.Remark], console: Console) -> None:
    if found:
        console.print(f"\n[bold]{title}[/]")
        for remark in found:
            _print_item(f"{remark.who}: {remark.text}", console)


def _print_item(text: str, console: Console) -> None:
    """One item of a list: lines after the first hang."""
    for line in textwrap.wrap(text, console.width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False):
        console.print(line, markup=False)


def _print_bounds(record: Record, console: Console) -> None:
    lines = bound_lines(record)
    if lines:
        console.print("\n[bold]What bounds them[/] (in brackets the share of the time that is the call itself)")
        for line in lines:
            _print_item(line, console)


def _print_doubts(record: Record, console: Console) -> None:
    _print_remarks("Doubts about the latencies", remarks.doubts(record), console)
    for note in (*record.data.notes, *record.model.notes, *record.notes):
        _print_item(f"note: {note}", console)


def _print_verdict(recommendation: Recommendation, console: Console) -> None:
    console.print()
    if recommendation.ship:
        console.print(f"[bold green]Ship {escape(recommendation.ship)}[/]: {escape(recommendation.because)}.")
    else:
        console.print(f"[bold red]Ship nothing[/]: {escape(recommendation.because)}.")
    for caveat in recommendation.caveats:
        console.print(f"[yellow]but[/] {escape(caveat)}.")


def render_recommendation(record: Record, recommendation: Recommendation, console: Console) -> None:
    """Prints a decision: the limits, every artifact with what it lost on, the verdict."""
    at = f" at batch {recommendation.batch}" if recommendation.batch is not None else ""
    console.print(f"[bold]{escape(rows.headline(record))}[/]")
    _print_item(f"run of {record.created}; objective: {recommendation.objective}{at}; {'; '.join(recommendation.limits)}", console)
    table = _table("", [("artifact", ""), (_FIGURES[recommendation.objective], "right")])
    table.add_column("lost on", overflow="fold")
    elsewhere = {cell.name for cell in record.cells if cell.outcome.state in ("skipped", "deferred")}
    for candidate in recommendation.candidates:
        if candidate.cell in elsewhere:
            continue
        shipped = candidate.cell == recommendation.ship
        figure = rows.NOTHING if candidate.figure is None else figure_text(candidate.figure, recommendation.objective)
        table.add_row(("→ " if shipped else "  ") + escape(candidate.cell), figure, escape(candidate.lost_on))
    console.print(table)
    _print_remarks("Built here, not yet run", remarks.waiting(record), console)
    _print_remarks("Skipped", remarks.skipped(record), console)
    _print_verdict(recommendation, console)


_FIGURES = {"latency": "p50", "throughput": "throughput", "size": "size"}


def render_stages(record: Record, console: Console) -> None:
    """One line: where the time went."""
    total_s = sum(record.stage_s.values())
    parts = ", ".join(f"{stage} {units.seconds(time_s)}" for stage, time_s in record.stage_s.items())
    console.print(f"Took {units.seconds(total_s)}: {parts}.")
