"""Is the artifact still the same classifier: all test images through it, against the fp32 reference on the same images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploycnn import units
from deploycnn.errors import DataError, ModelError
from deploycnn.recipe import ValidateOptions
from deploycnn.record import Accuracy, ClassAccuracy
from deploycnn.types import Interval, Verdict
from deploycnn.validate.proportions import images_needed, paired_difference, wilson

MIN_IMAGES = 100  # below this nothing passes, however wide the limit: every class must have had a chance to break
ECE_BINS = 15  # Guo et al., "On Calibration of Modern Neural Networks", 2017


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """What one side said about the N images."""

    logits_NK: NDArray[np.float64]
    finite_N: NDArray[np.bool_]
    class_N: NDArray[np.int64]  # -1 where a logit is NaN or inf: such an answer is never right
    right_N: NDArray[np.bool_]
    confidence_N: NDArray[np.float64]  # softmax of the winner, 0 where not finite


def judge(
    logits_NK: np.ndarray,
    reference_logits_NK: np.ndarray,
    labels_N: np.ndarray,
    classes: tuple[str, ...],
    options: ValidateOptions,
    *,
    logit_tolerance: float | None = None,
) -> Accuracy:
    """Accuracy, parity and the verdict on them.

    The verdict is "pass" where the one-sided bound on the paired loss of top-1, at `options.confidence`, is within
    `options.max_drop_pp`; a limit of 0 means that none of these images may be lost. `Accuracy.drop` carries the
    two-sided interval whose upper end is that bound, so that the verdict can be read off it. NaN or inf, a relative
    logit error above `logit_tolerance`, or one answer for all images fail; images or answers of one class only prove
    nothing, nor do fewer than MIN_IMAGES.

    Args:
        logits_NK: float, of the artifact.
        reference_logits_NK: float, of the fp32 reference on the same images.
        labels_N: integers, 0 to K - 1.
        classes: K names.
        logit_tolerance: largest relative logit error, for artifacts that claim the reference's arithmetic; None: any.

    Raises:
        ModelError: logits of another shape than the reference's, or than there are classes.
        DataError: labels that do not fit.
    """
    _check_shapes(logits_NK, reference_logits_NK, labels_N, classes)
    labels_N = labels_N.astype(np.int64)
    mine, reference = _answers(logits_NK, labels_N), _answers(reference_logits_NK, labels_N)
    lost_N = np.flatnonzero(reference.right_N & ~mine.right_N)
    won_N = np.flatnonzero(~reference.right_N & mine.right_N)
    n = len(labels_N)
    drop = paired_difference(len(lost_N), len(won_N), n, confidence=_two_sided(options.confidence))
    relative, largest = _logit_errors(mine, reference)
    agreement = float(np.mean(mine.class_N == reference.class_N)) if n else 0.0
    verdict = (
        _unusable(mine, reference, labels_N, classes)
        or _other_arithmetic(relative, logit_tolerance)
        or _proves_nothing(mine, reference, labels_N, classes, agreement, options)
        or _within_limit(drop, len(lost_N), len(won_N), n, options)
    )
    return Accuracy(
        n_images=n,
        top1=wilson(int(mine.right_N.sum()), n, options.confidence),
        reference_top1=_mean(reference.right_N),
        drop=drop,
        agreement=agreement,
        right_to_wrong=tuple(lost_N.tolist()),
        wrong_to_right=tuple(won_N.tolist()),
        per_class=_per_class(mine, reference, labels_N, classes),
        relative_logit_error=relative,
        max_logit_error=largest,
        nonfinite_images=int((~mine.finite_N).sum()),
        mean_confidence=_mean(mine.confidence_N[mine.finite_N]),
        reference_mean_confidence=_mean(reference.confidence_N[reference.finite_N]),
        ece=_calibration_error(mine),
        reference_ece=_calibration_error(reference),
        verdict=verdict,
    )


# --- figures ------------------------------------------------------------------------------


def _answers(logits_NK: np.ndarray, labels_N: NDArray[np.int64]) -> _Answers:
    wide_NK = logits_NK.astype(np.float64)
    finite_N: NDArray[np.bool_] = np.all(np.isfinite(wide_NK), axis=1)
    wide_NK[~finite_N] = 0.0
    class_N = np.where(finite_N, wide_NK.argmax(axis=1), -1)
    confidence_N = 1.0 / np.exp(wide_NK - wide_NK.max(axis=1, keepdims=True)).sum(axis=1)
    return _Answers(
        logits_NK=wide_NK,
        finite_N=finite_N,
        class_N=class_N,
        right_N=class_N == labels_N,
        confidence_N=np.where(finite_N, confidence_N, 0.0),
    )


def _logit_errors(mine: _Answers, reference: _Answers) -> tuple[float, float]:
    """Relative error in the 2-norm, and the largest absolute one, over images that are finite on both sides."""
    both_N = mine.finite_N & reference.finite_N
    if not both_N.any():
        return 1.0, 0.0  # nothing is left to compare, so nothing of the reference is reproduced
    reference_MK = reference.logits_NK[both_N]
    error_MK = mine.logits_NK[both_N] - reference_MK
    scale = max(float(np.linalg.norm(reference_MK)), 1e-30)
    return float(np.linalg.norm(error_MK)) / scale, float(np.abs(error_MK).max())


def _calibration_error(answers: _Answers) -> float:
    """Expected calibration error: |accuracy - confidence| over equal-width bins of confidence, by their share of images."""
    confidence_M, right_M = answers.confidence_N[answers.finite_N], answers.right_N[answers.finite_N]
    if not len(confidence_M):
        return 0.0
    bin_M = np.minimum((confidence_M * ECE_BINS).astype(int), ECE_BINS - 1)
    gap_B = np.bincount(bin_M, weights=right_M - confidence_M, minlength=ECE_BINS)
    return float(np.abs(gap_B).sum() / len(confidence_M))


def _per_class(mine: _Answers, reference: _Answers, labels_N: NDArray[np.int64], classes: tuple[str, ...]) -> tuple[ClassAccuracy, ...]:
    rows = []
    for index, name in enumerate(classes):
        of_class_N = labels_N == index
        rows.append(
            ClassAccuracy(
                name=name,
                n_images=int(of_class_N.sum()),
                top1=_mean(mine.right_N[of_class_N]),
                reference_top1=_mean(reference.right_N[of_class_N]),
            )
        )
    return tuple(rows)


def _mean(values_N: np.ndarray) -> float:
    return float(values_N.mean()) if len(values_N) else 0.0


# --- verdicts, in the order in which they are asked -----------------------------------------


def _unusable(mine: _Answers, reference: _Answers, labels_N: NDArray[np.int64], classes: tuple[str, ...]) -> Verdict | None:
    """No images, NaN or inf, or one answer to everything."""
    n = len(labels_N)
    if n == 0:
        return Verdict(state="not enough images", reason="there are no test images", remedy=f"give at least {MIN_IMAGES}")
    if broken := int((~reference.finite_N).sum()):
        reason = f"the fp32 reference itself gives NaN or inf for {broken:,} of {n:,} images"
        return Verdict(state="fail", reason=reason, remedy="mend the model: nothing can be compared with it")
    if broken := int((~mine.finite_N).sum()):
        first = int(np.flatnonzero(~mine.finite_N)[0])
        return Verdict(
            state="fail",
            reason=f"NaN or inf among the logits of {broken:,} of {n:,} images (the first is image {first})",
            remedy="keep the node that overflows in fp32, or use bf16, which has the range of fp32",
        )
    if len(np.unique(mine.class_N)) == 1 < len(np.unique(reference.class_N)):
        only = classes[int(mine.class_N[0])]
        return Verdict(
            state="fail", reason=f"it answers {only} to all {n:,} images, the reference does not", remedy="do not use this artifact"
        )
    return None


def _other_arithmetic(relative: float, tolerance: float | None) -> Verdict | None:
    """Logits that are not the reference's, however well the answers agree."""
    if tolerance is None or relative <= tolerance:
        return None
    return Verdict(
        state="fail",
        reason=f"relative logit error {relative:.2g} is above {tolerance:.2g}: it computes something else than the reference",
        remedy="check preprocessing and weights; where reduced-precision math (TF32, bf16) is meant, raise validate.logit_tolerance",
    )


def _proves_nothing(
    mine: _Answers, reference: _Answers, labels_N: NDArray[np.int64], classes: tuple[str, ...], agreement: float, options: ValidateOptions
) -> Verdict | None:
    """Images on which a broken artifact would look as good as a right one."""
    n = len(labels_N)
    if n < MIN_IMAGES:
        return Verdict(
            state="not enough images",
            reason=f"{n:,} test images prove nothing",
            remedy=f"give at least {max(MIN_IMAGES, _smallest_set(options)):,}",
        )
    if len(np.unique(labels_N)) == 1:
        reason = f"all {n:,} test images are of one class, {classes[int(labels_N[0])]}"
        return Verdict(state="unproven", reason=reason, remedy="give test images of every class")
    if len(np.unique(reference.class_N)) == 1:
        reason = f"the reference answers {classes[int(reference.class_N[0])]} to all {n:,} images, so agreeing with it proves nothing"
        return Verdict(state="unproven", reason=reason, remedy="train the model, or check its preprocessing")
    guess = float(np.bincount(labels_N).max()) / n
    right = wilson(int(reference.right_N.sum()), n, options.confidence)
    agreeing = f"{units.percent(agreement)} of the answers agree"
    # A reference that guesses has no accuracy to lose; then only agreement bounds what was changed.
    if right.low <= guess and 1 - agreement > options.max_drop_pp / 100:
        return Verdict(
            state="unproven",
            reason=f"the reference is no better than guessing ({units.percent(right.value)}), and {agreeing}",
            remedy="train the model, or check labels and preprocessing",
        )
    return None


def _within_limit(drop: Interval, lost: int, won: int, n: int, options: ValidateOptions) -> Verdict:
    """One-sided non-inferiority of the paired loss against the limit."""
    limit = options.max_drop_pp / 100
    seen = (
        f"top-1 loses {_pp(drop.value)}"
        if drop.value > 0
        else f"top-1 gains {_pp(-drop.value)}"
        if drop.value < 0
        else "top-1 loses nothing"
    )
    remedy = "use a higher precision or int8-auto, calibrate on more images, or raise validate.max_drop_pp"
    if limit == 0:
        if lost == 0:
            return Verdict(state="pass", reason=f"none of {n:,} images is lost")
        return Verdict(state="fail", reason=f"{lost:,} images are lost, where none may be", remedy=remedy)
    if drop.high <= limit:
        sure = f"at most {_pp(max(drop.high, 0.0))} with {units.percent(options.confidence, 0)} confidence"
        return Verdict(state="pass", reason=f"{seen}, {sure}; limit {_pp(limit)}")
    smallest = _smallest_set(options)
    if drop.low > limit or (drop.value >= limit and n >= smallest):
        return Verdict(state="fail", reason=f"{seen} ({_pp(drop.low)} to {_pp(drop.high)}); limit {_pp(limit)}", remedy=remedy)
    needed = images_needed(lost, won, n, limit, drop.confidence)
    enough = f"about {needed:,} images like these would do" if needed else f"give at least {smallest:,}"
    return Verdict(
        state="not enough images",
        reason=f"{seen}, but on {n:,} images it may be up to {_pp(drop.high)}; limit {_pp(limit)}",
        remedy=f"{enough}, or raise validate.max_drop_pp",
    )


def _smallest_set(options: ValidateOptions) -> int:
    """Images that could pass if not one of them were answered differently."""
    if options.max_drop_pp == 0:
        return MIN_IMAGES
    return images_needed(0, 0, 1, options.max_drop_pp / 100, _two_sided(options.confidence)) or MIN_IMAGES


def _two_sided(one_sided: float) -> float:
    """Confidence of the interval whose ends are one-sided bounds."""
    return round(2 * one_sided - 1, 9)


def _pp(share: float) -> str:
    return f"{100 * share:.2f} pp"


# --- what does not fit ----------------------------------------------------------------------


def _check_shapes(logits_NK: np.ndarray, reference_logits_NK: np.ndarray, labels_N: np.ndarray, classes: tuple[str, ...]) -> None:
    if logits_NK.shape != reference_logits_NK.shape or logits_NK.ndim != 2:
        raise ModelError(
            "the artifact's logits cannot be compared with the reference's",
            found=f"shape {logits_NK.shape} against {reference_logits_NK.shape}",
            remedy="both must be images x classes, from the same images and the same model",
        )
    n, k = logits_NK.shape
    if k != len(classes):
        names = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        remedy = "use the model that belongs to this data set"
        raise ModelError(f"the model has {k} outputs for {len(classes)} classes", found=f"classes {names}", remedy=remedy)
    if labels_N.shape != (n,):
        raise DataError(f"{n} images were answered", found=f"labels of shape {labels_N.shape}", remedy="give one label for each image")
    if not np.issubdtype(labels_N.dtype, np.integer):
        raise DataError("labels must be integers", found=str(labels_N.dtype), remedy="give class numbers from 0 on")
    lowest, highest = (int(labels_N.min()), int(labels_N.max())) if n else (0, 0)
    if lowest < 0 or highest >= k:
        found = f"{lowest} to {highest}"
        raise DataError(f"labels must be 0 to {k - 1}", found=found, remedy="check the data set's classes")
