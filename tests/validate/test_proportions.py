"""The intervals, against scipy, against the printed examples of their authors, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn.validate.proportions import _score, images_needed, paired_difference, wilson


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (0, 50), (50, 50), (7, 10), (6951, 10_000), (1, 100_000)])
def test_wilson_is_scipys(hits: int, n: int, confidence: float) -> None:
    from scipy.stats import binomtest

    expected = binomtest(hits, n).proportion_ci(confidence, method="wilson")
    found = wilson(hits, n, confidence)
    assert found.value == hits / n
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_holds_its_estimate_and_stays_a_share(pair: tuple[int, int], confidence: float) -> None:
    found = wilson(*pair, confidence)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0


def test_without_images_anything_is_possible() -> None:
    assert (wilson(0, 0, 0.95).low, wilson(0, 0, 0.95).high) == (0.0, 1.0)
    assert (paired_difference(0, 0, 0, 0.9).low, paired_difference(0, 0, 0, 0.9).high) == (-1.0, 1.0)


# --- pairs --------------------------------------------------------------------------------


def likeliest_score(lost: int, won: int, n: int, difference: float) -> float:
    """The score with the restricted maximum of likelihood found by search instead of by formula."""
    from scipy.optimize import minimize_scalar

    def loss(won_share: float) -> float:
        cells = ((lost, won_share + difference), (won, won_share), (n - lost - won, 1 - 2 * won_share - difference))
        if any(count and share <= 0 for count, share in cells):
            return math.inf
        return -sum(count * math.log(share) for count, share in cells if count)

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    return float((lost - won - n * difference) / math.sqrt(n * (2 * best + difference * (1 - difference))))


@pytest.mark.parametrize(("lost", "won", "n"), [(5, 2, 60), (12, 9, 200), (30, 1, 100), (3, 40, 150)])
@pytest.mark.parametrize("difference", [-0.2, -0.05, 0.01, 0.1, 0.3])
def test_the_score_is_the_one_at_the_restricted_maximum_of_likelihood(lost: int, won: int, n: int, difference: float) -> None:
    assert _score(lost, won, n, difference) == pytest.approx(likeliest_score(lost, won, n, difference), rel=1e-5)


def closed_form(lost: int, won: int, n: int, confidence: float) -> tuple[float, float]:
    """Outer roots of the quartic of Yang, Sun and Hardin, "A non-iterative implementation of Tango's score confidence interval
    for a paired difference of proportions", Statistics in Medicine 32 (2013)."""
    from scipy.stats import norm

    g, d, s = norm.ppf((1 + confidence) / 2) ** 2, lost - won, lost + won
    coefficients = (
        n**2 * (n / g + 1) ** 2,
        -n * d * (n / g + 1) * (4 * n / g + 1),
        2 * n * d**2 * (3 * n / g + 2) / g - n**2 * (s / g + 1),
        n * d * (2 * s / g + 1) - d**3 * (4 * n / g + 1) / g,
        d**2 * (d**2 / g - s) / g,
    )
    roots = np.roots(coefficients)
    real = np.sort(roots.real[np.abs(roots.imag) < 1e-7])
    return float(real[0]), float(real[-1])


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95])
@pytest.mark.parametrize(
    ("lost", "won", "n"), [(1, 7, 21), (12, 2, 50), (40, 20, 160), (0, 1, 44), (5, 0, 1000), (71, 60, 10_000), (130, 20, 10_000)]
)
def test_the_interval_is_that_of_the_closed_form(lost: int, won: int, n: int, confidence: float) -> None:
    found = paired_difference(lost, won, n, confidence)
    assert (found.low, found.high) == pytest.approx(closed_form(lost, won, n, confidence), abs=1e-6)


def test_the_interval_is_the_one_that_others_print() -> None:
    """Airway hyper-responsiveness before and after stem cell transplantation: 1 against 7 of 21 pairs differ
    (Fagerland, Lydersen and Laake, "Recommended tests and confidence intervals for paired binomial proportions", 2014)."""
    found = paired_difference(1, 7, 21, 0.95)
    assert (round(found.low, 3), round(found.high, 3)) == (-0.517, -0.026)


counts = st.integers(1, 5000).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda x: st.tuples(st.just(x), st.integers(0, n - x), st.just(n)))
)


@settings(deadline=None)
@given(counts, st.floats(0.5, 0.999))
def test_the_interval_holds_its_estimate_and_mirrors(pairs: tuple[int, int, int], confidence: float) -> None:
    lost, won, n = pairs
    found, mirrored = paired_difference(lost, won, n, confidence), paired_difference(won, lost, n, confidence)
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    assert found.low == pytest.approx(-mirrored.high, abs=1e-9)


@settings(deadline=None)
@given(counts)
def test_more_confidence_is_a_wider_interval(pairs: tuple[int, int, int]) -> None:
    narrow, wide = paired_difference(*pairs, 0.8), paired_difference(*pairs, 0.95)
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


@pytest.mark.parametrize(("n", "lost_share", "won_share"), [(300, 0.02, 0.01), (1000, 0.03, 0.02), (5000, 0.012, 0.002), (500, 0.01, 0.0)])
def test_an_artifact_at_the_limit_passes_as_rarely_as_promised(n: int, lost_share: float, won_share: float) -> None:
    """One-sided error at 95 %, by exact enumeration over what 20,000 simulated test sets give."""
    rng = np.random.default_rng(5)
    limit = lost_share - won_share
    seen, times = np.unique(
        rng.multinomial(n, [lost_share, won_share, 1 - lost_share - won_share], size=20_000)[:, :2], axis=0, return_counts=True
    )
    passed = [paired_difference(int(lost), int(won), n, 0.9).high <= limit for lost, won in seen]
    rate = float(np.average(passed, weights=times))
    assert rate <= 0.065
    if won_share:
        assert rate >= 0.02, "not so cautious that good artifacts are refused either"


# --- how many images would do -------------------------------------------------------------


@pytest.mark.parametrize(("lost", "won", "n", "margin"), [(0, 0, 50, 0.01), (3, 2, 200, 0.01), (20, 10, 2000, 0.01), (0, 0, 1, 0.002)])
def test_so_many_images_do_and_one_fewer_does_not(lost: int, won: int, n: int, margin: float) -> None:
    needed = images_needed(lost, won, n, margin, 0.9)
    assert needed is not None
    assert paired_difference(lost * needed / n, won * needed / n, needed, 0.9).high <= margin
    assert paired_difference(lost * (needed - 1) / n, won * (needed - 1) / n, needed - 1, 0.9).high > margin


def test_without_a_flip_it_is_the_rule_of_three() -> None:
    """z^2 (1 - m) / m images show less than m."""
    assert images_needed(0, 0, 1, 0.01, 0.9) == 268


@pytest.mark.parametrize(("lost", "won", "n"), [(5, 0, 100), (1, 0, 100), (0, 0, 0)])
def test_no_number_does_where_the_loss_is_not_below_the_margin(lost: int, won: int, n: int) -> None:
    assert images_needed(lost, won, n, 0.01, 0.9) is None
