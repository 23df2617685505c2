"""A comparison as text, row by row: what the terminal, Markdown and HTML share."""

from __future__ import annotations

from collections.abc import Iterator

from deploycnn import units
from deploycnn.report.compare_values import Change, Comparison, Metric
from deploycnn.types import Interval, Value

NOTHING = "-"
TITLES: dict[Metric, str] = {
    "p50": "Median latency",
    "p90": "p90 latency",
    "p99": "p99 latency",
    "throughput": "Throughput",
    "top1": "Top-1 accuracy",
    "size": "Size on disk",
}


class Row(Value):
    """One change in words."""

    name: str
    base: str
    new: str
    change: str  # "+8.3 %", "-0.10 pp"
    interval: str  # "+6.0 to +11.0"
    p_value: str
    verdict: str
    regression: bool
    reason: str


class Group(Value):
    """The changes of one metric at one batch size."""

    title: str
    metric: Metric
    batch: int | None
    changes: tuple[Change, ...]

    @property
    def rows(self) -> list[Row]:
        """One per change, in the base run's order."""
        return [row_of(change) for change in self.changes]


def groups(comparison: Comparison) -> list[Group]:
    """Metric by metric, batch size by batch size. Cells that cannot be compared at all stand with the metric's first group."""
    found = []
    for metric in comparison.metrics:
        changes = [change for change in comparison.changes if change.metric == metric]
        batches = sorted({change.batch for change in changes if change.batch is not None})
        for index, batch in enumerate(batches or [None]):
            mine = tuple(change for change in changes if change.batch == batch or (change.batch is None and index == 0))
            title = TITLES[metric] + (f", batch {batch}" if batch is not None else "")
            if mine:
                found.append(Group(title=title, metric=metric, batch=batch, changes=mine))
    return found


def row_of(change: Change) -> Row:
    """One change in words."""
    moved, between = _moved(change)
    backend, _, rest = change.cell.partition("/")
    return Row(
        name=f"{backend} {rest.removesuffix('/cpu').replace('/', ' ')}",
        base=shown(change.metric, change.base),
        new=shown(change.metric, change.new),
        change=moved,
        interval=between,
        p_value=NOTHING if change.p_value is None else f"{change.p_value:.3f}" if change.p_value >= 0.001 else "<0.001",
        verdict=change.verdict,
        regression=change.regression,
        reason=change.reason,
    )


def shown(metric: Metric, interval: Interval | None) -> str:
    """A figure in its unit."""
    if interval is None:
        return NOTHING
    if metric == "size":
        return units.size(interval.value)
    if metric == "top1":
        return units.percent(interval.value)
    return f"{units.significant(interval.value)}/s" if metric == "throughput" else units.seconds(interval.value)


def _moved(change: Change) -> tuple[str, str]:
    if change.difference is not None:
        interval = change.difference
        return units.points(interval.value), f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"
    if change.ratio is None:
        return NOTHING, ""
    value, low, high = (100 * (x - 1) for x in (change.ratio.value, change.ratio.low, change.ratio.high))
    if change.p_value is None:  # sizes are exact
        return f"{value:+.1f} %", ""
    return f"{value:+.1f} %", f"{low:+.1f} to {high:+.1f}"


def reasons(comparison: Comparison) -> dict[str, list[str]]:
    """Why there is no verdict, with the rows that it holds for."""
    found: dict[str, list[str]] = {}
    for change in comparison.changes:
        if change.verdict in ("inconclusive", "incomparable") and change.reason:
            batch = f" batch {change.batch}" if change.batch is not None else ""
            found.setdefault(change.reason, []).append(row_of(change).name + batch)
    return found


def headline(comparison: Comparison) -> str:
    """Which runs."""
    return f"{comparison.new.name} against {comparison.base.name}: {comparison.new.model} on {comparison.new.data}"


def remarks(comparison: Comparison) -> Iterator[str]:
    """What must be said beside the tables."""
    for shift in comparison.machine_shifts:
        machine = "machine itself" if shift.device == "cpu" else f"{shift.device} device"
        text = f"batch {shift.batch}: the {machine} was {_slower(shift.ratio.value)} in the new run (by {shift.measured_by})"
        yield f"{text}; that is taken out of the changes"
    for batch, share in comparison.noise_floors:
        if share > 0:
            yield f"batch {batch}: noise floor {units.percent(share, 1)} (one artifact measured twice); no smaller difference is called one"
    if comparison.added:
        yield f"only in the new run: {', '.join(comparison.added)}"
    yield from comparison.notes


def _slower(ratio: float) -> str:
    return f"{units.percent(abs(ratio - 1), 1)} {'slower' if ratio >= 1 else 'faster'}"
