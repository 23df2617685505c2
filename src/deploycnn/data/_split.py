"""Who may see which image: training, validation and calibration parts that share no image with one another or the test.

Choices depend on the seed alone: they are made from the raw 64-bit stream of PCG64, which numpy promises to keep, and
not from its distributions, which it does not.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deploycnn.data._contract import DataSet
from deploycnn.errors import DataError
from deploycnn.recipe import DataOptions

_VALIDATION, _CALIBRATION = 10, 11  # tags that keep the streams of one seed apart


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """Indices into `DataSet.train`, int64, ascending, disjoint also by content; and what was left out of them."""

    train_N: np.ndarray
    validation_N: np.ndarray
    calibration_N: np.ndarray
    notes: tuple[str, ...] = ()


def split(dataset: DataSet, options: DataOptions) -> Splits:
    """Takes `options.validation` and `options.calibration` images out of training, by `options.seed`, class by class.

    Training images that are exact copies of a test image belong to no part. Images that occur more than once in training
    stay in training: in another part they would be known from there. Both are counted in the notes.

    Raises:
        DataError: too few images are left for a part, or for training a class.
    """
    names = _names(dataset.train.digests_ND)
    tested = set(_names(dataset.test.digests_ND))
    occurrences = Counter(names)
    allowed = np.array([name not in tested for name in names])
    single = allowed & np.array([occurrences[name] == 1 for name in names])
    labels_N = np.asarray(dataset.train.labels_N)
    pool_N = np.flatnonzero(single)
    _check_enough(len(pool_N), len(labels_N), options)

    validation_N = pool_N[stratified(labels_N[pool_N], options.validation, (options.seed, _VALIDATION))]
    rest_N = np.setdiff1d(pool_N, validation_N)
    calibration_N = rest_N[stratified(labels_N[rest_N], options.calibration, (options.seed, _CALIBRATION))]
    train_N = np.setdiff1d(np.flatnonzero(allowed), np.concatenate([validation_N, calibration_N]))
    _check_classes(labels_N[train_N], dataset.classes)

    parts = {"training": train_N, "validation": validation_N, "calibration": calibration_N}
    digests = {part: dataset.train.digests_ND[index] for part, index in parts.items()}
    check_disjoint({**digests, "test": dataset.test.digests_ND})
    notes = _notes(n_tested=int((~allowed).sum()), n_copies=int((allowed & ~single).sum()))
    return Splits(train_N=train_N, validation_N=validation_N, calibration_N=calibration_N, notes=notes)


def stratified(labels_N: np.ndarray, count: int, seed: Sequence[int]) -> np.ndarray:
    """Indices of `count` of these images, ascending, each class with its share (largest remainders, then lower labels).

    Args:
        labels_N: integers from 0.
        count: from 0 to N.
        seed: integers; the same ones choose the same images.
    """
    counts_K = np.bincount(labels_N)
    shares_K = _apportioned(counts_K, count)
    order_N = np.random.PCG64([value % 2**64 for value in seed]).random_raw(len(labels_N))
    chosen = []
    for label, share in enumerate(shares_K):
        members = np.flatnonzero(labels_N == label)
        chosen.append(members[np.argsort(order_N[members], kind="stable")[:share]])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def check_disjoint(parts: Mapping[str, np.ndarray]) -> None:
    """Raises DataError where two of these parts share an image, or one has none: an empty part shares nothing and proves nothing.

    Args:
        parts: uint8 digests, one row an image, by the part's name.
    """
    names = {part: set(_names(digests_ND)) for part, digests_ND in parts.items()}
    for part, members in names.items():
        if not members:
            raise DataError(f"the {part} part has no images", remedy="ask for at least one (data.train, data.validation, data.calibration)")
    for one, other in itertools.combinations(names, 2):
        if shared := names[one] & names[other]:
            raise DataError(
                f"the {one} and {other} images are not disjoint",
                found=f"{len(shared)} images with the same pixels in both",
                remedy="remove the copies from one of the two folders",
            )


def _names(digests_ND: np.ndarray) -> list[bytes]:
    rows = np.ascontiguousarray(digests_ND)
    return [bytes(row) for row in rows.view(f"V{rows.shape[1]}").ravel().tolist()]


def _apportioned(counts_K: np.ndarray, count: int) -> list[int]:
    total = int(counts_K.sum())
    if count == 0 or total == 0:
        return [0] * len(counts_K)
    exact = [divmod(int(size) * count, total) for size in counts_K]
    shares = [whole for whole, _ in exact]
    by_remainder = sorted(range(len(exact)), key=lambda label: (-exact[label][1], label))
    for label in by_remainder[: count - sum(shares)]:
        shares[label] += 1
    return shares


def _check_enough(n_pool: int, n_train: int, options: DataOptions) -> None:
    wanted = options.validation + options.calibration
    if n_pool > wanted:
        return
    fifth = max(1, n_pool // 5)
    raise DataError(
        f"{options.validation} validation and {options.calibration} calibration images cannot be taken out of training",
        found=f"{n_train} training images, {n_pool} of them without an exact copy in training or test",
        remedy=f"ask for less, for example data.validation={fifth} data.calibration={fifth}, or bring more images",
    )


def _check_classes(labels_N: np.ndarray, classes: Sequence[str]) -> None:
    counts_K = np.bincount(labels_N, minlength=len(classes))
    empty = [name for name, count in zip(classes, counts_K, strict=True) if count == 0]
    if empty:
        raise DataError(
            "there are classes without a training image left",
            found=", ".join(empty),
            remedy="bring more images of them, or ask for fewer with data.validation and data.calibration, or more with data.train",
        )


def _notes(*, n_tested: int, n_copies: int) -> tuple[str, ...]:
    notes = []
    if n_tested:
        notes.append(f"{n_tested} training images are exact copies of test images: left out of training, validation and calibration")
    if n_copies:
        notes.append(f"{n_copies} training images occur more than once: kept in training, left out of validation and calibration")
    return tuple(notes)
