"""Rules of thumb made exact: sample sizes, outliers, p-values, several tests at once, trends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

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
