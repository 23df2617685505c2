"""Pure statistics of latency samples: numpy in, numbers out, the same seed gives the same numbers.

Runs inside a block share the state of the machine (caches, clock, neighbours), and blocks inside a process share its
memory layout, so neither runs nor blocks may be treated as independent. Methods:

* intervals of percentiles: bootstrap over blocks, stratified by process (Davison & Hinkley 1997, section 3.8),
  percentile limits expanded for small numbers of blocks (Hesterberg 2015, "What Teachers Should Know About the
  Bootstrap", section 5.2), never narrower than the order-statistic interval of independent runs (Hahn & Meeker 1991,
  section 5.2), and widened by the spread between process restarts;
* spread between restarts: excess of the variance of process medians over what the blocks explain. One artifact has
  too few restarts to know it, so the spread is pooled over artifacts (the idea of Smyth 2004's moderated t); restarts
  as a level of their own: Kalibera & Jones 2013, "Rigorous benchmarking in reasonable time";
* several comparisons at once: Holm 1979;
* drift: Mann 1945 and Kendall's trend test, Theil-Sen slope.

Nothing is trimmed anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deploycnn.types import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 1000  # bootstrap replicates: the Monte Carlo error of a limit is then a tenth of the interval's own
GRID = 512  # candidate values of a resampled percentile


# --- how many samples a percentile needs ----------------------------------------------------


def smallest_sample(probability: float, confidence: float = 0.95) -> int:
    """The fewest independent samples whose largest lies above the `probability` quantile with that confidence.

    1 - probability^n >= confidence (Hahn & Meeker 1991): 59 for p95, 299 for p99, 2,995 for p99.9.
    """
    return math.ceil(math.log(1 - confidence) / math.log(probability))


def carries(n_samples: int, probability: float, confidence: float = 0.95) -> bool:
    """Whether a sample of that size may be asked for that percentile."""
    return n_samples >= smallest_sample(probability, confidence)


def count_outliers(values: ArrayLike) -> int:
    """Values more than 3 interquartile ranges above the third quartile (Tukey's far-out fence). Counted, never dropped."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return 0
    first, third = np.quantile(array, [0.25, 0.75])
    return int(np.count_nonzero(array > third + 3 * (third - first)))


# --- distributions --------------------------------------------------------------------------


def student_quantile(probability: float, dof: float) -> float:
    """Quantile of Student's t with `dof` degrees of freedom, the normal's where `dof` is infinite."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(probability)) if math.isinf(dof) else float(stdtrit(dof, probability))


def student_p_value(statistic: float, dof: float) -> float:
    """Two-sided p-value of a t statistic."""
    from scipy.special import ndtr, stdtr

    size = -abs(statistic)
    return float(min(1.0, 2 * (ndtr(size) if math.isinf(dof) else stdtr(dof, size))))


def combined_dof(variances: Sequence[float], dofs: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent variances (Welch 1947, Satterthwaite 1946); infinite for no variance."""
    total = sum(variances)
    parts = sum(v * v / dof for v, dof in zip(variances, dofs, strict=True) if v > 0)
    return total * total / parts if parts > 0 else math.inf


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): calling what lies under alpha keeps the chance of any false call under alpha."""
    n = len(p_values)
    order = sorted(range(n), key=lambda i: p_values[i])
    adjusted = [1.0] * n
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (n - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


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

    values_N: Floats  # ascending
    block_N: Ints  # the block of each of them
    by_block_N: Floats  # the same values, block after block, ascending in each
    runs_B: Ints
    process_B: Ints


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


def block_quantiles(pooled: Pool, probability: float) -> Floats:
    """That quantile (linear) of every block, shape (B,). Blocks must not be empty."""
    first_B = np.cumsum(pooled.runs_B) - pooled.runs_B
    position_B = probability * (pooled.runs_B - 1)
    below_B = position_B.astype(np.int64)
    above_B = np.minimum(below_B + 1, pooled.runs_B - 1)
    low_B, high_B = pooled.by_block_N[first_B + below_B], pooled.by_block_N[first_B + above_B]
    return np.asarray(low_B + (high_B - low_B) * (position_B - below_B), dtype=np.float64)


def quantile_draws(pooled: Pool, weights_RB: NDArray[np.float32], probability: float) -> Floats:
    """The pooled quantile in each replicate, shape (draws,).

    The quantile of a mixture of blocks lies between the smallest and the largest quantile of a block, so it is looked
    for on a grid of at most GRID observed values there: one matrix product of weights and counts replaces sorting
    every replicate.
    """
    runs_B, values_N = pooled.runs_B, pooled.values_N
    n_blocks = runs_B.size
    ranks_B = np.maximum(np.ceil(probability * runs_B - 1e-9).astype(np.int64) - 1, 0)
    quantiles_B = pooled.by_block_N[(np.cumsum(runs_B) - runs_B + ranks_B)[runs_B > 0]]
    first = int(np.searchsorted(values_N, quantiles_B.min(), side="left"))
    last = int(np.searchsorted(values_N, quantiles_B.max(), side="right")) - 1
    # Grid position k stands for the values up to rank ends_K[k]; equal values end at the last of them.
    ends_K = np.linspace(first, last, min(GRID, last - first + 1)).astype(np.int64)
    grid_K = values_N[ends_K]
    ends_K = np.searchsorted(values_N, grid_K, side="right")
    bin_N = np.repeat(np.arange(ends_K.size), np.diff(ends_K, prepend=0))
    keys = pooled.block_N[: bin_N.size] * ends_K.size + bin_N
    below_BK = np.bincount(keys, minlength=n_blocks * ends_K.size).reshape(n_blocks, ends_K.size).cumsum(axis=1, dtype=np.float32)
    target_R = probability * (weights_RB @ runs_B.astype(np.float32)) - 1e-3
    index_R = np.count_nonzero(weights_RB @ below_BK < target_R[:, None], axis=1)
    return np.asarray(grid_K[np.minimum(index_R, grid_K.size - 1)], dtype=np.float64)


def expanded_limits(draws_R: Floats, n_units: int, confidence: float) -> tuple[float, float]:
    """Percentile limits of bootstrap draws, expanded as t intervals are for `n_units` resampled units (Hesterberg 2015)."""
    from scipy.special import ndtr

    tail = (1 - confidence) / 2
    if n_units > 1:
        tail = float(ndtr(math.sqrt(n_units / (n_units - 1)) * student_quantile(tail, n_units - 1)))
    low, high = np.quantile(draws_R, [tail, 1 - tail])
    return float(low), float(high)


def order_statistic_limits(sorted_values: Floats, probability: float, confidence: float) -> tuple[float, float]:
    """Distribution-free limits of a quantile from independent values, which come sorted (Hahn & Meeker 1991).

    Where the sample is too small for a limit, it is the smallest or the largest value.
    """
    from scipy.special import ndtri

    n = sorted_values.size
    # The normal form of the binomial limits: exact enough from a few tens of values, and it never fails to converge.
    half = float(ndtri((1 + confidence) / 2)) * math.sqrt(n * probability * (1 - probability))
    low = math.floor(n * probability - half) - 1
    high = math.ceil(n * probability + half)
    return float(sorted_values[max(low, 0)]), float(sorted_values[min(high, n - 1)])


# --- restarts of a process ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """Logarithms of one artifact's block statistics, and the process that each block ran in."""

    log_B: Floats
    process_B: Ints


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Standard deviation between restarts, as a logarithm (0.01 is about 1 %), with its degrees of freedom."""

    log_sd: float
    dof: float


NO_SPREAD = Spread(log_sd=0.0, dof=math.inf)


def restart_spreads(artifacts: Sequence[Restarts]) -> list[Spread]:
    """The spread between restarts of each artifact: the larger of its own and the one typical of all.

    The typical one is the median over artifacts of the variance of process medians, less what the blocks explain.
    Zero where no artifact was started twice.
    """
    found = [_between_and_within(artifact) for artifact in artifacts]
    known = [entry for entry in found if entry is not None]
    if not known:
        return [NO_SPREAD] * len(found)
    # The median of a chi-square with k degrees of freedom is k (1 - 2 / 9k)^3 (Wilson & Hilferty 1931).
    typical = float(np.median([between / (1 - 2 / (9 * dof)) ** 3 for between, _, dof in known]))
    explained = float(np.median([within for _, within, _ in known]))
    pooled = max(0.0, typical - explained)
    # A median of variances is worth about half the degrees of freedom of their mean.
    pooled_dof = max(1.0, sum(dof for *_, dof in known) / 2)
    spreads = []
    for entry in found:
        own = max(0.0, entry[0] - entry[1]) if entry else 0.0
        spreads.append(Spread(log_sd=math.sqrt(max(pooled, own)), dof=pooled_dof))
    return spreads


def own_spread(artifact: Restarts) -> float:
    """Standard deviation between this artifact's restarts beyond what its blocks explain, as a logarithm; 0 for one process."""
    found = _between_and_within(artifact)
    return math.sqrt(max(0.0, found[0] - found[1])) if found else 0.0


def _between_and_within(artifact: Restarts) -> tuple[float, float, int] | None:
    """(variance of process medians, the part of it that blocks explain, degrees of freedom), None for one process."""
    groups = [artifact.log_B[artifact.process_B == process] for process in np.unique(artifact.process_B)]
    groups = [group for group in groups if group.size >= 2]
    if len(groups) < 2:
        return None
    medians = np.array([np.median(group) for group in groups])
    # Variance of a median: pi / 2 of a mean's; the spread is taken robustly because a burst of load is not layout luck.
    within = np.array([math.pi / 2 * _robust_sd(group) ** 2 / group.size for group in groups])
    return float(np.var(medians, ddof=1)), float(np.mean(within)), len(groups) - 1


def _robust_sd(values: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


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


def sorted_quantile(values: Floats, probability: float) -> float:
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


# --- drift ----------------------------------------------------------------------------------


def trend(values: ArrayLike) -> tuple[float, float]:
    """(change over the whole series, two-sided p-value): Theil-Sen slope and Mann-Kendall test, without ties' correction.

    Series of fewer than 8 values have no trend to speak of: (0, 1).
    """
    series = np.asarray(values, dtype=np.float64)
    n = series.size
    if n < 8:
        return 0.0, 1.0
    first, second = np.triu_indices(n, k=1)
    differences = series[second] - series[first]
    score = float(np.sign(differences).sum())
    sd = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    p_value = student_p_value((abs(score) - 1) / sd, math.inf) if score else 1.0
    return float(np.median(differences / (second - first))) * (n - 1), p_value
