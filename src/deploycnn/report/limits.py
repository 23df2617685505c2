"""What keeps a cell from being shipped: what it lacks by itself, and the limits that it breaks, from the record alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from deploycnn import units
from deploycnn.recipe import RecommendOptions, ValidateOptions
from deploycnn.record import Accuracy, Cell, Latency, Record
from deploycnn.report.remarks import plain
from deploycnn.types import Value, Verdict

ENOUGH_IMAGES = 100  # validate.accuracy proves nothing on fewer, whatever the limit


class Breach(Value):
    """A limit that is not met."""

    text: str
    excess: float  # what was found over the limit, above 1; inf where nothing is known


def unproved(record: Record, cell: Cell, max_drop_pp: float | None) -> str:
    """Why a cell can never be shipped, "" where nothing is wrong with it but perhaps its limits."""
    outcome = cell.outcome
    if outcome.state == "deferred":
        return f"deferred: waits for {plain(outcome.waits_for)}"
    if outcome.state == "skipped":
        return f"skipped: {plain(outcome.reason)}"
    if outcome.state == "failed":
        return f"failed in {outcome.stage}: {plain(outcome.reason.splitlines()[0] if outcome.reason else '')}"
    if cell.evidence is None or cell.evidence.state != "pass":
        return f"evidence: {plain(cell.evidence.reason)}" if cell.evidence else "what ran was not proved"
    if cell.accuracy is None:
        return "accuracy was not validated"
    verdict = accuracy_verdict(record, cell, cell.accuracy, max_drop_pp)
    if verdict.state != "pass" and not _only_the_drop(record, cell, cell.accuracy):
        return f"accuracy: {plain(verdict.reason)}"
    return ""


def breaches(record: Record, cell: Cell, latency: Latency | None, options: RecommendOptions, max_drop_pp: float | None) -> list[Breach]:
    """Limits that a proved cell breaks at the batch size judged."""
    found = [_drop(record, cell, max_drop_pp), _p99(latency, options), _memory(cell, options), _size(cell, options)]
    return [breach for breach in found if breach is not None]


def accuracy_verdict(record: Record, cell: Cell, accuracy: Accuracy, max_drop_pp: float | None) -> Verdict:
    """The record's verdict, or the one under another limit: the upper end of the paired loss decides, as in validation.

    NaN, other logits than the reference's, one answer for all images and too few images stay what they are.
    """
    if not _only_the_drop(record, cell, accuracy):
        return accuracy.verdict
    if cell.name == record.reference:
        return Verdict(state="pass", reason="it is the reference: it loses nothing against itself")
    if max_drop_pp is None:
        return accuracy.verdict
    drop, limit = accuracy.drop, max_drop_pp / 100
    said = f"top-1 may lose up to {100 * max(drop.high, 0.0):.2f} pp; limit {max_drop_pp:.2f} pp"
    if limit == 0:
        lost = len(accuracy.right_to_wrong)
        return Verdict(state="fail" if lost else "pass", reason=f"{lost:,} images are lost, where none may be" if lost else "none is lost")
    if drop.high <= limit:
        return Verdict(state="pass", reason=said)
    return Verdict(state="fail" if drop.low > limit else "not enough images", reason=said)


def _only_the_drop(record: Record, cell: Cell, accuracy: Accuracy) -> bool:
    """Whether nothing but the limit on lost top-1 decided the verdict."""
    if accuracy.verdict.state == "pass":
        return True
    validated = ValidateOptions.model_validate(record.recipe.get("validate", {}))
    right = [row.top1 for row in accuracy.per_class if row.n_images]
    one_answer = len(right) > 1 and sorted(right)[-2:] == [0.0, 1.0]
    other_logits = cell.precision == "fp32" and accuracy.relative_logit_error > validated.logit_tolerance
    if accuracy.nonfinite_images or one_answer or other_logits or accuracy.n_images < ENOUGH_IMAGES:
        return False
    limit = validated.max_drop_pp / 100
    broken = accuracy.drop.high > limit if limit else bool(accuracy.right_to_wrong)
    return accuracy.verdict.state in ("fail", "not enough images") and broken


def _drop(record: Record, cell: Cell, max_drop_pp: float | None) -> Breach | None:
    accuracy = cell.accuracy
    if accuracy is None:
        return None
    verdict = accuracy_verdict(record, cell, accuracy, max_drop_pp)
    if verdict.state == "pass":
        return None
    limit_pp = max_drop_pp if max_drop_pp is not None else ValidateOptions.model_validate(record.recipe.get("validate", {})).max_drop_pp
    return Breach(text=f"accuracy: {plain(verdict.reason)}", excess=100 * accuracy.drop.high / limit_pp if limit_pp else math.inf)


def _p99(latency: Latency | None, options: RecommendOptions) -> Breach | None:
    if options.p99_ms is None:
        return None
    limit_s = options.p99_ms / 1e3
    if latency is None or latency.p99_s is None:
        return Breach(text=f"p99 is not known (too few samples), limit {units.seconds(limit_s)}", excess=math.inf)
    return _over("p99", latency.p99_s.value, limit_s, units.seconds)


def _memory(cell: Cell, options: RecommendOptions) -> Breach | None:
    if options.memory_mb is None:
        return None
    if cell.loading is None:
        return Breach(text="memory is not known", excess=math.inf)
    return _over("peak memory", cell.loading.peak_bytes, options.memory_mb * 1e6, units.size)


def _size(cell: Cell, options: RecommendOptions) -> Breach | None:
    if options.size_mb is None or cell.artifact is None:
        return None
    return _over("size", cell.artifact.size_bytes, options.size_mb * 1e6, units.size)


def _over(what: str, found: float, limit: float, text: Callable[[float], str]) -> Breach | None:
    if found <= limit:
        return None
    return Breach(text=f"{what} {text(found)} is over the limit of {text(limit)}", excess=found / limit)


def limits_in_words(record: Record, options: RecommendOptions, max_drop_pp: float | None) -> tuple[str, ...]:
    """Every limit that was judged, the strictest reading of the recipe included."""
    recorded_pp = ValidateOptions.model_validate(record.recipe.get("validate", {})).max_drop_pp
    drop_pp = recorded_pp if max_drop_pp is None else max_drop_pp
    words = [f"top-1 loss at most {units.significant(drop_pp)} pp"]
    if options.p99_ms is not None:
        words.append(f"p99 at most {units.seconds(options.p99_ms / 1e3)}")
    if options.memory_mb is not None:
        words.append(f"peak memory at most {units.size(options.memory_mb * 1e6)}")
    if options.size_mb is not None:
        words.append(f"size at most {units.size(options.size_mb * 1e6)}")
    return tuple(words)
