"""What a command says while it works: progress bars on a terminal, plain lines elsewhere, nothing but warnings when quiet.

Everything said here goes to stderr; a command's result goes to stdout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from deploycnn import units
from deploycnn.types import Progress, ProgressCallback

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PLAIN_INTERVAL_S = 10.0  # a log file wants few lines


class Talk:
    """One command's voice."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """One line of what is going on."""
        if not self.quiet:
            self.console.print(escape(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """One loud line, said even when quiet."""
        self.console.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[ProgressCallback]:
        """A long step: yields the callback that moves its bar."""
        if self.quiet:
            yield lambda progress: None
        elif self.console.is_terminal:
            with _bars(self.console) as bars:
                yield _bar_callback(bars, title)
        else:
            self.say(f"{title} ...")
            yield _plain_callback(self, title)


def _bars(console: Console) -> Bars:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Bars(*columns, console=console, transient=True)


def _bar_callback(bars: Bars, title: str) -> ProgressCallback:
    task = bars.add_task(title, total=None, rate="", note="")
    rate = _Rate()

    def show(progress: Progress) -> None:
        total = progress.total or None
        bars.update(task, completed=progress.done, total=total, rate=rate.text(progress), note=escape(progress.note))

    return show


def _plain_callback(talk: Talk, title: str) -> ProgressCallback:
    rate = _Rate()
    last_s = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last_s
        text = rate.text(progress)
        if time.monotonic() - last_s < PLAIN_INTERVAL_S:
            return
        last_s = time.monotonic()
        of = f"/{progress.total:,}" if progress.total else ""
        left = rate.left(progress)
        parts = [f"{title}: {progress.done:,}{of} {progress.unit}", text, f"{left} left" if left else "", progress.note]
        talk.say("  " + ", ".join(part for part in parts if part))

    return show


class _Rate:
    """Steps per second since the first report."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def _per_second(self, progress: Progress) -> float:
        now_s = time.monotonic()
        if self._first is None or progress.done < self._first[1]:
            self._first = (now_s, progress.done)
        elapsed_s = now_s - self._first[0]
        return (progress.done - self._first[1]) / elapsed_s if elapsed_s > 0 else 0.0

    def text(self, progress: Progress) -> str:
        per_second = self._per_second(progress)
        if per_second <= 0:
            return ""
        if progress.unit == "bytes":
            return f"{units.size(per_second)}/s"
        return units.rate(per_second, progress.unit)

    def left(self, progress: Progress) -> str:
        per_second = self._per_second(progress)
        if per_second <= 0 or progress.total <= progress.done:
            return ""
        return units.seconds((progress.total - progress.done) / per_second)


def stdout_console(width: int | None = None) -> Console:
    """Where results are printed; NO_COLOR and pipes are respected by rich."""
    return Console(file=sys.stdout, highlight=False, width=width)
