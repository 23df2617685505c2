"""Where two tensors part: figures that a plain loop finds, and faults of every kind that a number format has."""

from __future__ import annotations

import numpy as np
import pytest

from deploycnn.validate.nodes import channel_factors, difference, figures, tolerance_of

RNG = np.random.default_rng(0)
REFERENCE = RNG.normal(size=(6, 4, 3, 3)).astype(np.float32)


def row(reference: np.ndarray, found: np.ndarray, precision: str = "fp32", limits: tuple[float, float] | None = None) -> object:
    return figures(("conv", "Conv", "x"), reference, found, found, precision, limits)


def test_the_same_tensor_is_no_difference() -> None:
    same = difference(REFERENCE, REFERENCE)
    assert (same.cosine, same.relative_error, same.nonfinite) == (1, 0, 0)
    assert difference(np.zeros((2, 3)), np.zeros((2, 3))).relative_error == 0


def test_figures_are_those_of_a_plain_loop() -> None:
    found = REFERENCE + RNG.normal(size=REFERENCE.shape).astype(np.float32) * 0.1
    a, b = found.astype(float).ravel().tolist(), REFERENCE.astype(float).ravel().tolist()
    apart = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
    norms = [sum(x * x for x in side) ** 0.5 for side in (a, b)]
    said = difference(found, REFERENCE)
    assert said.relative_error == pytest.approx(apart / norms[1])
    assert said.cosine == pytest.approx(sum(x * y for x, y in zip(a, b, strict=True)) / (norms[0] * norms[1]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_and_breaks_every_tolerance(bad: float) -> None:
    found = REFERENCE.copy()
    found[0, 0] = bad
    said = row(REFERENCE, found)
    assert said.ran.nonfinite == pytest.approx(9 / REFERENCE.size)
    assert said.error == float("inf")
    assert np.isfinite(said.ran.relative_error)


@pytest.mark.parametrize(
    ("precision", "value", "overflows"), [("fp16", 7e4, True), ("int8+fp16", 7e4, True), ("bf16", 7e4, False), ("fp32", 7e4, False)]
)
def test_overflow_is_judged_by_the_type_and_not_by_what_a_cpu_computes(precision: str, value: float, overflows: bool) -> None:
    reference = REFERENCE.copy()
    reference[0, 0, 0, 0] = value
    said = row(reference, reference, precision)
    assert (said.overflow > 0) == overflows
    assert (said.error == float("inf")) == overflows


def test_subnormal_values_are_counted() -> None:
    reference = np.full((2, 4), 1e-6, np.float32)
    reference[0, 0] = 0
    assert row(reference, reference, "fp16").subnormal == pytest.approx(7 / 8)
    assert row(reference, reference, "bf16").subnormal == 0


def test_saturation_is_what_lies_beyond_the_range_by_more_than_a_rounding() -> None:
    reference = np.array([[-1.0, 0.0, 1.0, 1.003, 2.0]], np.float32)
    assert row(reference, reference, "int8", (-1.0, 1.0)).saturated == pytest.approx(1 / 5)
    assert row(reference, reference, "int8").saturated == 0


def test_scaled_channels_are_the_same_up_to_a_factor_and_noise_stays() -> None:
    factor_C = np.array([0.01, 1.0, 7.0, 300.0]).reshape(1, 4, 1, 1)
    assert difference(REFERENCE * factor_C, REFERENCE).relative_error > 10
    assert difference(REFERENCE * factor_C, REFERENCE, scaled=True).relative_error < 1e-6
    assert channel_factors(REFERENCE * factor_C, REFERENCE).ravel() == pytest.approx(factor_C.ravel())
    noisy = (REFERENCE + RNG.normal(size=REFERENCE.shape)) * factor_C
    assert difference(noisy, REFERENCE, scaled=True).relative_error > 0.3
    assert np.array_equal(channel_factors(np.ones((2, 3)), np.zeros((2, 3))), np.ones((1, 3))), "a dead channel keeps its size"


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 1e-2), ("bf16", 5e-2), ("int8", 0.1), ("int8-auto", 0.1), ("int8+fp16", 0.1)]
)
def test_every_precision_has_a_tolerance(precision: str, tolerance: float) -> None:
    assert tolerance_of(precision, 1e-4) == tolerance
