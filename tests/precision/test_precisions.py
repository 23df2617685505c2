"""Finding precisions, and thresholds from histograms."""

from __future__ import annotations

import numpy as np
import pytest

from deploycnn.errors import RecipeError
from deploycnn.precision import precision_class, precision_classes
from deploycnn.precision._thresholds import BINS, entropy_threshold, percentile_range


def test_precisions_are_found_by_scanning() -> None:
    assert {"fp32", "fp16", "bf16", "int8", "int8+fp16"} <= set(precision_classes())
    assert all(name == cls.name for name, cls in precision_classes().items())
    assert {name for name, cls in precision_classes().items() if cls.exact} == {"fp32"}
    assert {"int8", "int8+fp16"} <= {name for name, cls in precision_classes().items() if cls.quantised}


@pytest.mark.parametrize(("wrong", "right"), [("fp-16", "fp16"), ("int_8", "int8"), ("bfloat16", "bf16")])
def test_a_wrong_name_gets_the_nearest_right_one(wrong: str, right: str) -> None:
    with pytest.raises(RecipeError, match=f"did you mean {right}"):
        precision_class(wrong)


def histogram(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    low, high = float(min(values.min(), 0)), float(max(values.max(), 0))
    return np.histogram(values, bins=BINS, range=(low, high))[0], low, high


@pytest.mark.parametrize("percentile", [99.0, 99.9, 100.0])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_percentiles_are_those_of_the_values(percentile: float, shift: float) -> None:
    values = np.random.default_rng(0).normal(shift, 1, 200_000)
    counts, low, high = histogram(values)
    first, last = percentile_range(counts, low, high, percentile)
    width = (high - low) / BINS
    assert first == pytest.approx(min(0, np.percentile(values, 100 - percentile)), abs=2 * width)
    assert last == pytest.approx(max(0, np.percentile(values, percentile)), abs=2 * width)


def test_entropy_cuts_outliers_and_keeps_what_is_uniform() -> None:
    rng = np.random.default_rng(0)
    with_outliers = np.concatenate([rng.normal(0, 1, 100_000), [60.0, -55.0]])
    low, high = entropy_threshold(*histogram(with_outliers))
    assert 2.5 < high < 12
    assert -12 < low < -2.5
    uniform = rng.uniform(-1, 1, 100_000)
    low, high = entropy_threshold(*histogram(uniform))
    assert high > 0.9
    assert low < -0.9


def test_entropy_after_relu_is_not_decided_by_the_zeros() -> None:
    values = np.maximum(np.random.default_rng(0).normal(-2, 1, 500_000), 0)
    low, high = entropy_threshold(*histogram(values))
    assert low == 0
    assert high > 0.4 * values.max()


@pytest.mark.parametrize("method", [entropy_threshold, lambda *given: percentile_range(*given, 99.9)])
@pytest.mark.parametrize("values", [np.zeros(100), np.ones(100), np.full(100, -2.0)], ids=["zeros", "ones", "negative"])
def test_tensors_of_one_value_keep_a_range_that_holds_it(method: object, values: np.ndarray) -> None:
    counts, low, high = histogram(values) if values.any() else (np.zeros(BINS, int), 0.0, 0.0)
    first, last = method(counts, low, high)  # type: ignore[operator]
    width = (high - low) / BINS
    assert first - width <= values[0] <= last + width
