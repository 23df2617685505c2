from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn.data import DataSet, split
from deploycnn.data._cache import remembered
from deploycnn.data._contract import Decoded
from deploycnn.data._split import check_disjoint, stratified
from deploycnn.errors import DataError
from deploycnn.recipe import DataOptions
from deploycnn.store import Store

Make = Callable[..., DataSet]


@pytest.fixture
def make(store: Store) -> Make:
    """A data set of `n` training and 40 test images in `k` classes; `copies` are pairs (from, to) within training,
    `leaks` pairs (test image, training image)."""

    def made(n: int = 200, k: int = 4, copies: Iterable[tuple[int, int]] = (), leaks: Iterable[tuple[int, int]] = ()) -> DataSet:
        images = np.random.default_rng(0).integers(0, 256, (n + 40, 1, 4, 4), np.uint8)
        labels = np.arange(n + 40) % k
        train, test = images[:n], images[n:]
        for source, target in copies:
            train[target] = train[source]
        for source, target in leaks:
            train[target] = test[source]
        decoded = Decoded(classes=tuple("abcdefgh"[:k]), train=(train, labels[:n]), test=(test, labels[n:]))
        fingerprint = {"n": n, "k": k, "copies": list(copies), "leaks": list(leaks)}
        content = remembered(store, fingerprint, lambda scratch: decoded)
        return DataSet(name="made", source="a test", flip=False, **vars(content))

    return made


def options(validation: int = 20, calibration: int = 12, seed: int = 0) -> DataOptions:
    return DataOptions(validation=validation, calibration=calibration, seed=seed)


def test_every_image_is_in_one_part(make: Make) -> None:
    splits = split(make(), options())
    assert (len(splits.validation_N), len(splits.calibration_N)) == (20, 12)
    together = np.concatenate([splits.train_N, splits.validation_N, splits.calibration_N])
    assert sorted(together.tolist()) == list(range(200))
    assert splits.notes == ()
    for index in (splits.train_N, splits.validation_N, splits.calibration_N):
        assert index.dtype == np.int64
        assert (np.diff(index) > 0).all()


def test_parts_have_their_share_of_every_class(make: Make) -> None:
    dataset = make()
    splits = split(dataset, options())
    assert np.bincount(dataset.train.labels_N[splits.validation_N]).tolist() == [5] * 4
    assert np.bincount(dataset.train.labels_N[splits.calibration_N]).tolist() == [3] * 4


def test_the_seed_decides(make: Make) -> None:
    dataset = make()
    chosen = {seed: split(dataset, options(seed=seed)).calibration_N.tolist() for seed in (0, 1, -1)}
    assert split(dataset, options(seed=0)).calibration_N.tolist() == chosen[0]
    assert len({tuple(part) for part in chosen.values()}) == 3


def test_choices_are_the_same_on_every_machine() -> None:
    chosen = stratified(np.arange(10_000) % 10, 500, (3, 11))
    assert hashlib.sha256(chosen.astype("<i8").tobytes()).hexdigest() == "0a97787187367de1b49d11351a87cb902e0e767d6b4ef4e4cbd5405e959df27a"


def test_copies_of_test_images_are_in_no_part(make: Make) -> None:
    leaks = [(0, 10), (1, 11), (2, 50)]
    splits = split(make(leaks=leaks), options())
    together = np.concatenate([splits.train_N, splits.validation_N, splits.calibration_N])
    assert not {10, 11, 50} & set(together.tolist())
    assert len(together) == 197
    assert any(note.startswith("3 training images are exact copies of test images") for note in splits.notes)


@pytest.mark.parametrize("seed", range(5))
def test_copies_within_training_stay_in_training(make: Make, seed: int) -> None:
    copies = [(number, number + 100) for number in range(60)]
    splits = split(make(copies=copies), options(seed=seed))
    held_out = {*splits.validation_N.tolist(), *splits.calibration_N.tolist()}
    assert not held_out & {index for pair in copies for index in pair}
    assert len(splits.train_N) == 200 - 32
    assert any(note.startswith("120 training images occur more than once") for note in splits.notes)


@pytest.mark.parametrize(("validation", "calibration"), [(200, 12), (20, 180), (5000, 512), (100, 100)])
def test_too_few_images(make: Make, validation: int, calibration: int) -> None:
    with pytest.raises(DataError, match="cannot be taken out of training") as caught:
        split(make(), options(validation, calibration))
    assert "200 training images" in caught.value.found
    assert "data.validation=" in caught.value.remedy


def test_too_few_are_left_without_copies(make: Make) -> None:
    copies = [(0, target) for target in range(1, 180)]
    with pytest.raises(DataError, match="cannot be taken") as caught:
        split(make(copies=copies), options())
    assert "20 of them without an exact copy" in caught.value.found


def test_a_class_that_loses_all_its_images(make: Make) -> None:
    leaks = [(number, number * 4) for number in range(40)] + [(0, number * 4) for number in range(40, 50)]
    with pytest.raises(DataError, match="without a training image") as caught:
        split(make(leaks=leaks), options())
    assert caught.value.found == "a"


def test_the_suggestion_works(make: Make) -> None:
    dataset = make(n=40)
    with pytest.raises(DataError) as caught:
        split(dataset, options(5000, 512))
    words = dict(word.rstrip(",").split("=") for word in caught.value.remedy.split() if "=" in word)
    splits = split(dataset, options(int(words["data.validation"]), int(words["data.calibration"])))
    assert len(splits.train_N) > 0


# --- the check itself ----------------------------------------------------------------------


def digests(*names: str) -> np.ndarray:
    return np.array([list(name.ljust(16).encode()) for name in names], np.uint8).reshape(-1, 16)


def test_disjoint_parts_pass() -> None:
    parts = {"training": digests("a", "b"), "test": digests("c"), "calibration": digests("d", "d")}
    check_disjoint(parts)
    assert len(parts) == 3


@pytest.mark.parametrize("pair", [("training", "test"), ("training", "calibration"), ("validation", "test"), ("calibration", "validation")])
def test_every_pair_is_checked(pair: tuple[str, str]) -> None:
    parts = {name: [name] for name in ("training", "validation", "calibration", "test")}
    for name in pair:
        parts[name].append("shared")
    with pytest.raises(DataError, match="not disjoint") as caught:
        check_disjoint({name: digests(*members) for name, members in parts.items()})
    assert all(name in caught.value.asked for name in pair)
    assert "1 images" in caught.value.found


@pytest.mark.parametrize("empty", ["training", "test"])
def test_an_empty_part_proves_nothing(empty: str) -> None:
    parts = {"training": digests("a"), "test": digests("b")}
    with pytest.raises(DataError, match=f"{empty} part has no images"):
        check_disjoint({**parts, empty: digests()})


def test_digests_that_differ_in_their_last_byte_only() -> None:
    one = digests("a")
    other = one.copy()
    other[0, -1] = 0
    check_disjoint({"training": one, "test": other})
    assert (one != other).sum() == 1


# --- stratified ------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(labels=st.lists(st.integers(0, 6), max_size=60), share=st.floats(0, 1), seed=st.integers(-5, 5))
def test_stratified_takes_the_count_and_fair_shares(labels: list[int], share: float, seed: int) -> None:
    labels_N = np.array(labels, np.int64)
    count = round(share * len(labels))
    chosen = stratified(labels_N, count, (seed, 1))
    assert len(chosen) == count
    assert len(set(chosen.tolist())) == count
    for label in set(labels):
        exact = count * labels.count(label) / len(labels)
        assert abs(int((labels_N[chosen] == label).sum()) - exact) < 1


def test_a_part_of_a_set_on_disk(load: Callable[..., DataSet], batches_py: Path) -> None:
    part = load(root=batches_py, train=40, seed=1)
    whole = load(root=batches_py)
    assert (len(part.train), len(part.test)) == (40, 20)
    assert np.bincount(part.train.labels_N).tolist() == [4] * 10
    assert isinstance(part.train.images_NCHW, np.memmap)
    assert part.test.sha256 == whole.test.sha256
    assert part.train.sha256 != whole.train.sha256
    assert (part.official, part.notes, part.mean) == (whole.official, whole.notes, whole.mean)
    known = {bytes(row) for row in whole.train.digests_ND}
    assert {bytes(row) for row in part.train.digests_ND} <= known
    assert load(root=batches_py, train=40, seed=2).train.sha256 != part.train.sha256
    assert load(root=batches_py, train=40, seed=1).sha256 == part.sha256
    assert load(root=batches_py, train=1000, test=1000).sha256 == whole.sha256
