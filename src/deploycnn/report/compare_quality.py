"""Accuracy and size of two runs against each other."""

from __future__ import annotations

import math

from deploycnn import stats
from deploycnn.record import Accuracy, Record
from deploycnn.types import Interval


def same_answers_expected(base: Record, new: Record) -> bool:
    """Whether both runs' fp32 references gave the same answers: the same graph on the same images."""
    return base.model.graph_sha256 == new.model.graph_sha256 and base.data.sha256 == new.data.sha256


def top1_change(base: Accuracy, new: Accuracy, *, paired: bool, confidence: float) -> tuple[Interval, float]:
    """(difference of top-1, new minus base, as a share; two-sided p-value).

    Paired, by the flips against one common reference: exact McNemar test, and the interval of Agresti & Min 2005.
    Otherwise as two samples: Newcombe's hybrid of Wilson intervals (1998, method 10), which is too wide rather than
    too narrow for the same images.
    """
    return _paired(base, new, confidence) if paired else _unpaired(base, new, confidence)


def _paired(base: Accuracy, new: Accuracy, confidence: float) -> tuple[Interval, float]:
    base_lost, new_lost = set(base.right_to_wrong), set(new.right_to_wrong)
    base_won, new_won = set(base.wrong_to_right), set(new.wrong_to_right)
    lost = len(new_lost - base_lost) + len(base_won - new_won)  # right in the base run, wrong in the new one
    won = len(base_lost - new_lost) + len(new_won - base_won)
    n = base.n_images
    z = stats.student_quantile((1 + confidence) / 2, math.inf)
    # Half an image added to each of the four kinds of pair.
    shrunk, total = (won - lost) / (n + 2), won + lost + 1
    half = z * math.sqrt(max(0.0, total / (n + 2) - shrunk**2) / (n + 2))
    difference = (won - lost) / n
    interval = Interval(value=difference, low=min(difference, shrunk - half), high=max(difference, shrunk + half), confidence=confidence)
    return interval, _sign_test(lost, won)


def _sign_test(lost: int, won: int) -> float:
    """Two-sided exact binomial p-value of equal chances."""
    from scipy.special import bdtr

    return float(min(1.0, 2 * bdtr(min(lost, won), lost + won, 0.5))) if lost + won else 1.0


def _unpaired(base: Accuracy, new: Accuracy, confidence: float) -> tuple[Interval, float]:
    z = stats.student_quantile((1 + confidence) / 2, math.inf)
    low_base, high_base = _wilson(base.top1.value, base.n_images, z)
    low_new, high_new = _wilson(new.top1.value, new.n_images, z)
    difference = new.top1.value - base.top1.value
    low = difference - math.hypot(new.top1.value - low_new, high_base - base.top1.value)
    high = difference + math.hypot(high_new - new.top1.value, base.top1.value - low_base)
    variance = sum(a.top1.value * (1 - a.top1.value) / a.n_images for a in (base, new))
    p_value = stats.student_p_value(difference / math.sqrt(variance), math.inf) if variance else float(difference == 0)
    return Interval(value=difference, low=low, high=high, confidence=confidence), p_value


def _wilson(share: float, n: int, z: float) -> tuple[float, float]:
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
