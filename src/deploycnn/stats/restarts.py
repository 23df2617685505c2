"""How much an artifact's restarts differ, beyond what its blocks explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OWN_P = 0.01  # an artifact's own spread counts where chance alone would give it so rarely


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """Logarithms of one artifact's block statistics, and the process that each block ran in."""

    log_B: NDArray[np.float64]
    process_B: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Standard deviation between restarts, as a logarithm (0.01 is about 1 %), with its degrees of freedom."""

    log_sd: float
    dof: float


NO_SPREAD = Spread(log_sd=0.0, dof=math.inf)


def restart_spreads(artifacts: Sequence[Restarts]) -> list[Spread]:
    """The spread between restarts of each artifact: the one typical of all, or its own where that is surely larger.

    The typical one is the median over artifacts of the variance of process medians, less what the blocks explain.
    Zero where no artifact was started twice.
    """
    from scipy.special import chdtrc

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
        variance = pooled
        if entry is not None:
            between, within, dof = entry
            usual = within + pooled
            if usual == 0 or chdtrc(dof, dof * between / usual) < OWN_P:
                variance = max(pooled, between - within)
        spreads.append(Spread(log_sd=math.sqrt(variance), dof=pooled_dof))
    return spreads


def own_spread(artifact: Restarts) -> tuple[float, float]:
    """(standard deviation between this artifact's restarts beyond what its blocks explain, as a logarithm; p-value of none).

    (0, 1) for a single process.
    """
    from scipy.special import chdtrc

    found = _between_and_within(artifact)
    if found is None:
        return 0.0, 1.0
    between, within, dof = found
    p_value = float(chdtrc(dof, dof * between / within)) if within > 0 else float(between == 0)
    return math.sqrt(max(0.0, between - within)), p_value


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


def _robust_sd(values: NDArray[np.float64]) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
