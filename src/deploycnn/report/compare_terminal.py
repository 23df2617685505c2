"""A comparison on a terminal: tables that stay readable at 80 columns, more columns where there is room."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploycnn.report.compare_rows import Group, Row, groups, headline, reasons, remarks
from deploycnn.report.compare_values import Comparison

WIDE = 130  # columns from which p-values and reasons stand in the table
_STYLES = {"faster": "green", "better": "green", "slower": "yellow", "worse": "yellow", "incomparable": "magenta", "inconclusive": "cyan"}


def render_terminal(comparison: Comparison, console: Console) -> None:
    """Prints the comparison, its conclusion last."""
    wide = console.width >= WIDE
    console.print(f"\n[bold]{escape(headline(comparison))}[/]")
    for group in groups(comparison):
        console.print(_table(group, wide=wide))
    if not wide:
        for reason, names in reasons(comparison).items():
            console.print(f"  {escape(', '.join(names))}: {escape(reason)}", style="dim")
    for remark in remarks(comparison):
        console.print(f"  {escape(remark)}", style="dim")
    failed = comparison.exit_code != 0
    console.print(f"\n[bold {'red' if failed else 'green'}]{escape(comparison.conclusion)}[/]")


def _table(group: Group, *, wide: bool) -> Table:
    table = Table(title=f"\n{group.title}", title_justify="left", title_style="italic", box=None, pad_edge=False, header_style="bold")
    table.add_column("artifact", overflow="fold")
    for heading in ("base", "new", "change", "95 % CI", *(("p",) if wide else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    if wide:
        table.add_column("because", overflow="fold")
    for row in group.rows:
        mark = "✗ " if row.regression else "  "  # found without colour
        cells = [mark + row.name, row.base, row.new, row.change, row.interval]
        table.add_row(*cells, *((row.p_value, row.verdict, row.reason) if wide else (row.verdict,)), style=_style(row))
    return table


def _style(row: Row) -> str:
    return "bold red" if row.regression else _STYLES.get(row.verdict, "")
