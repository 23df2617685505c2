"""Intervals of percentiles and of paired ratios, by resampling blocks and rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deploycnn.stats.restarts import NO_SPREAD, Spread
from deploycnn.stats.rules import student_quantile
from deploycnn.types import Interval

DRAWS = 1000  # bootstrap replicates: the Monte Carlo error of a limit is then a tenth of the interval's own
EXACT_TO = 2000  # runs; beyond it the normal form of the binomial limits serves
GRID = 96  # candidate values of a resampled percentile, in each of
LAYERS = 3  # so many grids, each inside the last
ONE_THREAD = 2**18  # multiplications: OpenBLAS shares out larger matrix products among threads


# --- resampling -----------------------------------------------------------------------------


def block_weights(process_B: ArrayLike, *, seed: int, draws: int = DRAWS) -> NDArray[np.float32]:
    """How often each block is drawn in each replicate, shape (draws, B): with replacement, inside its own process."""
    process_B = np.asarray(process_B)
    rng = np.random.default_rng(seed)
    weights_RB = np.zeros((draws, process_B.size), dtype=np.float32)
    for process in np.unique(process_B):
        columns = np.flatnonzero(process_B == process)
        picks = rng.integers(0, columns.size, size=(draws, columns.size)) + columns.size * np.arange(draws)[:, None]
        counts = np.bincount(picks.ravel(), minlength=draws * columns.size).reshape(draws, columns.size)
        weights_RB[:, columns] = counts
    return weights_RB


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Runs of several blocks, sorted once so that every percentile of them is quick. Made by `pool`."""

    values_N: NDArray[np.float64]  # ascending
    block_N: NDArray[np.int64]  # the block of each of them
    by_block_N: NDArray[np.float64]  # the same values, block after block, ascending in each
    runs_B: NDArray[np.int64]
    process_B: NDArray[np.int64]


def pool(values: ArrayLike, block_N: ArrayLike, process_B: ArrayLike) -> Pool:
    """Sorts runs for `quantile_draws` and `quantile_interval`.

    Args:
        values: shape (N,), at least one.
        block_N: index of each value's block, 0 to B - 1.
        process_B: the process that each block ran in, shape (B,).
    """
    values = np.asarray(values, dtype=np.float64)
    process_B = np.asarray(process_B, dtype=np.int64)
    small = np.int16 if process_B.size < 2**15 else np.int64  # numpy sorts 16-bit keys by radix
    order = np.argsort(values)
    values_N, block_N = values[order], np.asarray(block_N)[order].astype(small)
    grouped = np.argsort(block_N, kind="stable")
    return Pool(
        values_N=values_N,
        block_N=block_N.astype(np.int64),
        by_block_N=values_N[grouped],
        runs_B=np.bincount(block_N, minlength=process_B.size).astype(np.int64),
        process_B=process_B,
    )


def block_quantiles(pooled: Pool, probability: float) -> NDArray[np.float64]:
    """That quantile (linear) of every block, shape (B,). Blocks must not be empty."""
    first_B = np.cumsum(pooled.runs_B) - pooled.runs_B
    position_B = probability * (pooled.runs_B - 1)
    below_B = position_B.astype(np.int64)
    above_B = np.minimum(below_B + 1, pooled.runs_B - 1)
    low_B, high_B = pooled.by_block_N[first_B + below_B], pooled.by_block_N[first_B + above_B]
    return np.asarray(low_B + (high_B - low_B) * (position_B - below_B), dtype=np.float64)


def quantile_draws(pooled: Pool, weights_RB: NDArray[np.float32], probability: float) -> NDArray[np.float64]:
    """The pooled quantile in each replicate, shape (draws,).

    The quantile of a mixture of blocks lies between the smallest and the largest quantile of a block. There it is
    looked for on a grid of observed values: one matrix product of weights and counts replaces sorting every replicate.
    The grid is then laid again where replicates fell; with few values between, the result is exact.
    """
    runs_B, values_N = pooled.runs_B, pooled.values_N
    ranks_B = np.maximum(np.ceil(probability * runs_B - 1e-9).astype(np.int64) - 1, 0)
    quantiles_B = pooled.by_block_N[(np.cumsum(runs_B) - runs_B + ranks_B)[runs_B > 0]]
    first = int(np.searchsorted(values_N, quantiles_B.min(), side="left"))
    last = int(np.searchsorted(values_N, quantiles_B.max(), side="right")) - 1
    target_R = probability * (weights_RB @ runs_B.astype(np.float32)) - 1e-3
    for _ in range(LAYERS):
        # Grid position k stands for all values up to rank ends_K[k]; equal values end at the last of them.
        grid_K = values_N[np.linspace(first, last, min(GRID, last - first + 1)).astype(np.int64)]
        ends_K = np.searchsorted(values_N, grid_K, side="right")
        below_RK = _small_products(weights_RB, _counts_below(pooled, ends_K))
        index_R = np.minimum(np.count_nonzero(below_RK < target_R[:, None], axis=1), grid_K.size - 1)
        if last - first < GRID:
            break
        lowest, highest = int(index_R.min()), int(index_R.max())
        first, last = int(ends_K[lowest - 1]) if lowest else first, int(ends_K[highest]) - 1
    return np.asarray(grid_K[index_R], dtype=np.float64)


def _counts_below(pooled: Pool, ends_K: NDArray[np.int64]) -> NDArray[np.float32]:
    """How many runs of each block are among the first `ends_K[k]` of all, shape (B, K)."""
    bin_N = np.repeat(np.arange(ends_K.size), np.diff(ends_K, prepend=0))
    keys = pooled.block_N[: bin_N.size] * ends_K.size + bin_N
    counts = np.bincount(keys, minlength=pooled.runs_B.size * ends_K.size)
    return counts.reshape(pooled.runs_B.size, ends_K.size).cumsum(axis=1, dtype=np.float32)


def _small_products(weights_RB: NDArray[np.float32], below_BK: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix product, in pieces that OpenBLAS computes on the calling thread alone.

    Its threads wait by spinning: on a machine with other load, and that is where intervals are looked at while
    measuring, the whole product takes ten times longer, and it would disturb what is measured next.
    """
    product_RK = np.empty((weights_RB.shape[0], below_BK.shape[1]), dtype=np.float32)
    rows = max(1, ONE_THREAD // below_BK.size)
    for start in range(0, weights_RB.shape[0], rows):
        np.matmul(weights_RB[start : start + rows], below_BK, out=product_RK[start : start + rows])
    return product_RK


def expanded_limits(draws_R: NDArray[np.float64], n_units: int, confidence: float) -> tuple[float, float]:
    """Percentile limits of bootstrap draws, expanded as t intervals are for `n_units` resampled units (Hesterberg 2015)."""
    from scipy.special import ndtr

    tail = (1 - confidence) / 2
    if n_units > 1:
        tail = float(ndtr(math.sqrt(n_units / (n_units - 1)) * student_quantile(tail, n_units - 1)))
    low, high = np.quantile(draws_R, [tail, 1 - tail])
    return float(low), float(high)


def order_statistic_limits(sorted_values: NDArray[np.float64], probability: float, confidence: float) -> tuple[float, float]:
    """Distribution-free limits of a quantile from independent values, which come sorted (Hahn & Meeker 1991).

    Where the sample is too small for a limit, it is the smallest or the largest value.
    """
    from scipy.special import bdtr, ndtri

    n, tail = sorted_values.size, (1 - confidence) / 2
    sd = math.sqrt(n * probability * (1 - probability))
    if n > EXACT_TO:
        half = -float(ndtri(tail)) * sd
        low, high = math.floor(n * probability - half), math.ceil(n * probability + half)
    else:
        at_most = bdtr(np.arange(n + 1), n, probability)  # of the values, so many lie below the quantile
        low = int(np.searchsorted(at_most, tail, side="right")) - 1
        high = int(np.searchsorted(at_most, 1 - tail, side="left"))
    return float(sorted_values[max(low, 0)]), float(sorted_values[min(high, n - 1)])


# --- intervals ------------------------------------------------------------------------------


def quantile_interval(
    pooled: Pool,
    probability: float,
    *,
    confidence: float = 0.95,
    spread: Spread = NO_SPREAD,
    weights_RB: NDArray[np.float32] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """A percentile of all runs with its interval, in the unit of the pooled values. See the module for the method.

    Args:
        spread: between restarts, from `restart_spreads`.
        weights_RB: from `block_weights`, to share them between percentiles.
    """
    if weights_RB is None:
        weights_RB = block_weights(pooled.process_B, seed=seed, draws=draws)
    n_processes = np.unique(pooled.process_B).size
    estimate = sorted_quantile(pooled.values_N, probability)
    draws_R = quantile_draws(pooled, weights_RB, probability)
    low, high = expanded_limits(draws_R, pooled.runs_B.size - n_processes + 1, confidence)
    order_low, order_high = order_statistic_limits(pooled.values_N, probability, confidence)
    low, high = min(low, order_low, estimate), max(high, order_high, estimate)
    return _widened(estimate, low, high, spread, n_processes, confidence)


def sorted_quantile(values: NDArray[np.float64], probability: float) -> float:
    """What `numpy.quantile` says (linear), of values that are sorted already."""
    position = probability * (values.size - 1)
    below = math.floor(position)
    above = min(below + 1, values.size - 1)
    return float(values[below] + (values[above] - values[below]) * (position - below))


def paired_ratio_interval(
    log_ratio_R: ArrayLike,
    process_R: ArrayLike,
    *,
    confidence: float = 0.95,
    spread: Spread = NO_SPREAD,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """The median over rounds of a ratio taken inside each round, with its bootstrap interval over rounds.

    A machine that drifts, or that was loaded in one round, slows both sides of that round's ratio.

    Args:
        log_ratio_R: logarithm of each round's ratio, shape (R,).
        process_R: the process that each round ran in.
    """
    log_ratio_R = np.asarray(log_ratio_R, dtype=np.float64)
    process_R = np.asarray(process_R)
    rng = np.random.default_rng(seed)
    picks = np.empty((draws, log_ratio_R.size), dtype=np.int64)
    for process in np.unique(process_R):
        columns = np.flatnonzero(process_R == process)
        picks[:, columns] = columns[rng.integers(0, columns.size, size=(draws, columns.size))]
    medians = np.median(log_ratio_R[picks], axis=1)
    estimate = float(np.median(log_ratio_R))
    n_processes = np.unique(process_R).size
    low, high = expanded_limits(medians, log_ratio_R.size - n_processes + 1, confidence)
    order_low, order_high = order_statistic_limits(np.sort(log_ratio_R), 0.5, confidence)
    low, high = min(low, order_low, estimate), max(high, order_high, estimate)
    return _widened(math.exp(estimate), math.exp(low), math.exp(high), spread, n_processes, confidence)


def _widened(value: float, low: float, high: float, spread: Spread, n_processes: int, confidence: float) -> Interval:
    """Adds the uncertainty from restarts to both sides, in quadrature and in logarithms."""
    if spread.log_sd == 0 or min(value, low) <= 0:
        return Interval(value=value, low=low, high=high, confidence=confidence)
    restarts = student_quantile((1 + confidence) / 2, spread.dof) * spread.log_sd / math.sqrt(n_processes)
    below = math.hypot(math.log(value / low), restarts)
    above = math.hypot(math.log(high / value), restarts)
    return Interval(value=value, low=value * math.exp(-below), high=value * math.exp(above), confidence=confidence)


def half_width(interval: Interval) -> float:
    """Half the interval's width as a share of its value; infinite for a value of 0."""
    return (interval.high - interval.low) / 2 / abs(interval.value) if interval.value else math.inf
