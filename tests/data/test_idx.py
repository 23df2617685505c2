from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploycnn.data import _idx, fashion_mnist
from deploycnn.data._idx import OFFICIAL_MD5, STEMS, read_idx
from deploycnn.errors import DataError

COUNTS = {"train": 30, "t10k": 20}
DEBIAN = fashion_mnist.DEBIAN


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """Small files in the format of MNIST, by their usual names: 30 and 20 images."""
    monkeypatch.setattr(_idx, "COUNTS", COUNTS)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "not installed")
    random = np.random.default_rng(0)
    written = {}
    for part, count in COUNTS.items():
        written[f"{part}-images-idx3-ubyte"] = idx(random.integers(0, 256, (count, 28, 28), np.uint8))
        written[f"{part}-labels-idx1-ubyte"] = idx((np.arange(count) % 10).astype(np.uint8))
    return written


def write(folder: Path, files: dict[str, bytes], form: str = "plain") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, data in files.items():
        name = stem.replace("-idx", ".idx") if form == "dotted" else stem
        if form == "gz":
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("form", ["plain", "gz", "dotted"])
@pytest.mark.parametrize(
    ("name", "place"), [("mnist", "."), ("mnist", "MNIST/raw"), ("fashion-mnist", "."), ("fashion-mnist", "FashionMNIST/raw")]
)
def test_found_where_people_have_them(name: str, place: str, form: str, files: Any, load: Any, tmp_path: Path) -> None:
    write(tmp_path / "data" / place, files, form)
    dataset = load(name=name, root=tmp_path / "data")
    assert (dataset.name, dataset.shape_CHW, dataset.official) == (name, (1, 28, 28), False)
    assert (len(dataset.train), len(dataset.test)) == (30, 20)
    assert dataset.train.images_NCHW.tobytes() == files["train-images-idx3-ubyte"][16:]
    assert dataset.test.labels_N.tolist() == [number % 10 for number in range(20)]
    assert len(dataset.mean) == len(dataset.std) == 1
    assert dataset.flip is (name == "fashion-mnist")
    assert any("not the official files" in note for note in dataset.notes)
    assert len(dataset.classes) == 10


def test_official_contents_are_official_however_packed(files: Any, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {stem: hashlib.md5(data).hexdigest() for stem, data in files.items()}
    monkeypatch.setitem(OFFICIAL_MD5, "mnist", digests)
    for form in ("plain", "gz"):
        dataset = load(name="mnist", root=write(tmp_path / form, files, form))
        assert dataset.official is True
        assert not dataset.notes
    with pytest.raises(DataError, match="not of fashion-mnist") as caught:
        load(name="fashion-mnist", root=tmp_path / "plain")
    assert "data.name=mnist" in caught.value.remedy


@pytest.mark.parametrize("gone", STEMS)
def test_a_missing_file_is_named(gone: str, files: Any, load: Any, tmp_path: Path) -> None:
    del files[gone]
    write(tmp_path, files)
    with pytest.raises(DataError, match="incomplete") as caught:
        load(name="mnist", root=tmp_path, fallback="synthetic10")
    assert gone in caught.value.found


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "header only": lambda data: data[:4],
    "half": lambda data: data[: len(data) // 2],
    "one byte less": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "other magic": lambda data: b"\0\0\x0d" + data[3:],
    "other dimensions": lambda data: data[:3] + bytes([data[3] + 1]) + data[4:],
    "web page": lambda data: b"<!DOCTYPE html>" + data,
    "half gzip": lambda data: gzip.compress(data)[: len(gzip.compress(data)) // 2],
    "changed gzip": lambda data: gzip.compress(data)[:-8] + bytes(8),
    "no gzip": lambda data: b"\x1f\x8b" + data,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stem", STEMS)
def test_a_damaged_file_is_named(stem: str, fault: str, files: Any, load: Any, tmp_path: Path) -> None:
    files[stem] = FAULTS[fault](files[stem])
    write(tmp_path, files)
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(name="mnist", root=tmp_path, fallback="synthetic10")
    assert str(tmp_path / stem) in caught.value.asked
    assert "expected" in caught.value.found


@pytest.mark.parametrize(
    ("stem", "array"),
    [
        ("train-images-idx3-ubyte", np.zeros((29, 28, 28), np.uint8)),
        ("t10k-images-idx3-ubyte", np.zeros((20, 32, 32), np.uint8)),
        ("train-labels-idx1-ubyte", np.zeros(29, np.uint8)),
        ("t10k-labels-idx1-ubyte", np.full(20, 10, np.uint8)),
    ],
)
def test_whole_files_of_something_else(stem: str, array: np.ndarray, files: Any, load: Any, tmp_path: Path) -> None:
    files[stem] = idx(array)
    write(tmp_path, files)
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(name="mnist", root=tmp_path)
    assert str(tmp_path / stem) in caught.value.asked


def test_read_idx_keeps_the_shape(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "file").write_bytes(idx(array))
    read, md5 = read_idx(tmp_path / "file", 3)
    np.testing.assert_array_equal(read, array)
    assert md5 == hashlib.md5(idx(array)).hexdigest()


def test_counts_are_those_of_mnist() -> None:
    assert _idx.COUNTS == {"train": 60_000, "t10k": 10_000}
    assert all(set(digests) == set(STEMS) for digests in OFFICIAL_MD5.values())


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_debians_fashion_mnist_is_official(load: Any, tmp_path: Path) -> None:
    dataset = load(name="fashion-mnist", root=tmp_path)
    assert dataset.official is True
    assert dataset.source == str(DEBIAN)
    assert (len(dataset.train), len(dataset.test)) == (60_000, 10_000)
    np.testing.assert_allclose(dataset.train.images_NCHW.mean() / 255, dataset.mean, atol=1e-3)
