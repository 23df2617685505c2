"""What a comparison says, as values. JSON of it is versioned like a record."""

from __future__ import annotations

from typing import Literal

from pydantic import computed_field

from deploycnn.errors import EXIT_INCOMPARABLE, EXIT_INCONCLUSIVE, EXIT_NOTHING_TO_SHIP, EXIT_OK
from deploycnn.record import Latency
from deploycnn.types import Interval, Value

COMPARISON_VERSION = 1

Metric = Literal["p50", "p90", "p99", "throughput", "top1", "size"]
TIMES: tuple[Metric, ...] = ("p50", "p90", "p99", "throughput")
Verdict = Literal["faster", "slower", "better", "worse", "same", "inconclusive", "incomparable"]


class Change(Value):
    """One cell, one metric. Times in seconds, throughput in images/s, top1 as a share, size in bytes."""

    cell: str
    metric: Metric
    batch: int | None = None  # None for top1 and size
    base: Interval | None = None
    new: Interval | None = None
    ratio: Interval | None = None  # new over base with the machine's own change taken out; None for top1
    difference: Interval | None = None  # new minus base, top1 only
    p_value: float | None = None  # adjusted over all rows of the comparison; None where nothing is left to chance
    verdict: Verdict
    regression: bool = False  # worse by more than the limit
    open: bool = False  # inconclusive, and worse by more than the limit is not excluded
    reason: str = ""

    @property
    def row(self) -> str:
        """`onnxruntime/int8/cpu, batch 32`."""
        return self.cell if self.batch is None else f"{self.cell}, batch {self.batch}"


def figure(latency: Latency, metric: Metric) -> Interval | None:
    """The figure of a time metric, None where the sample could not carry it."""
    figures = {"p50": latency.p50_s, "p90": latency.p90_s, "p99": latency.p99_s, "throughput": latency.images_per_s}
    return figures[metric]


class RunFacts(Value):
    """One side of a comparison, in words."""

    name: str  # of its folder
    created: str
    command: str
    model: str
    data: str
    machines: tuple[str, ...]
    version: str


class MachineShift(Value):
    """How much the machine itself changed between the runs, by work that is the same in both."""

    batch: int
    device: str = "cpu"
    measured_by: str  # "control", or the cell that is the same in both
    ratio: Interval


class HistoryPoint(Value):
    """One cell in one run."""

    run: str
    created: str
    value: Interval | None  # None: not measured there


class HistoryRow(Value):
    """One cell over runs, oldest first as they were given."""

    cell: str
    metric: Metric
    batch: int | None
    points: tuple[HistoryPoint, ...]


class Comparison(Value):
    """Two runs: what changed from `base` to `new`."""

    comparison_version: int = COMPARISON_VERSION
    base: RunFacts
    new: RunFacts
    metrics: tuple[Metric, ...]
    fail_above: float | None  # as asked; None: 5 % for times and size, 1 percentage point for top1
    confidence: float
    changes: tuple[Change, ...]
    added: tuple[str, ...] = ()  # cells that only the new run has; no regression can hide there
    machine_shifts: tuple[MachineShift, ...] = ()
    noise_floors: tuple[tuple[int, float], ...] = ()  # (batch, share): no smaller difference is called one
    notes: tuple[str, ...] = ()
    history: tuple[HistoryRow, ...] = ()  # for three or more runs

    @computed_field  # type: ignore[prop-decorator]
    @property
    def exit_code(self) -> int:
        """1 for a regression, else 4 where cells cannot be compared, else 3 where one is not excluded, else 0."""
        if any(change.regression for change in self.changes):
            return EXIT_NOTHING_TO_SHIP
        if any(change.verdict == "incomparable" for change in self.changes):
            return EXIT_INCOMPARABLE
        return EXIT_INCONCLUSIVE if any(change.open for change in self.changes) else EXIT_OK

    @computed_field  # type: ignore[prop-decorator]
    @property
    def conclusion(self) -> str:
        """The outcome in one sentence."""
        regressions = [change.row for change in self.changes if change.regression]
        incomparable = [change.row for change in self.changes if change.verdict == "incomparable"]
        undecided = [change.row for change in self.changes if change.open]
        if regressions:
            return f"Regression: {_listed(regressions)}."
        if incomparable:
            return f"Not comparable: {_listed(incomparable)}."
        if undecided:
            return f"Inconclusive: a regression of {_listed(undecided)} is not excluded."
        return f"No regression in {len(self.changes)} comparison{'s' if len(self.changes) != 1 else ''}."


def _listed(rows: list[str], most: int = 3) -> str:
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return "; ".join(rows[:most]) + more
