"""Statistics: properties that always hold, known cases of scipy, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deploycnn import stats

CALM = settings(max_examples=60, deadline=None)


# --- rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("probability", "fewest"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_fewest_samples_of_a_percentile(probability: float, fewest: int) -> None:
    assert stats.smallest_sample(probability) == fewest
    assert stats.carries(fewest, probability)
    assert not stats.carries(fewest - 1, probability)


@given(st.floats(0.01, 0.9999), st.floats(0.5, 0.999))
def test_fewest_samples_is_the_first_size_whose_largest_value_is_far_enough_out(probability: float, confidence: float) -> None:
    n = stats.smallest_sample(probability, confidence)
    assert 1 - probability**n >= confidence - 1e-12
    assert n == 1 or 1 - probability ** (n - 1) < confidence + 1e-12


def test_holm_on_a_worked_example() -> None:
    # Holm's procedure by hand: 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, made monotone.
    assert stats.holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_lies_between_the_plain_p_value_and_bonferroni_and_keeps_order(p_values: list[float]) -> None:
    adjusted = stats.holm(p_values)
    for plain, found in zip(p_values, adjusted, strict=True):
        assert plain <= found <= min(1.0, plain * len(p_values)) + 1e-12
    for i, a in enumerate(p_values):
        for j, b in enumerate(p_values):
            assert a > b or adjusted[i] <= adjusted[j] or i == j or a == b


def test_holm_keeps_the_chance_of_any_false_call() -> None:
    rng = np.random.default_rng(0)
    calls = [min(stats.holm(list(rng.uniform(size=20)))) < 0.05 for _ in range(2000)]
    assert 0.03 < np.mean(calls) < 0.07


def test_outliers_are_counted_beyond_the_far_fence() -> None:
    values = np.concatenate([np.linspace(1, 2, 101), [10.0, 11.0], [0.001]])
    assert stats.count_outliers(values) == 2  # only slow ones: a run cannot be suspiciously fast
    assert stats.count_outliers([]) == 0
    assert stats.count_outliers(np.full(50, 3.0)) == 0


def test_student_against_scipy() -> None:
    from scipy import stats as reference

    for dof in (1, 2.5, 10, 200):
        assert stats.student_quantile(0.975, dof) == pytest.approx(reference.t.ppf(0.975, dof))
        assert stats.student_p_value(-2.1, dof) == pytest.approx(2 * reference.t.sf(2.1, dof))
    assert stats.student_quantile(0.975, math.inf) == pytest.approx(reference.norm.ppf(0.975))
    assert stats.student_p_value(0.0, 5) == 1.0


def test_degrees_of_freedom_of_a_sum() -> None:
    assert stats.combined_dof([2.0, 2.0], [10, 10]) == pytest.approx(20)  # Welch's t with equal variances and sizes
    assert stats.combined_dof([1.0, 0.0], [7, 3]) == pytest.approx(7)
    assert stats.combined_dof([0.0], [7]) == math.inf


@pytest.mark.parametrize("slope", [0.0, 0.02, -0.1])
def test_trend_against_scipy(slope: float) -> None:
    from scipy import stats as reference

    rng = np.random.default_rng(1)
    series = slope * np.arange(40) + rng.normal(size=40)
    change, p_value = stats.trend(series)
    assert change == pytest.approx(reference.theilslopes(series).slope * 39)
    assert p_value == pytest.approx(reference.kendalltau(np.arange(40), series, method="asymptotic").pvalue, abs=0.02)


def test_short_series_have_no_trend() -> None:
    assert stats.trend([1, 2, 3, 4, 5, 6, 7]) == (0.0, 1.0)


# --- resampling -----------------------------------------------------------------------------


@st.composite
def blocked(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values, block of each, process of each block), blocks and processes of any sizes, ties and all."""
    process_B = np.sort(draw(hnp.arrays(np.int64, st.integers(1, 8), elements=st.integers(0, 2))))
    runs_B = draw(hnp.arrays(np.int64, process_B.size, elements=st.integers(1, 12)))
    values = draw(hnp.arrays(np.int64, int(runs_B.sum()), elements=st.integers(1, draw(st.sampled_from([3, 1000, 10**9])))))
    return values.astype(np.float64), np.repeat(np.arange(process_B.size), runs_B), process_B


@given(blocked(), st.sampled_from([0.05, 0.5, 0.9, 0.99]))
@CALM
def test_draws_are_the_quantiles_of_the_resampled_runs(data: tuple[np.ndarray, np.ndarray, np.ndarray], probability: float) -> None:
    values, block_N, process_B = data
    weights_RB = stats.block_weights(process_B, seed=3, draws=20)
    found = stats.quantile_draws(stats.pool(values, block_N, process_B), weights_RB, probability)
    for weights_B, quantile in zip(weights_RB.astype(int), found, strict=True):
        resampled = np.repeat(values, weights_B[block_N])
        assert quantile == np.quantile(resampled, probability, method="inverted_cdf")


@given(blocked())
@CALM
def test_blocks_are_drawn_inside_their_own_process(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    _, _, process_B = data
    weights_RB = stats.block_weights(process_B, seed=5, draws=50)
    for process in np.unique(process_B):
        mine = process_B == process
        assert (weights_RB[:, mine].sum(axis=1) == mine.sum()).all()


@given(blocked(), st.sampled_from([0.25, 0.5, 0.9]))
@CALM
def test_block_quantiles_are_numpys(data: tuple[np.ndarray, np.ndarray, np.ndarray], probability: float) -> None:
    values, block_N, process_B = data
    found = stats.block_quantiles(stats.pool(values, block_N, process_B), probability)
    expected = [np.quantile(values[block_N == b], probability) for b in range(process_B.size)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(blocked(), st.sampled_from([0.5, 0.9, 0.99]), st.floats(0, 0.2))
@CALM
def test_an_interval_holds_its_estimate_and_scales_with_its_unit(
    data: tuple[np.ndarray, np.ndarray, np.ndarray], probability: float, log_sd: float
) -> None:
    values, block_N, process_B = data
    spread = stats.Spread(log_sd=log_sd, dof=5)
    plain = stats.quantile_interval(stats.pool(values, block_N, process_B), probability, spread=spread)
    assert plain.low <= plain.value <= plain.high
    assert plain.value == pytest.approx(np.quantile(values, probability))
    scaled = stats.quantile_interval(stats.pool(values * 8, block_N, process_B), probability, spread=spread)
    assert (scaled.low, scaled.value, scaled.high) == pytest.approx((8 * plain.low, 8 * plain.value, 8 * plain.high))


def test_the_same_seed_gives_the_same_interval_and_another_nearly_so() -> None:
    rng = np.random.default_rng(2)
    values, block_N, process_B = rng.gamma(9, size=2000), np.repeat(np.arange(40), 50), np.arange(40) // 20
    pooled = stats.pool(values, block_N, process_B)
    first, again, other = (stats.quantile_interval(pooled, 0.5, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert other.low == pytest.approx(first.low, rel=0.01)


def test_interval_of_independent_runs_is_scipys() -> None:
    from scipy import stats as reference

    values = np.random.default_rng(3).gamma(4, size=200)
    found = stats.quantile_interval(stats.pool(values, np.arange(200), np.zeros(200)), 0.5)
    expected = reference.bootstrap((values,), np.median, method="percentile", n_resamples=5000, rng=0).confidence_interval
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.15 * width)
    assert found.high == pytest.approx(expected.high, abs=0.15 * width)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [10, 60, 500, 20_000])
def test_order_statistic_limits_are_the_binomial_ones(probability: float, n: int) -> None:
    from scipy import stats as reference

    low, high = stats.order_statistic_limits(np.arange(n, dtype=float), probability, 0.95)
    exact = reference.binom(n, probability)
    slack = 0 if n <= 2000 else 2
    assert low == pytest.approx(max(exact.ppf(0.025) - 1, 0), abs=slack)
    assert high == pytest.approx(min(exact.ppf(0.975), n - 1), abs=slack)


def test_interval_of_blocks_is_wider_than_of_independent_runs_and_a_single_block_has_one() -> None:
    rng = np.random.default_rng(4)
    values = (np.exp(rng.normal(0, 0.1, 20))[:, None] * np.exp(rng.normal(0, 0.01, (20, 50)))).ravel()
    blocks = stats.quantile_interval(stats.pool(values, np.repeat(np.arange(20), 50), np.zeros(20)), 0.5)
    alone = stats.quantile_interval(stats.pool(values, np.arange(1000), np.zeros(1000)), 0.5)
    single = stats.quantile_interval(stats.pool(values, np.zeros(1000, dtype=int), np.zeros(1)), 0.5)
    assert stats.half_width(blocks) > 1.5 * stats.half_width(alone)
    assert single.low < single.value < single.high


def autocorrelated(rng: np.random.Generator, n_blocks: int, n_runs: int, block_sd: float) -> np.ndarray:
    """Times of median 100: every block has its own level, and a run in it resembles the one before."""
    noise = rng.normal(size=(n_blocks, n_runs))
    for i in range(1, n_runs):
        noise[:, i] = 0.7 * noise[:, i - 1] + math.sqrt(1 - 0.7**2) * noise[:, i]
    return 100 * np.exp(rng.normal(0, block_sd, n_blocks)[:, None] + 0.03 * noise)


@pytest.mark.parametrize(("n_blocks", "n_processes"), [(12, 1), (20, 2), (40, 2)])
def test_nominal_95_percent_intervals_cover_92_to_98_percent(n_blocks: int, n_processes: int) -> None:
    rng = np.random.default_rng(n_blocks)
    block_N, process_B = np.repeat(np.arange(n_blocks), 20), np.arange(n_blocks) * n_processes // n_blocks
    hits = 0
    for trial in range(400):
        values = autocorrelated(rng, n_blocks, 20, 0.02).ravel()
        interval = stats.quantile_interval(stats.pool(values, block_N, process_B), 0.5, seed=trial, draws=300)
        hits += interval.low <= 100 <= interval.high
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize("n_rounds", [10, 30])
def test_paired_ratios_cover_and_do_not_see_drift(n_rounds: int) -> None:
    rng = np.random.default_rng(6)
    hits = 0
    for trial in range(600):
        drift = np.linspace(0, 1, n_rounds)  # the machine slows by a factor of e; both sides of a round see it
        log_ratio = math.log(1.1) + (drift + rng.normal(0, 0.02, n_rounds)) - drift
        interval = stats.paired_ratio_interval(log_ratio, np.arange(n_rounds) * 2 // n_rounds, seed=trial, draws=400)
        hits += interval.low <= 1.1 <= interval.high
    assert 0.92 <= hits / 600 <= 0.985


# --- restarts -------------------------------------------------------------------------------


def artifacts(rng: np.random.Generator, n: int, restart_sd: float, n_processes: int = 2) -> list[stats.Restarts]:
    process_B = np.arange(20) * n_processes // 20
    return [
        stats.Restarts(log_B=rng.normal(0, restart_sd, n_processes)[process_B] + rng.normal(0, 0.005, 20), process_B=process_B)
        for _ in range(n)
    ]


@pytest.mark.parametrize("restart_sd", [0.0, 0.02, 0.1])
def test_spread_between_restarts_is_found_by_pooling_over_artifacts(restart_sd: float) -> None:
    rng = np.random.default_rng(7)
    typical = np.median([min(s.log_sd for s in stats.restart_spreads(artifacts(rng, 10, restart_sd))) for _ in range(60)])
    assert typical == pytest.approx(restart_sd, rel=0.35, abs=0.001)


def test_an_artifact_whose_restarts_differ_more_than_usual_keeps_its_own_spread() -> None:
    rng = np.random.default_rng(8)
    moody = artifacts(rng, 1, 0.0)[0]
    moody = stats.Restarts(log_B=moody.log_B + 0.3 * moody.process_B, process_B=moody.process_B)
    spreads = stats.restart_spreads([*artifacts(rng, 9, 0.001), moody])
    assert spreads[-1].log_sd == pytest.approx(0.3 / math.sqrt(2), rel=0.1)
    assert max(spread.log_sd for spread in spreads[:-1]) < 0.02


def test_one_process_says_nothing_about_restarts() -> None:
    rng = np.random.default_rng(9)
    assert stats.restart_spreads(artifacts(rng, 3, 0.1, n_processes=1)) == [stats.NO_SPREAD] * 3
    assert stats.restart_spreads([]) == []
    assert stats.own_spread(artifacts(rng, 1, 0.1, n_processes=1)[0]) == (0.0, 1.0)


def test_restarts_that_only_seem_to_differ_are_told_from_those_that_do() -> None:
    rng = np.random.default_rng(12)
    seeming = [stats.own_spread(artifact)[1] for artifact in artifacts(rng, 400, 0.0)]
    real = [stats.own_spread(artifact)[1] for artifact in artifacts(rng, 100, 0.1)]
    assert np.mean(np.array(seeming) < 0.01) < 0.06  # blocks are few and their spread is taken robustly
    assert np.mean(np.array(real) < 0.01) > 0.9


def test_intervals_with_the_pooled_spread_cover_the_median_over_restarts() -> None:
    rng = np.random.default_rng(10)
    hits = trials = 0
    process_B = np.arange(12) // 6
    for _ in range(60):
        levels = rng.normal(0, 0.03, (10, 2))
        tables = [100 * np.exp(level[process_B][:, None] + rng.normal(0, 0.01, (12, 20))) for level in levels]
        rows = [stats.Restarts(log_B=np.log(np.median(table, axis=1)), process_B=process_B) for table in tables]
        for table, spread in zip(tables, stats.restart_spreads(rows), strict=True):
            pooled = stats.pool(table.ravel(), np.repeat(np.arange(12), 20), process_B)
            interval = stats.quantile_interval(pooled, 0.5, spread=spread, draws=200)
            hits += interval.low <= 100 <= interval.high
            trials += 1
    assert 0.92 <= hits / trials <= 1.0
