"""`runs`: what was run under a folder, and what it takes up; `runs prune`: frees space and keeps what kept runs need."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deploycnn import units
from deploycnn.disk import disk_errors, lock
from deploycnn.errors import RecipeError, RecordError, StoreError
from deploycnn.pipeline.reporting import recommendation_of
from deploycnn.pipeline.unneeded import unneeded
from deploycnn.record import Record
from deploycnn.recordfile import RECORD_NAME, read_record
from deploycnn.report import rows
from deploycnn.report.machines import machine, parts
from deploycnn.store import EntryFacts, Store

RUNS = Path("runs")
LOCK = ".lock"
DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One folder of runs/."""

    folder: Path
    record: Record | None  # None: it never came to an end, or its record cannot be read
    why: str  # what is wrong with the record, "" for a whole one
    ended_s: float  # seconds since the epoch; of the folder where there is no record
    size_bytes: int
    busy: bool  # a process works in it

    @property
    def began_s(self) -> float:
        return self.ended_s - (sum(self.record.stage_s.values()) if self.record else 0.0)

    @property
    def ships(self) -> str | None:
        """What its own recipe decides, on the machine that measured last."""
        return recommendation_of(parts(self.record)[-1]).ship if self.record else None


def find_runs(root: Path) -> list[Run]:
    """Runs directly under `root`, the newest first. Other folders are no runs, and links are not followed."""
    if not root.is_dir():
        return []
    found = [_run(folder) for folder in root.iterdir() if folder.is_dir() and not folder.is_symlink() and _is_run(folder)]
    return sorted(found, key=lambda run: (run.ended_s, run.folder.name), reverse=True)


def _is_run(folder: Path) -> bool:
    return (folder / RECORD_NAME).is_file() or (folder / LOCK).is_file()


def _run(folder: Path) -> Run:
    record, why = None, "it did not come to its end"
    if (folder / RECORD_NAME).is_file():
        try:
            record, why = read_record(folder), ""
        except RecordError as error:
            why = error.one_line
    ended_s = datetime.fromisoformat(record.created).timestamp() if record else _last_write_s(folder)
    return Run(folder=folder, record=record, why=why, ended_s=ended_s, size_bytes=_size_bytes(folder), busy=_is_busy(folder))


def _last_write_s(folder: Path) -> float:
    """Of a run that did not end; looking at its lock must not make it younger."""
    written = (path.lstat().st_mtime for path in folder.rglob("*") if path.is_file() and not path.name.startswith(LOCK))
    return max(written, default=folder.stat().st_mtime)


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink())


def _is_busy(folder: Path) -> bool:
    """Whether a process holds its lock; the file of a killed one may still lie there."""
    if not (folder / f"{LOCK}.owner").exists():
        return False
    try:
        with lock(folder / LOCK, "looking", wait_s=0):
            return False
    except StoreError:
        return True


def describe(run: Run) -> list[str]:
    """The lines that `runs` prints of a run: folder, when and how large; what it was; what came of it."""
    when = datetime.fromtimestamp(run.ended_s, UTC)
    state = ", running now" if run.busy else ""
    first = f"{run.folder.name}  {when:%Y-%m-%d %H:%M} UTC  {units.size(run.size_bytes)}{state}"
    if run.record is None:
        return [first, f"  {run.why}"]
    recipe = run.record.recipe.get("name", "custom")
    machines = dict.fromkeys(machine(part) for part in parts(run.record))
    ships = f"ships {run.ships}" if run.ships else "ships nothing"
    return [first, f"  {recipe}: {rows.headline(run.record)}; {ships}", *(f"  on {name}" for name in machines)]


# --- pruning --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What can go."""

    kept: tuple[Run, ...]
    runs: tuple[Run, ...]
    entries: tuple[EntryFacts, ...]

    @property
    def runs_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)

    @property
    def entries_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def plan_pruning(found: Sequence[Run], store: Store, *, keep: int | None, older_than_days: float | None, now_s: float) -> Pruning:
    """Chooses runs, and entries of the cache that no kept run needs and that were not used since those runs.

    A run in which a process works is always kept.

    Args:
        found: all runs, the newest first.
        keep: so many of the newest are kept; None: any number.
        older_than_days: only what is older goes; None: however old.

    Raises:
        RecipeError: neither is given, or one that cannot be meant.
    """
    if keep is None and older_than_days is None:
        raise RecipeError("prune is to remove runs, but which?", remedy="give --keep N or --older-than DAYS; --dry-run only shows")
    if (keep is not None and keep < 0) or (older_than_days is not None and older_than_days < 0):
        raise RecipeError("--keep and --older-than cannot be negative", remedy="give a number of runs, or of days")
    before_s = now_s if older_than_days is None else now_s - older_than_days * DAY_S
    removed = [run for place, run in enumerate(found) if place >= (keep or 0) and run.ended_s <= before_s and not run.busy]
    kept = [run for run in found if run not in removed]
    unused_since_s = min([before_s, *(run.began_s for run in kept)])
    entries = unneeded(store.entries(), [run.record for run in kept if run.record], unused_since_s=unused_since_s, now_s=now_s)
    return Pruning(kept=tuple(kept), runs=tuple(removed), entries=tuple(entries))


def prune(pruning: Pruning, store: Store) -> None:
    """Removes what was chosen.

    Raises:
        StoreError: the disk said no, or a process began to work in a run meanwhile.
    """
    for run in pruning.runs:
        with disk_errors(run.folder), lock(run.folder / LOCK, "pruning", wait_s=0):
            shutil.rmtree(run.folder)
    for entry in pruning.entries:
        store.remove(entry)
