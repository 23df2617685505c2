"""Intervals for shares of images, alone and in pairs.

Sources:
    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927): `wilson`.
    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17 (1998): `paired_difference`. Chosen over Newcombe's method 10 because it inverts the score
    test of exactly the question asked here, whether a difference exceeds a margin, and keeps its error rate when few
    or no pairs differ, as they do between a network and its compiled self.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from deploycnn.types import Interval


def wilson(hits: int, n: int, confidence: float) -> Interval:
    """Two-sided Wilson score interval of `hits` among `n`. Without images it is 0, between 0 and 1."""
    if n == 0:
        return Interval(value=0.0, low=0.0, high=1.0, confidence=confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is exact; rounding must not push the estimate out of its own interval.
    return Interval(value=share, low=min(max(0.0, middle - half), share), high=max(min(1.0, middle + half), share), confidence=confidence)


def paired_difference(lost: float, won: float, n: int, confidence: float) -> Interval:
    """Tango's two-sided score interval of (lost - won) / n, over n images that were answered twice.

    Either end alone is a one-sided bound at (1 + confidence) / 2.

    Args:
        lost: images right only the first time; won: only the second time. Fractions of images are allowed.
        n: all images. Without any the interval is -1 to 1.
    """
    if n == 0:
        return Interval(value=0.0, low=-1.0, high=1.0, confidence=confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    value = (lost - won) / n
    low = _crossing(lost, won, n, z, -1.0, value)
    high = _crossing(lost, won, n, -z, value, 1.0)
    return Interval(value=value, low=low, high=high, confidence=confidence)


def images_needed(lost: int, won: int, n: int, margin: float, confidence: float) -> int | None:
    """How many images put the upper end of `paired_difference` at or below `margin`, at the shares of pairs seen.

    None where no number does: the difference seen is not below the margin.
    """
    if n == 0 or (lost - won) / n >= margin:
        return None

    def upper(total: int) -> float:
        return paired_difference(lost * total / n, won * total / n, total, confidence).high

    enough = 1
    while upper(enough) > margin:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if upper(middle) > margin:
            too_few = middle
        else:
            enough = middle
    return enough


def _crossing(lost: float, won: float, n: int, z: float, low: float, high: float) -> float:
    """Where the score, which falls with the difference supposed, crosses `z`; by bisection to the last bit."""
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _score(lost, won, n, middle) > z:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _score(lost: float, won: float, n: int, difference: float) -> float:
    """Tango's statistic: how many standard errors the pairs seen are above a true `difference`."""
    excess = lost - won - n * difference
    b = -lost - won + (2 * n - lost + won) * difference
    c = -won * difference * (1 - difference)
    won_share = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)  # likeliest share of `won` under that difference
    variance = n * (2 * won_share + difference * (1 - difference))
    if variance <= 0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)
