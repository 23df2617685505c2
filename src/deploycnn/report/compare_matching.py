"""Which figures of two runs may be held against each other, and if not, why not."""

from __future__ import annotations

from deploycnn.record import Cell, Latency, Record
from deploycnn.report.compare_values import TIMES, Metric


def why_incomparable(base: Record, new: Record, ours: Cell, theirs: Cell | None, metric: Metric) -> str:
    """ "" where cell `ours` of the base run and `theirs` of the new one may be compared by that metric."""
    if theirs is None:
        return "the new run does not have it"
    for run, cell in (("base", ours), ("new", theirs)):
        if why := _not_done(cell):
            return f"{run} run: {why}"
    if metric == "size":
        return "" if ours.artifact and theirs.artifact else "one run has no artifact of it"
    if base.data.sha256 != new.data.sha256:
        return f"other data set: {_data(base)} and {_data(new)}"
    if metric in TIMES:
        return _other_machine(base, new, ours, theirs)
    if ours.accuracy is None or theirs.accuracy is None:
        return f"accuracy was not validated in the {'base' if ours.accuracy is None else 'new'} run"
    if ours.accuracy.n_images != theirs.accuracy.n_images:
        return f"other numbers of test images: {ours.accuracy.n_images:,} and {theirs.accuracy.n_images:,}"
    return ""


def _not_done(cell: Cell) -> str:
    outcome = cell.outcome
    if outcome.state == "failed":
        return f"failed in {outcome.stage}: {outcome.reason.splitlines()[0]}"
    if outcome.state == "skipped":
        return f"skipped: {outcome.reason}"
    return f"deferred: waits for {outcome.waits_for}" if outcome.state == "deferred" else ""


def _data(record: Record) -> str:
    return f"{record.data.name} ({record.data.sha256[:8]})"


def _other_machine(base: Record, new: Record, ours: Cell, theirs: Cell) -> str:
    if ours.machine is None or theirs.machine is None or ours.machine == theirs.machine:
        return ""
    summaries = [
        record.environments[machine].summary if machine in record.environments else machine
        for record, machine in ((base, ours.machine), (new, theirs.machine))
    ]
    if summaries[0] == summaries[1]:
        return f"other machine: both are {summaries[0]}, but they differ in processor revision, quota or driver"
    return f"other machine: {summaries[0]}, and {summaries[1]}"


def times_incomparable(ours: Latency, theirs: Latency | None) -> str:
    """ "" where two latencies at one batch size were taken the same way."""
    if theirs is None:
        return f"batch {ours.batch} was not measured in the new run"
    for what, mine, other in (
        ("boundary", ours.boundary, theirs.boundary),
        ("threads", ours.threads, theirs.threads),
        ("streams", ours.streams, theirs.streams),
    ):
        if mine != other:
            return f"other {what}: {mine} and {other}"
    return ""


def same_work(base: Record, new: Record, control: str) -> list[str]:
    """Rows that are the same work in both runs, best first: the control under one numpy, the reference where nothing of it changed."""
    found = []
    if _packages(base, "numpy") == _packages(new, "numpy"):
        found.append(control)
    ours = base.cell(base.reference) if base.reference else None
    theirs = new.cell(new.reference) if new.reference else None
    if ours and theirs and ours.artifact and theirs.artifact and ours.name == theirs.name:
        mine, other = ours.artifact, theirs.artifact
        if (mine.sha256, mine.backend_version, mine.options) == (other.sha256, other.backend_version, other.options):
            found.append(ours.name)
    return found


def _packages(record: Record, name: str) -> set[str | None]:
    return {environment.packages.get(name) for environment in record.environments.values()}
