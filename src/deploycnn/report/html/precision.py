"""What low precision rests on: layers chosen one by one, calibration images and their influence, and why it is slow where it is."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn.record import Record
from deploycnn.report import low_precision
from deploycnn.report.low_precision import ChoiceTable, SpreadRow
from deploycnn.report.remarks import Remark


@dataclass(frozen=True, kw_only=True)
class Precision:
    """See the module."""

    slower: tuple[Remark, ...]
    choices: tuple[ChoiceTable, ...]
    spreads: tuple[SpreadRow, ...]
    audit: tuple[tuple[str, str], ...]

    @property
    def any(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.slower or self.choices or self.spreads or self.audit)


def precision_view(record: Record) -> Precision:
    """Of one record."""
    return Precision(
        slower=tuple(low_precision.slower(record)),
        choices=tuple(low_precision.choices(record)),
        spreads=tuple(low_precision.spreads(record)),
        audit=tuple(low_precision.audit(record)),
    )
