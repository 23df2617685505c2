"""What tuning has found, on disk: one file per workload, one line per candidate, written as soon as it is timed.

TVM's own database writes when a whole task is joined, reads every record to find one, raises on a line cut short and
crashes on a blank one. These files survive being killed at any moment: at worst the last line goes.

    {"s": 1.23e-05, "t": [...]}   seconds and schedule trace of a candidate; "s" null: it failed, without a trace
    {"spent_s": 5.1}              wall seconds that the round above took
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploycnn.disk import disk_errors
from deploycnn.types import Value

Trace = list[Any]  # TVM's JSON form of a schedule


class Measured(Value):
    """One candidate. `seconds` is None where it did not build or run; there is no trace then."""

    seconds: float | None
    trace: Trace | None = None


class History(Value):
    """Everything that is known of a workload, in the order it was found."""

    measured: tuple[Measured, ...] = ()
    spent_s: float = 0.0

    @property
    def best(self) -> Measured | None:
        done = [m for m in self.measured if m.seconds is not None]
        return min(done, key=lambda m: m.seconds or 0.0, default=None)


class Records:
    """The records of one CPU, thread count and TVM version: one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, workload: str) -> History:
        """What is known of a workload; nothing where there is no file. A last line that was cut short is cut off."""
        path = self._path(workload)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return History()
        if not content.endswith(b"\n"):
            content = content[: content.rfind(b"\n") + 1]
            path.write_bytes(content)
        measured: list[Measured] = []
        spent_s = 0.0
        for line in content.splitlines():
            document = _parsed(line)
            if "spent_s" in document:
                spent_s += float(document["spent_s"])
            elif "s" in document:
                measured.append(Measured(seconds=document["s"], trace=document.get("t")))
        return History(measured=tuple(measured), spent_s=spent_s)

    def append(self, workload: str, measured: Sequence[Measured], spent_s: float) -> None:
        """Adds one round. Raises StoreError where the disk is full or cannot be written to."""
        lines: list[Mapping[str, Any]] = [{"s": m.seconds} if m.trace is None else {"s": m.seconds, "t": m.trace} for m in measured]
        lines.append({"spent_s": round(spent_s, 3)})
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        path = self._path(workload)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(text)

    def _path(self, workload: str) -> Path:
        return self._folder / f"{workload}.jsonl"


def _parsed(line: bytes) -> Mapping[str, Any]:
    """One line; nothing where it is not JSON: a disk that lost a block loses these records and no more."""
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def read_shipped(paths: Iterable[Path]) -> dict[str, list[Trace]]:
    """Schedules that travel with the package, by workload, the best of each file first.

    Their times are of another machine: they are where a search starts, and are timed here before they count.
    """
    found: dict[str, list[Trace]] = {}
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                document = json.loads(line)
                found.setdefault(document["workload"], []).append(document["t"])
    return found


def write_shipped(path: Path, best: Mapping[str, Sequence[Measured]]) -> None:
    """Packs the best schedules of workloads for `read_shipped`; the same content gives the same bytes."""
    lines = [
        json.dumps({"workload": workload, "s": m.seconds, "t": m.trace}, separators=(",", ":"))
        for workload, measured in sorted(best.items())
        for m in measured
    ]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
