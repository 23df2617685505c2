"""How quantities are printed. Seconds and bytes inside; this file is the only place that formats them."""

from __future__ import annotations

import math

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in scientific notation, never rounded to zero."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))  # 9.999 has become 10.00
    return f"{rounded:,.{max(decimals, 0)}f}"


def seconds(value_s: float) -> str:
    """A duration for people: `52.4 µs`, `1.30 ms`, `4.00 s`, `2 min 05 s`, `1 h 03 min`."""
    if not math.isfinite(value_s):
        return str(value_s)
    sign = "-" if value_s < 0 else ""
    size_s = abs(value_s)
    if size_s >= 3599.5:
        minutes = round(size_s / 60)
        return f"{sign}{minutes // 60} h {minutes % 60:02d} min"
    if size_s >= 119.5:
        whole_s = round(size_s)
        return f"{sign}{whole_s // 60} min {whole_s % 60:02d} s"
    for scale, unit in _SECONDS:
        if size_s >= scale * 0.9995 or unit == "ns":
            return f"{sign}{significant(size_s / scale)} {unit}"
    raise AssertionError("unreachable: the last unit takes everything")


def size(value_bytes: float) -> str:
    """A size for people, in decimal units: `248 kB`, `1.31 MB`."""
    for scale, unit in _BYTES:
        if abs(value_bytes) >= scale * 0.9995 or unit == "B":
            digits = f"{value_bytes:.0f}" if unit == "B" else significant(value_bytes / scale)
            return f"{digits} {unit}"
    raise AssertionError("unreachable: the last unit takes everything")


def rate(per_second: float, noun: str) -> str:
    """A rate for people: `11,200 images/s`."""
    return f"{significant(per_second)} {noun}/s"


def percent(share: float, decimals: int = 2) -> str:
    """A share between 0 and 1 as a percentage: `69.51 %`."""
    return f"{100 * share:.{decimals}f} %"


def points(difference: float, decimals: int = 2) -> str:
    """A difference of two shares in percentage points, signed: `-0.11 pp`."""
    text = f"{100 * difference:+.{decimals}f} pp"
    return text[1:] if float(text[:-3]) == 0 else text  # nothing lost, nothing gained: no sign


def ratio(value: float) -> str:
    """A ratio: `0.84x`."""
    return f"{significant(value)}x"
