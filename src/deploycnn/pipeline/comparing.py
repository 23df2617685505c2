"""`compare`: two or more runs side by side, and the files that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploycnn.disk import write_atomic
from deploycnn.errors import RecipeError
from deploycnn.pipeline.console import stdout_console
from deploycnn.report.compare import compare_runs, parse_limit, parse_metric
from deploycnn.report.compare_html import render_html
from deploycnn.report.compare_json import render_json
from deploycnn.report.compare_markdown import render_markdown
from deploycnn.report.compare_terminal import render_terminal
from deploycnn.report.compare_values import Comparison

WRITERS: Mapping[str, Callable[[Comparison], str]] = {".md": render_markdown, ".json": render_json, ".html": render_html}


def compare_command(runs: Sequence[Path], *, fail_above: str | None, metrics: Sequence[str], out: Sequence[Path]) -> int:
    """Prints the comparison of the first run with the last, writes it where asked, gives back the exit code."""
    for path in out:
        if path.suffix not in WRITERS:
            raise RecipeError(f"{path} has no ending that says a format", remedy=f"end it with {', '.join(WRITERS)}")
    limit = parse_limit(fail_above) if fail_above is not None else None
    comparison = compare_runs(runs, fail_above=limit, metrics=[parse_metric(metric) for metric in metrics] or ["p50"])
    render_terminal(comparison, stdout_console())
    for path in out:
        write_atomic(path, WRITERS[path.suffix](comparison))
    return comparison.exit_code
