"""From an estimate to a verdict: chance, noise floor and limit held against one another, over all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploycnn import stats
from deploycnn.report.compare_values import Change, Verdict


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """A row before it is judged, for which chance plays a part. Logarithms for times, shares of images for top1."""

    change: Change
    p_value: float
    worse: float  # how much worse it got; negative: better
    worst: float  # the interval's bad end, likewise
    best: float
    floor: float  # the noise floor: nothing smaller is called a difference
    limit: float  # how much worse it may get


def judged(rows: Sequence[Change | Undecided], confidence: float) -> list[Change]:
    """Verdicts of all rows, with p-values adjusted over those that chance plays a part in."""
    adjusted = iter(stats.holm([row.p_value for row in rows if isinstance(row, Undecided)]))
    return [_verdict(row, next(adjusted), confidence) if isinstance(row, Undecided) else row for row in rows]


def _verdict(row: Undecided, p_value: float, confidence: float) -> Change:
    improved: Verdict = "better" if row.change.metric == "top1" else "faster"
    worsened: Verdict = "worse" if row.change.metric == "top1" else "slower"
    significant = p_value < 1 - confidence
    called = significant and abs(row.worse) > row.floor
    verdict: Verdict
    reason = row.change.reason
    if called:
        verdict = worsened if row.worse > 0 else improved
    elif max(row.worst, -row.best) <= row.limit and row.floor <= row.limit:
        verdict = "same"
    else:
        verdict = "inconclusive"
        why = "smaller than the noise floor of the two runs" if significant else "the interval is too wide to tell"
        reason = "; ".join(filter(None, [reason, why]))
    return row.change.model_copy(
        update={
            "verdict": verdict,
            "p_value": p_value,
            "regression": called and row.worse > row.limit,
            "open": verdict == "inconclusive" and max(row.worst, row.floor) > row.limit,
            "reason": reason,
        }
    )
