from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn.data._cache import channel_statistics, remembered
from deploycnn.data._contract import Decoded
from deploycnn.errors import DataError
from deploycnn.store import Store


def decoder(seed: int = 0, calls: list[int] | None = None) -> Callable[[Path], Decoded]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (30, 3, 4, 4), np.uint8)
    labels = np.arange(30) % 3

    def decode(scratch: Path) -> Decoded:
        assert not list(scratch.iterdir())
        if calls is not None:
            calls.append(1)
        return Decoded(classes=("a", "b", "c"), train=(images[:20], labels[:20]), test=(images[20:], labels[20:]), notes=("a note",))

    return decode


def n_entries(store: Store, stage: str) -> int:
    return sum(facts.stage == stage for facts in store.entries())


def test_what_was_decoded_comes_back(store: Store) -> None:
    decoded = decoder()(store.shared("scratch"))
    content = remembered(store, {"a": 1}, decoder())
    np.testing.assert_array_equal(content.train.images_NCHW, decoded.train[0])
    np.testing.assert_array_equal(content.test.labels_N, decoded.test[1])
    assert (content.classes, content.official, content.notes) == (("a", "b", "c"), None, ("a note",))
    assert content.train.sha256 != content.test.sha256
    images, labels = decoded.train
    expected = hashlib.sha256(b"uint8 (20, 3, 4, 4)" + images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    assert content.train.sha256 == expected
    assert bytes(content.train.digests_ND[3]) == hashlib.blake2b(images[3].tobytes(), digest_size=16).digest()


def test_the_same_fingerprint_is_not_decoded_again(store: Store) -> None:
    calls: list[int] = []
    first = remembered(store, {"a": 1}, decoder(calls=calls))
    second = remembered(store, {"a": 1}, decoder(calls=calls))
    assert len(calls) == 1
    assert first.sha256 == second.sha256


def test_another_fingerprint_of_the_same_images_shares_their_arrays(store: Store) -> None:
    calls: list[int] = []
    first = remembered(store, {"a": 1}, decoder(calls=calls))
    second = remembered(store, {"a": 2}, decoder(calls=calls))
    assert len(calls) == 2
    assert first.sha256 == second.sha256
    assert n_entries(store, "data-source") == 2
    assert n_entries(store, "data-arrays") == 1


def test_other_images_are_others(store: Store) -> None:
    contents = [remembered(store, {"seed": seed}, decoder(seed)) for seed in range(3)]
    assert len({content.sha256 for content in contents}) == 3
    assert n_entries(store, "data-arrays") == 3


def test_dropped_arrays_are_made_again(store: Store) -> None:
    calls: list[int] = []
    first = remembered(store, {"a": 1}, decoder(calls=calls))
    for facts in store.entries():
        if facts.stage == "data-arrays":
            store.remove(facts)
    second = remembered(store, {"a": 1}, decoder(calls=calls))
    assert len(calls) == 2
    assert second.sha256 == first.sha256
    np.testing.assert_array_equal(second.train.images_NCHW, first.train.images_NCHW)


def test_images_that_changed_unseen_are_an_error(store: Store) -> None:
    remembered(store, {"a": 1}, decoder(0))
    for facts in store.entries():
        if facts.stage == "data-arrays":
            store.remove(facts)
    with pytest.raises(DataError, match="changed without"):
        remembered(store, {"a": 1}, decoder(1))


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    lines: list[str] = []
    store = Store(tmp_path / "store", lines.append)
    first = remembered(store, {"a": 1}, decoder())
    expected = np.array(first.train.images_NCHW)
    path = Path(str(first.train.images_NCHW.filename))
    data = bytearray(path.read_bytes())
    data[-1] ^= 255
    path.write_bytes(data)
    second = remembered(store, {"a": 1}, decoder())
    np.testing.assert_array_equal(second.train.images_NCHW, expected)
    assert len(lines) == 1


def test_nothing_is_left_of_a_failure(store: Store) -> None:
    def fail(scratch: Path) -> Decoded:
        (scratch / "half").write_bytes(bytes(1000))
        raise DataError("broken", remedy="mend it")

    with pytest.raises(DataError, match="broken"):
        remembered(store, {"a": 1}, fail)
    assert not store.entries()
    assert not [path for path in store.root.rglob("half") if path.is_file()]
    assert remembered(store, {"a": 1}, decoder()).notes == ("a note",)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 7), channels=st.sampled_from([1, 3]), side=st.integers(1, 9), seed=st.integers(0, 99))
def test_statistics_are_numpys(n: int, channels: int, side: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (n, channels, side, side), np.uint8)
    mean, std = channel_statistics(images)
    scaled = images / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, np.maximum(scaled.std(axis=(0, 2, 3)), 1 / 255), rtol=1e-9)


@pytest.mark.parametrize("level", [0, 1, 128, 255])
def test_a_constant_channel_divides_nobody_by_zero(level: int) -> None:
    mean, std = channel_statistics(np.full((5, 3, 4, 4), level, np.uint8))
    assert mean == (level / 255,) * 3
    assert std == (1 / 255,) * 3
