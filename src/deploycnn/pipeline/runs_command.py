"""`runs` and `runs prune` on the command line."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from deploycnn import units
from deploycnn.pipeline.console import Talk, stdout_console
from deploycnn.pipeline.runs import Pruning, Run, describe, find_runs, plan_pruning, prune
from deploycnn.report.machines import machine, parts
from deploycnn.store import Store, cache_root


def show_runs(root: Path, *, as_json: bool) -> None:
    """Prints every run under `root`, the newest first."""
    found = find_runs(root)
    if as_json:
        sys.stdout.write(json.dumps([_plain(run) for run in found], indent=1) + "\n")
        return
    console = stdout_console()
    if not found:
        console.print(f"no run under {root}; `deploycnn run` makes one", markup=False)
    for run in found:
        first, *others = describe(run)
        console.print(first, style="bold", markup=False)
        for line in others:
            console.print(line, markup=False)


def _plain(run: Run) -> dict[str, object]:
    record = run.record
    return {
        "folder": str(run.folder),
        "ended": datetime.fromtimestamp(run.ended_s, UTC).isoformat(timespec="seconds"),
        "recipe": record.recipe.get("name") if record else None,
        "data": record.data.name if record else None,
        "model": record.model.name if record else None,
        "ships": run.ships,
        "machines": [machine(part) for part in parts(record)] if record else [],
        "size_bytes": run.size_bytes,
        "busy": run.busy,
        "fault": run.why,
    }


def prune_runs(root: Path, *, keep: int | None, older_than_days: float | None, dry_run: bool) -> None:
    """Frees space under `root` and in the cache, and says how much.

    Raises:
        RecipeError: nothing says what to remove.
        StoreError: the disk said no.
    """
    store = Store(cache_root(), warn=Talk().warn)
    chosen = plan_pruning(find_runs(root), store, keep=keep, older_than_days=older_than_days, now_s=time.time())
    if not dry_run:
        prune(chosen, store)
    console = stdout_console()
    for line in _said(chosen, dry_run=dry_run):
        console.print(line, markup=False)


def _said(chosen: Pruning, *, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {run.folder}: {units.size(run.size_bytes)}" for run in chosen.runs]
    stages: dict[str, list[int]] = {}
    for entry in chosen.entries:
        stages.setdefault(entry.stage, []).append(entry.size_bytes)
    lines += [f"{verb} from the cache: {len(sizes)} of {stage}, {units.size(sum(sizes))}" for stage, sizes in sorted(stages.items())]
    freed = units.size(chosen.runs_bytes + chosen.entries_bytes)
    kept = f"{len(chosen.kept)} run" + ("s" if len(chosen.kept) != 1 else "")
    return [*lines, f"{'would free' if dry_run else 'freed'} {freed}; {kept} and what they need {'would be ' if dry_run else ''}kept"]
