"""Printed quantities: never a zero that is none, never another order than the values'."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploycnn import units

positive = st.floats(1e-12, 1e12)


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0, "0 ns"),
        (52.4e-6, "52.4 µs"),
        (1.3e-3, "1.30 ms"),
        (4.0, "4.00 s"),
        (1e-9, "1.00 ns"),
        (3e-12, "0.00300 ns"),
        (0.9994e-3, "999 µs"),
        (0.9999e-3, "1.00 ms"),
        (0.99996, "1.00 s"),
        (59.99, "60.0 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (125, "2 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.9, "1 h 00 min"),
        (3780, "1 h 03 min"),
        (90_000, "25 h 00 min"),
        (-52.4e-6, "-52.4 µs"),
        (-125, "-2 min 05 s"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_seconds(value_s: float, text: str) -> None:
    assert units.seconds(value_s) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (248_000, "248 kB"),
        (999_950, "1.00 MB"),
        (1_310_000, "1.31 MB"),
        (2.5e9, "2.50 GB"),
    ],
)
def test_sizes(value: float, text: str) -> None:
    assert units.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234567, "1,230,000"), (0.000123456, "0.000123"), (9.999, "10.0"), (99.95, "100"), (-0.5, "-0.500")]
)
def test_significant(value: float, text: str) -> None:
    assert units.significant(value) == text.replace("9.999", "10.0")


def test_the_rest() -> None:
    assert units.rate(11_234.0, "images") == "11,200 images/s"
    assert units.percent(0.69514) == "69.51 %"
    assert units.points(-0.00113) == "-0.11 pp"
    assert units.points(0.0011) == "+0.11 pp"
    assert units.points(0.0) == units.points(-0.0) == units.points(-1e-9) == "0.00 pp"
    assert units.ratio(0.8437) == "0.844x"
    assert units.ratio(3.8) == "3.80x"


def number(text: str) -> float:
    return float(re.sub(r"[^\d.-]", "", text.split()[0]))


@given(positive)
def test_nothing_is_rounded_to_zero(value: float) -> None:
    for text in (units.seconds(value), units.significant(value), units.ratio(value), units.rate(value, "images")):
        assert re.search(r"[1-9]", text), text
        assert "e" not in text.split()[0].removesuffix("x"), "never scientific"


SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@given(st.floats(1e-12, 119.0))
def test_a_printed_duration_is_within_half_a_digit(value_s: float) -> None:
    text = units.seconds(value_s)
    digits, unit = text.split()
    assert float(digits) * SECONDS[unit] == pytest.approx(value_s, rel=0.0051)


@given(st.floats(120, 1e7))
def test_a_long_duration_is_within_its_last_part(value_s: float) -> None:
    text = units.seconds(value_s)
    parts = {unit: float(digits) for digits, unit in re.findall(r"(\d+) (h|min|s)", text)}
    total_s = 3600 * parts.get("h", 0) + 60 * parts.get("min", 0) + parts.get("s", 0)
    assert total_s == pytest.approx(value_s, abs=30.001 if "h" in parts else 0.5001)
    assert parts.get("s", 0) < 60
    assert parts.get("min", 0) < 60


@given(st.integers(0, 10**14))
def test_a_printed_size_is_within_half_a_digit(value: int) -> None:
    digits, unit = units.size(value).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert float(digits.replace(",", "")) * scale == pytest.approx(value, rel=0.0051)


@given(positive, positive)
def test_printing_keeps_the_order(one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert number(units.significant(small)) <= number(units.significant(large))


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_signs_are_kept(value: float) -> None:
    assert units.significant(value).startswith("-") == (value < 0)
    assert units.seconds(value).startswith("-") == (value < 0)


@given(st.integers(1, 6), positive)
def test_digits_asked_for_are_given(digits: int, value: float) -> None:
    assert float(units.significant(value, digits).replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
