"""Medians and ratios of rows of samples, with intervals. The schedule stops by them and the summary reports them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from deploycnn import stats
from deploycnn.samples import Samples
from deploycnn.types import Interval


class Row:
    """Samples of one artifact at one batch size, with what is derived from them kept."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    @cached_property
    def pool_s(self) -> stats.Pool:
        """All runs, in seconds."""
        return stats.pool(self.samples.time_ns / 1e9, self.samples.block_N, self.samples.process_B)

    @cached_property
    def log_median_B(self) -> stats.Floats:
        """Logarithm of each block's median in seconds. A clock that reads 0 counts as half a nanosecond."""
        return np.asarray(np.log(np.maximum(stats.block_quantiles(self.pool_s, 0.5), 0.5e-9)))

    @property
    def restarts(self) -> stats.Restarts:
        return stats.Restarts(log_B=self.log_median_B, process_B=self.samples.process_B)


class Pairing:
    """Two rows round by round: logarithms of this block's median over the other's. Rounds that only one ran in are left out."""

    def __init__(self, row: Row, other: Row) -> None:
        round_B, other_B = row.samples.round_B, other.samples.round_B
        rounds, mine, theirs = np.intersect1d(round_B, other_B, assume_unique=True, return_indices=True)
        self.round_R = rounds
        self.log_ratio_R = row.log_median_B[mine] - other.log_median_B[theirs]
        self.process_R = row.samples.process_B[mine]

    @property
    def restarts(self) -> stats.Restarts:
        return stats.Restarts(log_B=self.log_ratio_R, process_B=self.process_R)


def median_intervals(rows: Mapping[str, Row], confidence: float, *, restarts: bool = True, draws: int = stats.DRAWS) -> dict[str, Interval]:
    """Each row's median in seconds. `restarts` False leaves out what more blocks cannot narrow."""
    spreads = _spreads({key: row.restarts for key, row in rows.items()}, restarts)
    return {
        key: stats.quantile_interval(row.pool_s, 0.5, confidence=confidence, spread=spreads[key], draws=draws) for key, row in rows.items()
    }


def ratio_intervals(
    rows: Mapping[str, Row], reference: str, confidence: float, *, restarts: bool = True, draws: int = stats.DRAWS
) -> dict[str, Interval]:
    """Each row's time over the reference's, paired by round. Rows that share no round with it are left out, and itself."""
    if reference not in rows:
        return {}
    pairs = {key: Pairing(row, rows[reference]) for key, row in rows.items() if key != reference}
    pairs = {key: pair for key, pair in pairs.items() if pair.log_ratio_R.size}
    spreads = _spreads({key: pair.restarts for key, pair in pairs.items()}, restarts)
    return {
        key: stats.paired_ratio_interval(pair.log_ratio_R, pair.process_R, confidence=confidence, spread=spreads[key], draws=draws)
        for key, pair in pairs.items()
    }


def _spreads(restarts: Mapping[str, stats.Restarts], wanted: bool) -> dict[str, stats.Spread]:
    if not wanted:
        return dict.fromkeys(restarts, stats.NO_SPREAD)
    return dict(zip(restarts, stats.restart_spreads(list(restarts.values())), strict=True))
