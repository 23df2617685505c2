"""What templates are handed."""

from __future__ import annotations

import math
from dataclasses import dataclass

MISSING = "–"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A figure with what stands behind it. `sort` orders it in a table; what is missing comes last."""

    text: str
    tip: str = ""
    sort: float = math.inf
    kind: str = ""  # CSS classes

    @property
    def order(self) -> str:
        """For `data-sort`: "" where there is nothing to sort by."""
        return "" if math.isinf(self.sort) else repr(self.sort)


NONE = Number(text=MISSING)
