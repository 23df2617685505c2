"""The judge: figures by brute force, verdicts on artifacts that are right, worse, broken, or only look right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn.errors import DataError, DeployError, ModelError
from deploycnn.recipe import ValidateOptions
from deploycnn.record import Accuracy
from deploycnn.validate.accuracy import MIN_IMAGES, judge

CLASSES = ("airplane", "car", "bird", "cat", "deer")
K = len(CLASSES)


def some_logits(n: int, seed: int = 0, strength: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a decent classifier, and labels of every class."""
    rng = np.random.default_rng(seed)
    labels_N = rng.permutation(np.arange(n) % K)
    logits_NK = rng.normal(size=(n, K)).astype(np.float32)
    logits_NK[np.arange(n), labels_N] += strength
    return logits_NK, labels_N


def with_losses(logits_NK: np.ndarray, labels_N: np.ndarray, lost: int, won: int = 0) -> np.ndarray:
    """The same logits with the answers to so many right images spoilt, and to so many wrong ones mended."""
    changed_NK = logits_NK.copy()
    right_N = logits_NK.argmax(axis=1) == labels_N
    for index in np.flatnonzero(right_N)[:lost]:
        changed_NK[index] = np.roll(logits_NK[index], 1)
    for index in np.flatnonzero(~right_N)[:won]:
        changed_NK[index, labels_N[index]] = logits_NK[index].max() + 1
    return changed_NK


def judged(
    logits_NK: np.ndarray, reference_NK: np.ndarray, labels_N: np.ndarray, *, tolerance: float | None = None, **options: float
) -> Accuracy:
    return judge(logits_NK, reference_NK, labels_N, CLASSES, ValidateOptions(**options), logit_tolerance=tolerance)


# --- figures ------------------------------------------------------------------------------


def softmax(row: np.ndarray) -> np.ndarray:
    powers = [math.exp(x - max(row)) for x in row]
    return np.array(powers) / sum(powers)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 200), st.floats(0, 2))
def test_every_figure_is_what_a_plain_loop_finds(seed: int, n: int, noise: float) -> None:
    reference_NK, labels_N = some_logits(n, seed)
    logits_NK = reference_NK + noise * np.random.default_rng(seed + 1).normal(size=reference_NK.shape).astype(np.float32)
    found = judged(logits_NK, reference_NK, labels_N)

    mine = [int(np.argmax(row)) for row in logits_NK]
    theirs = [int(np.argmax(row)) for row in reference_NK]
    labels = labels_N.tolist()
    assert found.n_images == n
    assert found.top1.value == pytest.approx(sum(a == b for a, b in zip(mine, labels, strict=True)) / n)
    assert found.reference_top1 == pytest.approx(sum(a == b for a, b in zip(theirs, labels, strict=True)) / n)
    assert found.agreement == pytest.approx(sum(a == b for a, b in zip(mine, theirs, strict=True)) / n)
    assert list(found.right_to_wrong) == [i for i in range(n) if theirs[i] == labels[i] != mine[i]]
    assert list(found.wrong_to_right) == [i for i in range(n) if theirs[i] != labels[i] == mine[i]]
    assert found.drop.value == pytest.approx((len(found.right_to_wrong) - len(found.wrong_to_right)) / n)
    assert found.drop.value == pytest.approx(found.reference_top1 - found.top1.value)
    difference = logits_NK.astype(float) - reference_NK
    assert found.relative_logit_error == pytest.approx(
        math.sqrt((difference**2).sum()) / math.sqrt((reference_NK.astype(float) ** 2).sum())
    )
    assert found.max_logit_error == pytest.approx(np.abs(difference).max())

    confidences = [softmax(row.astype(float)).max() for row in logits_NK]
    assert found.mean_confidence == pytest.approx(np.mean(confidences))
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, answer, label in zip(confidences, mine, labels, strict=True):
        bins.setdefault(min(int(confidence * 15), 14), []).append((confidence, answer == label))
    gaps = [len(b) / n * abs(np.mean([c for c, _ in b]) - np.mean([r for _, r in b])) for b in bins.values()]
    assert found.ece == pytest.approx(sum(gaps))

    for index, row in enumerate(found.per_class):
        members = [i for i in range(n) if labels[i] == index]
        assert (row.name, row.n_images) == (CLASSES[index], len(members))
        assert row.top1 == pytest.approx(np.mean([mine[i] == index for i in members]) if members else 0.0)


def test_a_perfectly_calibrated_model_has_no_calibration_error() -> None:
    """Confidence 0.8 and right 8 times in 10."""
    labels_N = np.tile(np.arange(K), 200)
    row = np.log([0.8, 0.05, 0.05, 0.05, 0.05])
    logits_NK = np.stack([np.roll(row, label if index % 10 < 8 else label + 1) for index, label in enumerate(labels_N)])
    found = judged(logits_NK, logits_NK, labels_N)
    assert found.ece == pytest.approx(0.0, abs=1e-9)
    assert judged(10 * logits_NK, logits_NK, labels_N).ece == pytest.approx(0.2, abs=1e-3)


def test_a_classifier_that_gained_confidence_shows_it() -> None:
    logits_NK, labels_N = some_logits(1000)
    found = judged(logits_NK * 5, logits_NK, labels_N)
    assert found.mean_confidence > found.reference_mean_confidence + 0.1
    assert found.agreement == 1.0


def test_a_class_without_images_is_listed_with_none() -> None:
    logits_NK, labels_N = some_logits(1000)
    keep_N = labels_N != 3
    rows = judged(logits_NK[keep_N], logits_NK[keep_N], labels_N[keep_N]).per_class
    assert [row.n_images for row in rows] == [200, 200, 200, 0, 200]


def test_the_whole_survives_json() -> None:
    logits_NK, labels_N = some_logits(300)
    broken_NK = logits_NK.copy()
    broken_NK[:] = np.nan
    for candidate_NK in (logits_NK, broken_NK, logits_NK * 0, logits_NK * 1e30):
        found = judged(candidate_NK, logits_NK, labels_N)
        assert Accuracy.model_validate_json(found.model_dump_json()) == found


# --- the limit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "lost", "won", "limit_pp", "state"),
    [
        (1000, 0, 0, 1.0, "pass"),
        (1000, 0, 9, 1.0, "pass"),
        (1000, 2, 1, 1.0, "pass"),
        (1000, 60, 0, 1.0, "fail"),
        (1000, 60, 0, 10.0, "pass"),
        (1000, 15, 0, 1.0, "fail"),  # the loss seen is above the limit, on a set that could have shown less
        (1000, 6, 0, 1.0, "not enough images"),  # below the limit, but it may be above
        (10_000, 60, 0, 1.0, "pass"),
        (200, 0, 0, 1.0, "not enough images"),  # even without a flip
        (268, 0, 0, 1.0, "pass"),
        (267, 0, 0, 1.0, "not enough images"),
        (200, 3, 0, 1.0, "not enough images"),
        (200, 60, 0, 1.0, "fail"),  # so bad that a small set shows it
        (1000, 0, 0, 0.0, "pass"),
        (1000, 1, 0, 0.0, "fail"),
        (1000, 1, 5, 0.0, "fail"),
    ],
)
def test_verdicts(n: int, lost: int, won: int, limit_pp: float, state: str) -> None:
    reference_NK, labels_N = some_logits(n)
    found = judged(with_losses(reference_NK, labels_N, lost, won), reference_NK, labels_N, max_drop_pp=limit_pp)
    assert (len(found.right_to_wrong), len(found.wrong_to_right)) == (lost, won)
    assert found.verdict.state == state, found.verdict
    assert found.verdict.reason
    assert (found.verdict.remedy == "") == (state == "pass")


@settings(deadline=None, max_examples=40)
@given(st.integers(100, 3000), st.integers(0, 60), st.integers(0, 20), st.floats(0.1, 5))
def test_a_pass_can_be_read_off_the_interval(n: int, lost: int, won: int, limit_pp: float) -> None:
    reference_NK, labels_N = some_logits(n)
    found = judged(with_losses(reference_NK, labels_N, lost, won), reference_NK, labels_N, max_drop_pp=limit_pp)
    assert (found.verdict.state == "pass") == (found.drop.high <= limit_pp / 100)
    assert found.drop.confidence == pytest.approx(0.9)


def test_it_says_how_many_images_would_do_and_they_do() -> None:
    reference_NK, labels_N = some_logits(1000)
    found = judged(with_losses(reference_NK, labels_N, 6), reference_NK, labels_N)
    needed = int(found.verdict.remedy.split("about ")[1].split(" images")[0].replace(",", ""))
    assert needed > 1000
    more_NK, more_N = some_logits(needed)
    assert judged(with_losses(more_NK, more_N, round(6 * needed / 1000)), more_NK, more_N).verdict.state in ("pass", "not enough images")
    plenty_NK, plenty_N = some_logits(needed + 200)
    assert judged(with_losses(plenty_NK, plenty_N, int(6 * needed / 1000)), plenty_NK, plenty_N).verdict.state == "pass"


@pytest.mark.parametrize("n", [0, 1, 5, 20, MIN_IMAGES - 1])
@pytest.mark.parametrize("limit_pp", [0.0, 1.0, 50.0, 100.0])
def test_empty_and_tiny_sets_never_pass(n: int, limit_pp: float) -> None:
    logits_NK, labels_N = some_logits(n)
    found = judged(logits_NK, logits_NK, labels_N, max_drop_pp=limit_pp)
    assert found.verdict.state == "not enough images"
    assert found.n_images == n


# --- artifacts that are broken ------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("images", [[0], [7, 8], list(range(1000))])
def test_one_nan_or_inf_fails_whatever_the_accuracy(bad: float, images: list[int]) -> None:
    reference_NK, labels_N = some_logits(1000)
    logits_NK = reference_NK.copy()
    logits_NK[images, 2] = bad
    found = judged(logits_NK, reference_NK, labels_N, max_drop_pp=100)
    assert found.nonfinite_images == len(images)
    assert found.verdict.state == "fail"
    assert f"image {images[0]}" in found.verdict.reason
    assert "fp32" in found.verdict.remedy
    assert "bf16" in found.verdict.remedy


def test_an_inf_in_the_right_place_is_not_a_right_answer() -> None:
    reference_NK, labels_N = some_logits(1000)
    logits_NK = reference_NK.copy()
    logits_NK[np.arange(1000), labels_N] = np.inf
    assert judged(logits_NK, reference_NK, labels_N).top1.value == 0.0


def test_a_broken_reference_proves_nothing() -> None:
    logits_NK, labels_N = some_logits(1000)
    reference_NK = logits_NK.copy()
    reference_NK[3, 0] = np.nan
    found = judged(logits_NK, reference_NK, labels_N)
    assert found.verdict.state == "fail"
    assert "reference itself" in found.verdict.reason


@pytest.mark.parametrize(
    "spoil",
    [
        lambda logits_NK: logits_NK * 3,
        lambda logits_NK: logits_NK + 5,
        lambda logits_NK: logits_NK / 100,
        lambda logits_NK: np.exp(logits_NK) / np.exp(logits_NK).sum(axis=1, keepdims=True),
        lambda logits_NK: np.eye(K, dtype=np.float32)[logits_NK.argmax(axis=1)],
        lambda logits_NK: logits_NK + 0.01 * np.abs(logits_NK),
    ],
)
def test_perfect_agreement_does_not_hide_other_logits(spoil: object) -> None:
    reference_NK, labels_N = some_logits(2000)
    logits_NK = spoil(reference_NK)  # type: ignore[operator]
    found = judged(logits_NK, reference_NK, labels_N, tolerance=1e-3)
    assert found.agreement == 1.0
    assert found.verdict.state == "fail"
    assert "logit error" in found.verdict.reason
    assert judged(logits_NK, reference_NK, labels_N).verdict.state == "pass", "without the claim of equal arithmetic it may"


def test_a_few_wrong_images_break_the_tolerance() -> None:
    """A backend that spoils the last image of each 1,000, as one with a fault in its last batch does."""
    reference_NK, labels_N = some_logits(10_000)
    logits_NK = reference_NK.copy()
    logits_NK[999::1000] = 0
    assert judged(logits_NK, reference_NK, labels_N, tolerance=1e-3).verdict.state == "fail"


def test_rounding_is_within_the_tolerance() -> None:
    reference_NK, labels_N = some_logits(2000)
    logits_NK = reference_NK * (1 + 1e-6 * np.random.default_rng(0).normal(size=reference_NK.shape))
    assert judged(logits_NK, reference_NK, labels_N, tolerance=1e-3).verdict.state == "pass"


def test_one_answer_for_everything_fails() -> None:
    reference_NK, labels_N = some_logits(2000, strength=0.0)
    logits_NK = np.zeros_like(reference_NK)
    logits_NK[:, 1] = 1
    found = judged(logits_NK, reference_NK, labels_N, max_drop_pp=100)
    assert found.verdict.state == "fail"
    assert "car" in found.verdict.reason


# --- images that prove nothing ------------------------------------------------------------


def test_images_of_one_class_prove_nothing() -> None:
    logits_NK, labels_N = some_logits(2000)
    found = judged(logits_NK[labels_N == 3], logits_NK[labels_N == 3], labels_N[labels_N == 3])
    assert found.verdict.state == "unproven"
    assert "cat" in found.verdict.reason


def test_a_reference_with_one_answer_proves_nothing() -> None:
    """Random noise through a real network: one class wins always, and every artifact agrees, right or wrong."""
    _, labels_N = some_logits(2000)
    reference_NK = np.random.default_rng(1).normal(size=(2000, K)) * 0.01
    reference_NK[:, 4] += 1
    found = judged(reference_NK * 2 + 1, reference_NK, labels_N)
    assert found.agreement == 1.0
    assert found.verdict.state == "unproven"
    assert "deer" in found.verdict.reason


def test_two_networks_that_guess_differently_are_not_equal() -> None:
    reference_NK, labels_N = some_logits(5000, seed=1, strength=0.0)
    logits_NK, _ = some_logits(5000, seed=2, strength=0.0)
    found = judged(logits_NK, reference_NK, labels_N, max_drop_pp=3)
    assert abs(found.drop.value) < 0.03
    assert found.verdict.state == "unproven"
    assert "guessing" in found.verdict.reason


def test_a_network_that_guesses_and_is_reproduced_passes() -> None:
    reference_NK, labels_N = some_logits(5000, strength=0.0)
    assert judged(reference_NK, reference_NK, labels_N, tolerance=1e-3).verdict.state == "pass"


# --- what does not fit --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "reference", "labels", "error", "said"),
    [
        ((10, 5), (9, 5), (10,), ModelError, "shape (10, 5) against (9, 5)"),
        ((10, 5), (10, 4), (10,), ModelError, "against (10, 4)"),
        ((10,), (10,), (10,), ModelError, "images x classes"),
        ((10, 5, 1), (10, 5, 1), (10,), ModelError, "images x classes"),
        ((10, 12), (10, 12), (10,), ModelError, "12 outputs for 5 classes"),
        ((10, 5), (10, 5), (9,), DataError, "labels of shape (9,)"),
        ((10, 5), (10, 5), (10, 1), DataError, "labels of shape (10, 1)"),
    ],
)
def test_shapes_that_do_not_fit(
    logits: tuple[int, ...], reference: tuple[int, ...], labels: tuple[int, ...], error: type[DeployError], said: str
) -> None:
    with pytest.raises(error) as caught:
        judged(np.zeros(logits), np.zeros(reference), np.zeros(labels, dtype=int))
    assert said in str(caught.value)


@pytest.mark.parametrize("labels_N", [np.full(10, 5), np.full(10, -1), np.zeros(10), np.zeros(10, dtype=bool)])
def test_labels_that_do_not_fit(labels_N: np.ndarray) -> None:
    with pytest.raises(DataError, match="labels must be"):
        judged(np.zeros((10, K)), np.zeros((10, K)), labels_N)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_kind(dtype: type) -> None:
    logits_NK, labels_N = some_logits(1000)
    assert judged(logits_NK, logits_NK, labels_N.astype(dtype)).verdict.state == "pass"


def test_the_callers_arrays_are_left_alone() -> None:
    logits_NK, labels_N = some_logits(500)
    logits_NK = logits_NK.astype(np.float64)
    logits_NK[3] = np.nan
    before = logits_NK.copy()
    judged(logits_NK, logits_NK, labels_N)
    np.testing.assert_array_equal(logits_NK, before)
