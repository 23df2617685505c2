"""Times of two runs against each other. The runs are apart in time, so three things must be told from a change:

* chance inside a run: bootstrap over rounds, of each cell's percentile over the control's median in the same rounds;
* luck of a start (memory layout): spread between restarts, pooled over the cells of both runs (see stats.restarts);
* the state of the machine: the control does the same work in both runs. Its change is taken out of every cell's. No
  artifact need be as sensitive to the machine's state as the control, so the interval is widened: by SENSITIVITY times
  the control's change, or, where that is less, by AS_OTHERS times the median size of what the other cells show (most of
  which did not change, or changed with the machine; the idea of Efron's empirical null, 2004);
* other processes on the same core: a long run is put aside for them, a short one hardly ever. How much of the time they
  took is seen in the control, by its mean over its median. Figures that it reaches are allowed a pause, or how much
  more of the time was taken: a throughput, and a percentile where pauses are frequent enough for it.

The interval of the logarithm of the ratio is then  d +- (t * se + allowance),  with t of Welch and Satterthwaite's
degrees of freedom. A row is called faster or slower where its p-value, adjusted by Holm over all rows
of the comparison, is below 1 - confidence and the difference is larger than the noise floor (A/A) of both runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from deploycnn import stats
from deploycnn.measure.estimates import Pairing, Row
from deploycnn.types import Interval

SENSITIVITY = 0.5
AS_OTHERS = 4.0  # 1.96 standard deviations are 2.9 times the median size of normal values; more, as the others are few
FEWEST_OTHERS = 3
PAUSES_S = (2e-3, 4e-3)  # how long a process is put aside for another one, at least and usually
LEAST_S = 5e-10  # what a clock that reads 0 counts as
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Logarithm of a ratio, with what is known about it."""

    log_ratio: float
    se: float
    dof: float
    allowance: float  # for the state of the machine; widens the interval without being chance

    def interval(self, confidence: float) -> Interval:
        """Of the ratio."""
        half = stats.student_quantile((1 + confidence) / 2, self.dof) * self.se + self.allowance
        low, high = self.log_ratio - half, self.log_ratio + half
        return Interval(value=math.exp(self.log_ratio), low=math.exp(low), high=math.exp(high), confidence=confidence)

    @property
    def p_value(self) -> float:
        """Two-sided, of no change."""
        beyond = max(0.0, abs(self.log_ratio) - self.allowance)
        if self.se == 0:
            return 0.0 if beyond > 0 else 1.0
        return stats.student_p_value(beyond / self.se, self.dof)


class Times:
    """Two runs at one batch size: rows by cell.

    Args:
        yardstick: row that is the same work in both, None: there is none, and the state of the machine stays in every figure.
    """

    def __init__(self, base: Mapping[str, Row], new: Mapping[str, Row], yardstick: str | None) -> None:
        self._sides = (base, new)
        self.yardstick = yardstick
        keys = [(side, cell) for side in (0, 1) for cell in self._sides[side] if cell != yardstick]
        spreads = stats.restart_spreads([self._restarts(side, cell) for side, cell in keys])
        self._spreads = dict(zip(keys, spreads, strict=True))

    def has(self, cell: str) -> bool:
        """Whether both runs have samples of it."""
        return all(cell in rows for rows in self._sides)

    def shift(self, confidence: float) -> Interval | None:
        """The yardstick's own change, which is the machine's."""
        return None if self.yardstick is None else self._yardstick_change().interval(confidence)

    def change(self, cell: str, metric: str) -> Estimate:
        """Time of `cell` in the new run over the base run; for throughput, images per second likewise."""
        if cell == self.yardstick:
            return self._yardstick_change()
        spreads = [self._spreads[side, cell] for side in (0, 1)]
        yardsticks = [rows[self.yardstick] if self.yardstick is not None else None for rows in self._sides]
        return _change([rows[cell] for rows in self._sides], yardsticks, spreads, metric, self._allowance(cell, metric))

    def _allowance(self, cell: str, metric: str) -> float:
        """For the state of the machine, as a logarithm."""
        if self.yardstick is None:
            return 0.0
        allowed = SENSITIVITY * abs(self._yardstick_change().log_ratio)
        if put_aside := self._put_aside(cell, metric):
            return allowed + put_aside
        others = [abs(x) for other, x in self._levels.items() if other != cell and not self._put_aside(other, "p50")]
        return min(allowed, AS_OTHERS * float(np.median(others))) if len(others) >= FEWEST_OTHERS else allowed

    def _put_aside(self, cell: str, metric: str) -> float:
        """What other processes on the core may have done to the figure, 0 where they do not reach it.

        They reach a percentile where the pauses that they cause fall into enough runs for it; as many pauses as a Poisson
        process puts into runs of that length are then allowed.
        """
        from scipy.special import pdtrik

        more = abs(self._taken[1] - self._taken[0])
        if metric == "throughput":
            return more
        run_s = max(math.exp(float(np.median(rows[cell].log_median_B))) for rows in self._sides)
        paused_s = math.expm1(max(0.0, *self._taken)) * run_s  # of a run, on average
        if paused_s <= 0.5 * (1 - PERCENTILES[metric]) * PAUSES_S[0]:
            return 0.0
        pauses = max(1.0, math.ceil(pdtrik(PERCENTILES[metric], paused_s / PAUSES_S[1])))
        return max(more, math.log1p(pauses * PAUSES_S[1] / run_s))

    @cached_property
    def _taken(self) -> list[float]:
        """Time that others took in either run, as a logarithm: the yardstick's mean over its median inside blocks."""
        assert self.yardstick is not None
        taken = []
        for rows in self._sides:
            row = rows[self.yardstick]
            undisturbed_s = float((np.exp(row.log_median_B) * row.samples.runs_B).sum())
            taken.append(math.log(max(float(row.samples.time_ns.sum()) / 1e9, LEAST_S) / undisturbed_s))
        return taken

    @cached_property
    def _levels(self) -> dict[str, float]:
        """The change of every cell's median against the yardstick's."""
        if self.yardstick is None:
            return {}
        logs = [{cell: _level(rows[cell], rows[self.yardstick]) for cell in rows if cell != self.yardstick} for rows in self._sides]
        return {cell: logs[1][cell] - logs[0][cell] for cell in logs[0].keys() & logs[1].keys()}

    def _yardstick_change(self) -> Estimate:
        """With nothing to hold it against: what the machine did between restarts is then part of the spread."""
        assert self.yardstick is not None
        rows = [side[self.yardstick] for side in self._sides]
        return _change(rows, [None, None], stats.restart_spreads([row.restarts for row in rows]), "p50", 0.0)

    def _restarts(self, side: int, cell: str) -> stats.Restarts:
        rows = self._sides[side]
        return rows[cell].restarts if self.yardstick is None else Pairing(rows[cell], rows[self.yardstick]).restarts


def _level(row: Row, yardstick: Row) -> float:
    return float(np.median(Pairing(row, yardstick).log_ratio_R))


def _change(rows: list[Row], yardsticks: list[Row | None], spreads: list[stats.Spread], metric: str, allowance: float) -> Estimate:
    variances: list[float] = []
    dofs: list[float] = []
    values = []
    for row, yardstick, spread in zip(rows, yardsticks, spreads, strict=True):
        value, variance = _deviation(row, yardstick, metric)
        n_processes = int(np.unique(row.samples.process_B).size)
        values.append(value)
        variances += [variance, spread.log_sd**2 / n_processes]
        dofs += [max(1, row.samples.n_blocks - n_processes), spread.dof]
    dof = stats.combined_dof(variances, dofs)
    return Estimate(log_ratio=values[1] - values[0], se=math.sqrt(sum(variances)), dof=dof, allowance=allowance)


def _deviation(row: Row, yardstick: Row | None, metric: str) -> tuple[float, float]:
    """(logarithm of the row's figure, over the yardstick's median in the same rounds where there is one; variance by bootstrap)."""
    if yardstick is not None:
        both = np.intersect1d(row.samples.round_B, yardstick.samples.round_B)
        row, yardstick = Row(row.samples.in_rounds(both)), Row(yardstick.samples.in_rounds(both))
    weights_RB = stats.block_weights(row.samples.process_B, seed=0)
    if metric in PERCENTILES and (yardstick is None or metric != "p50"):
        value, draws_R = _of_runs(row, PERCENTILES[metric], weights_RB)
        if yardstick is not None:  # its blocks lie in the same order, so a replicate draws the same rounds of both
            level, level_R = _of_runs(yardstick, 0.5, weights_RB)
            value, draws_R = value - level, draws_R - level_R
    else:
        # Round by round: what loaded the machine in one round is out of the ratio before rounds are put together.
        figure_B = -_log_time_per_run(row) if metric == "throughput" else row.log_median_B
        if yardstick is not None:
            figure_B = figure_B + yardstick.log_median_B if metric == "throughput" else figure_B - yardstick.log_median_B
        value, draws_R = _of_blocks(figure_B, row, weights_RB)
    n_blocks = row.samples.n_blocks
    return value, float(np.var(draws_R)) * n_blocks / max(1, n_blocks - 1)


def _of_runs(row: Row, probability: float, weights_RB: NDArray[np.float32]) -> tuple[float, NDArray[np.float64]]:
    """Logarithm of that percentile of all runs, and of each replicate."""
    value = max(stats.sorted_quantile(row.pool_s.values_N, probability), LEAST_S)
    return math.log(value), np.log(np.maximum(stats.quantile_draws(row.pool_s, weights_RB, probability), LEAST_S))


def _of_blocks(figure_B: NDArray[np.float64], row: Row, weights_RB: NDArray[np.float32]) -> tuple[float, NDArray[np.float64]]:
    """The median over blocks, and of each replicate."""
    pooled = stats.pool(figure_B, np.arange(figure_B.size), row.samples.process_B)
    return float(np.median(figure_B)), stats.quantile_draws(pooled, weights_RB, 0.5)


def _log_time_per_run(row: Row) -> NDArray[np.float64]:
    samples = row.samples
    block_s = np.add.reduceat(samples.time_ns, np.cumsum(samples.runs_B) - samples.runs_B) / 1e9
    return np.asarray(np.log(np.maximum(block_s / samples.runs_B, LEAST_S)))


def recorded(base: Interval, new: Interval) -> Estimate:
    """From the intervals of two records alone, where their samples are not at hand."""
    variances = []
    for interval in (base, new):
        half = math.log(interval.high / interval.low) / 2
        variances.append((half / stats.student_quantile((1 + interval.confidence) / 2, math.inf)) ** 2)
    return Estimate(log_ratio=math.log(new.value / base.value), se=math.sqrt(sum(variances)), dof=math.inf, allowance=0.0)


def floor(intervals: list[Interval]) -> float:
    """The largest difference, as a logarithm, that two measurements of one artifact in one run showed (A/A).

    Not the ends of their interval: chance is in every row's own interval already.
    """
    return max((abs(math.log(interval.value)) for interval in intervals), default=0.0)
