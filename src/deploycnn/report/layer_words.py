"""What backends call the numbers of a layer, in the recipe's words."""

from __future__ import annotations

import re
from collections import Counter

from deploycnn.types import Evidence

_SHORT = (
    (r"u?int8|[uiq]?u?8|qint8|s8|i8", "int8"),
    (r"tfloat32|tf32", "tf32"),
    (r"bfloat16|bf16", "bf16"),
    (r"float16|fp16|f16|half", "fp16"),
    (r"float32|fp32|f32|float", "fp32"),
)


def short(precision: str) -> str:
    """The recipe's word for what a backend calls its numbers; the backend's own word where there is none."""
    for pattern, name in _SHORT:
        if re.fullmatch(pattern, precision.strip().lower()):
            return name
    return precision


def kinds_found(said: Evidence | None) -> dict[str, int]:
    """How many convolutions and matrix products ran in what; empty where nothing is said."""
    return dict(Counter(short(layer.precision) for layer in said.layers)) if said else {}
