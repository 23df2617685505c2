"""Ranges from histograms: percentile and entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

BINS = 2048
LEVELS = 128  # of a signed 8-bit number's absolute value
STRIDE = 16  # bins between the thresholds that entropy tries


def percentile_range(counts: np.ndarray, low: float, high: float, percentile: float) -> tuple[float, float]:
    """The range that holds `percentile` % of the values at each end, zero included."""
    import numpy as np

    total = counts.sum()
    if not total:
        return low, high
    edges = np.linspace(low, high, BINS + 1)
    below = np.concatenate([[0], np.cumsum(counts)]) / total
    share = percentile / 100
    first = int(np.searchsorted(below, 1 - share, side="right")) - 1
    last = int(np.searchsorted(below, share, side="left"))
    return min(0.0, float(edges[first])), max(0.0, float(edges[last]))


def entropy_threshold(counts: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """The range, cut at one threshold on both sides, that loses the least information in 128 levels."""
    import numpy as np

    largest = max(-low, high)
    if not counts.sum() or not largest:
        return low, high
    magnitudes = np.abs(np.linspace(low, high, BINS + 1)[:-1] + (high - low) / (2 * BINS))
    bins = np.minimum((magnitudes / largest * BINS).astype(np.int64), BINS - 1)
    folded = np.bincount(bins, weights=counts, minlength=BINS)
    folded[0] = 0  # exact zeros are held by every range; counting them would let them decide alone
    if not folded.any():
        return low, high
    candidates = range(LEVELS, BINS + 1, STRIDE)
    losses = [_loss(folded, size) for size in candidates]
    threshold = candidates[int(np.argmin(losses))] / BINS * largest
    return max(low, -threshold), min(high, threshold)


def _loss(folded: np.ndarray, size: int) -> float:
    """Kullback-Leibler divergence of the first `size` bins, the rest clipped into the last, from their 128 levels."""
    import numpy as np

    inside = folded[:size]
    clipped = inside.copy()
    clipped[-1] += folded[size:].sum()
    level = np.minimum(np.arange(size) * LEVELS // size, LEVELS - 1)
    filled = inside > 0
    sums = np.bincount(level, weights=inside, minlength=LEVELS)
    places = np.bincount(level, weights=filled, minlength=LEVELS)
    spread = np.where(filled, (sums / np.maximum(places, 1))[level], 0.0)
    p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1e-30)
    used = p > 0
    return float((p[used] * np.log(p[used] / np.maximum(q[used], 1e-12))).sum())
