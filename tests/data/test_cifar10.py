from __future__ import annotations

import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn.data import DataMissing, cifar10
from deploycnn.data._pickles import load_plain_pickle
from deploycnn.errors import DataError


def packed(folder: Path, target: Path, renamed: Callable[[str], str] = lambda name: name) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, renamed(f"{folder.name}/{path.name}"))
    return target


# --- every layout gives the same images ----------------------------------------------------


@pytest.mark.parametrize("layout", ["py", "py itself", "bin", "py archive", "bin archive", "archive itself"])
def test_the_same_images_in_every_layout(
    layout: str, load: Any, batches_py: Path, batches_bin: Path, small_batches: Any, tmp_path: Path
) -> None:
    roots = {
        "py": batches_py.parent,
        "py itself": batches_py,
        "bin": batches_bin.parent,
        "py archive": packed(batches_py, tmp_path / "a" / "cifar-10-python.tar.gz").parent,
        "bin archive": packed(batches_bin, tmp_path / "b" / "cifar-10-binary.tar.gz").parent,
        "archive itself": tmp_path / "a" / "cifar-10-python.tar.gz",
    }
    dataset = load(root=roots[layout])
    assert dataset.name == "cifar10"
    assert dataset.classes == cifar10.CLASSES
    assert dataset.train.images_NCHW.shape == (100, 3, 32, 32)
    assert dataset.test.images_NCHW.shape == (20, 3, 32, 32)
    for number, name in enumerate(cifar10.TRAIN_BATCHES):
        rows_ND, labels = small_batches[name]
        np.testing.assert_array_equal(dataset.train.images_NCHW[20 * number : 20 * number + 20].reshape(20, -1), rows_ND)
        assert dataset.train.labels_N[20 * number : 20 * number + 20].tolist() == labels
    np.testing.assert_array_equal(dataset.test.images_NCHW.reshape(20, -1), small_batches["test_batch"][0])
    assert dataset.mean == (0.4914, 0.4822, 0.4465)
    assert dataset.flip


def test_a_copy_that_is_not_official_is_marked(load: Any, batches_py: Path) -> None:
    dataset = load(root=batches_py)
    assert dataset.official is False
    assert any("not the official CIFAR-10" in note for note in dataset.notes)


def test_official_digests_are_torchvisions() -> None:
    from torchvision.datasets import CIFAR10

    assert dict(map(tuple, (*CIFAR10.train_list, *CIFAR10.test_list))) == cifar10.PYTHON.official
    assert CIFAR10.filename == cifar10.PYTHON.archive
    assert CIFAR10.url.startswith(cifar10.SITE)


def test_files_with_the_official_digests_are_official(load: Any, batches_py: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = {name: hashlib.md5((batches_py / name).read_bytes()).hexdigest() for name in cifar10.PYTHON.official}
    monkeypatch.setattr(cifar10, "PYTHON", cifar10.Layout(**{**vars(cifar10.PYTHON), "official": official}))
    dataset = load(root=batches_py)
    assert dataset.official is True
    assert not dataset.notes


# --- D5: incomplete and corrupt ------------------------------------------------------------


@pytest.mark.parametrize("gone", [*cifar10.TRAIN_BATCHES, cifar10.TEST_BATCH])
def test_a_missing_batch_is_named(gone: str, load: Any, batches_py: Path) -> None:
    (batches_py / gone).unlink()
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(root=batches_py.parent)
    assert str(batches_py) in caught.value.asked
    assert gone in caught.value.found
    assert not isinstance(caught.value, DataMissing)  # or a fallback would hide it


def test_an_empty_batches_folder_is_incomplete(load: Any, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="incomplete"):
        load(root=tmp_path, fallback="synthetic10")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_shortened_archive_says_path_and_sizes(share: float, load: Any, batches_py: Path, tmp_path: Path) -> None:
    archive = packed(batches_py, tmp_path / "short" / "cifar-10-python.tar.gz")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(root=archive.parent, fallback="synthetic10")
    assert str(archive) in caught.value.asked
    assert "170,498,071" in caught.value.found
    assert f"{archive.stat().st_size:,} bytes" in caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><html>Not found</html>", b"\x1f\x8b\x08 no gzip", bytes(100_000)])
def test_something_else_named_like_the_archive(content: bytes, load: Any, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match="incomplete or corrupt"):
        load(root=tmp_path)


def test_an_archive_without_a_batch_names_it(load: Any, batches_py: Path, tmp_path: Path) -> None:
    (batches_py / "data_batch_3").unlink()
    archive = packed(batches_py, tmp_path / "a" / "cifar-10-python.tar.gz")
    with pytest.raises(DataError, match="incomplete") as caught:
        load(root=archive.parent)
    assert "data_batch_3" in caught.value.found


def test_nothing_of_an_archive_reaches_the_disk(load: Any, batches_py: Path, tmp_path: Path) -> None:
    archive = packed(batches_py, tmp_path / "a" / "b" / "cifar-10-python.tar.gz", lambda name: f"../../{name}")
    before = {path for path in tmp_path.rglob("*") if "store" not in path.parts}
    assert len(load(root=archive.parent).train) == 100
    assert {path for path in tmp_path.rglob("*") if "store" not in path.parts} == before


def test_a_link_in_an_archive_is_not_followed(load: Any, batches_py: Path, tmp_path: Path) -> None:
    secret = batches_py / "data_batch_1"
    archive = tmp_path / "a" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as writer:
        for name in cifar10.PYTHON.official:
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, str(secret)
            writer.addfile(member)
    with pytest.raises(DataError, match="incomplete"):
        load(root=archive.parent)


FAULTS: dict[str, Callable[[np.ndarray, list[int]], Any]] = {
    "fewer rows": lambda rows, labels: {"data": rows[:10], "labels": labels},
    "narrower rows": lambda rows, labels: {"data": rows[:, :3000], "labels": labels},
    "floats": lambda rows, labels: {"data": rows.astype(np.float32), "labels": labels},
    "no array": lambda rows, labels: {"data": rows.tolist(), "labels": labels},
    "no data": lambda rows, labels: {"labels": labels},
    "fewer labels": lambda rows, labels: {"data": rows, "labels": labels[:10]},
    "no labels": lambda rows, labels: {"data": rows},
    "label 10": lambda rows, labels: {"data": rows, "labels": [10, *labels[1:]]},
    "label -1": lambda rows, labels: {"data": rows, "labels": [-1, *labels[1:]]},
    "label text": lambda rows, labels: {"data": rows, "labels": ["cat", *labels[1:]]},
    "no dictionary": lambda rows, labels: [rows, labels],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_batch_that_does_not_hold_what_it_should(fault: str, load: Any, batches_py: Path, small_batches: Any) -> None:
    (batches_py / "data_batch_4").write_bytes(pickle.dumps(FAULTS[fault](*small_batches["data_batch_4"])))
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(root=batches_py)
    assert str(batches_py / "data_batch_4") in caught.value.asked
    assert "expected" in caught.value.found


def test_cifar100_is_told_apart(load: Any, batches_py: Path, small_batches: Any) -> None:
    rows, labels = small_batches["data_batch_1"]
    (batches_py / "data_batch_1").write_bytes(pickle.dumps({"data": rows, "fine_labels": labels}))
    with pytest.raises(DataError, match="not of CIFAR-10"):
        load(root=batches_py)


@pytest.mark.parametrize("size", [0, 1, 3073, 20 * 3073 - 1, 20 * 3073 + 1])
def test_a_binary_batch_of_another_length(size: int, load: Any, batches_bin: Path) -> None:
    (batches_bin / "data_batch_2.bin").write_bytes(bytes(size))
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(root=batches_bin.parent)
    assert f"{size:,} bytes" in caught.value.found
    assert f"{20 * 3073:,} bytes" in caught.value.found


def test_a_binary_label_beyond_nine(load: Any, batches_bin: Path) -> None:
    data = bytearray((batches_bin / "test_batch.bin").read_bytes())
    data[0] = 200
    (batches_bin / "test_batch.bin").write_bytes(data)
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        load(root=batches_bin)
    assert "200" in caught.value.found


def test_a_batch_that_may_not_be_read(load: Any, batches_py: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match="cannot be read") as caught:
        load(root=batches_py)
    assert caught.value.found == "Permission denied"


# --- pickles are not run -----------------------------------------------------------------


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("must-not-appear",))


@pytest.mark.parametrize("value", [Malicious(), {"data": Malicious()}, subprocess.Popen, np.random.default_rng, np.load, io.BytesIO, eval])
def test_a_pickle_that_asks_for_more_is_refused(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="it asks for"):
        load_plain_pickle(pickle.dumps(value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_this_numpy_is_read(protocol: int) -> None:
    rows = np.arange(12, dtype=np.uint8).reshape(3, 4)
    document = load_plain_pickle(pickle.dumps({"data": rows, "labels": [np.int64(3), 1], b"name": b"x"}, protocol=protocol))
    np.testing.assert_array_equal(document["data"], rows)
    assert document["labels"] == [3, 1]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_pickle_is_an_error_or_a_value(data: st.DataObject) -> None:
    whole = pickle.dumps({"data": np.zeros((2, 6), np.uint8), "labels": [1, 2]}, protocol=data.draw(st.integers(0, 5)))
    changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    reason = "it was whole"
    try:
        load_plain_pickle(bytes(changed))
    except pickle.UnpicklingError as error:
        reason = str(error)
    assert reason


# --- image folders -------------------------------------------------------------------------


def small_folders(draw: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cifar10, "FOLDER_COUNTS", {"train": 2, "test": 1})
    for part, count in cifar10.FOLDER_COUNTS.items():
        for name in cifar10.CLASSES:
            for number in range(count):
                path = draw(f"{part}/{name}/{number}.png", size=(32, 32))
    return path.parents[2]


def test_image_folders(load: Any, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_folders(draw, monkeypatch)
    dataset = load(root=root)
    assert (dataset.name, dataset.official) == ("cifar10", False)
    assert dataset.train.labels_N.tolist() == [label for label in range(10) for _ in range(2)]
    assert any("image folders" in note for note in dataset.notes)


@pytest.mark.parametrize("fault", ["one image less", "one class less", "one class more", "no test", "another size"])
def test_image_folders_that_are_not_all_of_it(fault: str, load: Any, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_folders(draw, monkeypatch)
    if fault == "one image less":
        (root / "train" / "cat" / "0.png").unlink()
    elif fault == "one class less":
        (root / "test" / "cat" / "0.png").unlink()
        (root / "test" / "cat").rmdir()
    elif fault == "one class more":
        draw("train/zebra/0.png", size=(32, 32))
    elif fault == "no test":
        (root / "test").rename(root / "tests")
    else:
        for path in root.rglob("*.png"):
            draw(str(path.relative_to(root)), size=(28, 28))
    with pytest.raises(DataError) as caught:
        load(root=root, fallback="synthetic10")
    assert str(root) in caught.value.asked


# --- quick again ---------------------------------------------------------------------------


def test_a_second_load_decodes_nothing(load: Any, batches_py: Path) -> None:
    first = load(root=batches_py)
    assert sum(progress.done == progress.total for progress in load.progress) == 1
    load.progress.clear()
    second = load(root=batches_py)
    assert not load.progress
    assert (second.sha256, second.notes) == (first.sha256, first.notes)


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read_again(load: Any, batches_py: Path, small_batches: Any) -> None:
    first = load(root=batches_py)
    path = batches_py / "data_batch_1"
    facts = path.stat()
    rows, labels = small_batches["data_batch_1"]
    path.write_bytes(pickle.dumps({b"data": rows[::-1].copy(), b"labels": labels}, protocol=0))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert load(root=batches_py).sha256 != first.sha256


# --- the real images -----------------------------------------------------------------------


@pytest.mark.data
def test_real_images(load: Any, cifar10_batches: Path) -> None:
    dataset = load(root=cifar10_batches)
    assert (len(dataset.train), len(dataset.test)) == (50_000, 10_000)
    assert np.bincount(dataset.train.labels_N).tolist() == [5000] * 10
    assert np.bincount(dataset.test.labels_N).tolist() == [1000] * 10
    mean = dataset.train.images_NCHW[::10].mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, dataset.mean, atol=0.01)
    start_s = time.perf_counter()
    again = load(root=cifar10_batches)
    assert time.perf_counter() - start_s < 0.3
    assert again.sha256 == dataset.sha256


@pytest.mark.data
@pytest.mark.slow
def test_real_images_in_the_other_layouts(load: Any, cifar10_batches: Path, tmp_path: Path) -> None:
    """Binary batches and an archive hold the same images; image folders hold them in another order."""
    expected = load(root=cifar10_batches)
    binary = tmp_path / "binary" / "cifar-10-batches-bin"
    binary.mkdir(parents=True)
    for name in cifar10.PYTHON.official:
        rows_ND, labels_N = cifar10.read_pickled(cifar10_batches / name, (cifar10_batches / name).read_bytes())
        np.hstack([labels_N[:, None].astype(np.uint8), rows_ND]).tofile(binary / f"{name}.bin")
    assert load(root=binary.parent).sha256 == expected.sha256
    archive = packed(cifar10_batches, tmp_path / "archive" / "cifar-10-python.tar.gz")
    assert load(root=archive.parent).sha256 == expected.sha256


@pytest.mark.data
@pytest.mark.slow
def test_real_image_folders(load: Any, cifar10_batches: Path, tmp_path: Path) -> None:
    unpack = Path(__file__).parents[3] / "shared" / "data" / "unpack"
    if not unpack.is_file():
        pytest.skip("no copy of CIFAR-10 beside the project to unpack image folders from")
    subprocess.run([sys.executable, str(unpack), "folders", str(tmp_path / "folders")], check=True)
    folders, batches = load(root=tmp_path / "folders"), load(root=cifar10_batches)
    for part in ("train", "test"):
        one, other = getattr(folders, part), getattr(batches, part)
        labelled = [sorted(zip(map(bytes, images.digests_ND), images.labels_N, strict=True)) for images in (one, other)]
        assert labelled[0] == labelled[1]
