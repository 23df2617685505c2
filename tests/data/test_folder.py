from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploycnn.data import DataMissing, split
from deploycnn.data._trees import scan_tree
from deploycnn.errors import DataError
from deploycnn.recipe import DataOptions


@pytest.fixture
def images(draw: Any, tmp_path: Path) -> Path:
    """train/{cat,dog} with three images each and val/{cat,dog} with two."""
    for part, count in (("train", 3), ("val", 2)):
        for name in ("cat", "dog"):
            for number in range(count):
                draw(f"{part}/{name}/{number}.png")
    return tmp_path / "images"


def folder(load: Any, root: Path, **options: Any) -> Any:
    return load(name="folder", root=root, **options)


def test_images_by_class(load: Any, images: Path) -> None:
    dataset = folder(load, images)
    assert (dataset.name, dataset.classes, dataset.official) == ("folder", ("cat", "dog"), None)
    assert dataset.train.images_NCHW.shape == (6, 3, 8, 8)
    assert dataset.train.labels_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels_N.tolist() == [0, 0, 1, 1]
    assert dataset.notes == ()
    from PIL import Image

    with Image.open(images / "train" / "dog" / "1.png") as image:
        np.testing.assert_array_equal(dataset.train.images_NCHW[4], np.asarray(image).transpose(2, 0, 1))


def test_classes_are_in_torchvisions_order(load: Any, draw: Any, images: Path) -> None:
    for name in ("Zebra", "10", "9"):
        draw(f"train/{name}/a.png")
    assert folder(load, images).classes == tuple(sorted(("cat", "dog", "Zebra", "10", "9")))


def test_images_in_folders_below_a_class(load: Any, draw: Any, images: Path) -> None:
    draw("train/cat/more/even/a.jpeg")
    assert np.bincount(folder(load, images).train.labels_N).tolist() == [4, 3]


def test_a_link_to_a_folder_above_ends(load: Any, images: Path) -> None:
    (images / "train" / "cat" / "loop").symlink_to(images / "train" / "cat")
    assert len(folder(load, images).train) == 6


def test_test_comes_before_val(load: Any, draw: Any, images: Path) -> None:
    draw("test/cat/a.png")
    dataset = folder(load, images)
    assert len(dataset.test) == 1
    assert any("val is not used" in note for note in dataset.notes)


def test_a_test_folder_without_classes_gives_way_to_val(load: Any, draw: Any, images: Path) -> None:
    draw("test/a.png")
    dataset = folder(load, images)
    assert len(dataset.test) == 4
    assert any("test is not used" in note for note in dataset.notes)


# --- D2: classes by name -----------------------------------------------------------------------


def test_classes_of_val_map_by_name(load: Any, draw: Any, tmp_path: Path) -> None:
    for part, names in (("train", ("0", "180", "270", "90")), ("val", ("0", "270", "90"))):
        for name in names:
            draw(f"{part}/{name}/a.png")
    dataset = folder(load, tmp_path / "images")
    assert dataset.classes == ("0", "180", "270", "90")
    assert dataset.test.labels_N.tolist() == [0, 2, 3]
    assert any("no test images of 180" in note and "other 3 classes" in note for note in dataset.notes)
    assert not dataset.flip  # mirrored, a quarter turn is another class


def test_an_empty_class_of_val_is_missing_too(load: Any, images: Path) -> None:
    for path in (images / "val" / "dog").iterdir():
        path.unlink()
    assert any("no test images of dog" in note for note in folder(load, images).notes)


def test_a_class_only_in_val_is_an_error(load: Any, draw: Any, images: Path) -> None:
    draw("val/zebra/a.png")
    with pytest.raises(DataError, match="has classes that") as caught:
        folder(load, images)
    assert "zebra" in caught.value.found
    assert "cat, dog" in caught.value.found


def test_an_empty_class_of_train_is_an_error(load: Any, images: Path) -> None:
    (images / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match="without an image") as caught:
        folder(load, images)
    assert caught.value.found == "zebra"


def test_composed_and_decomposed_names_are_one_class(load: Any, draw: Any, images: Path) -> None:
    draw(f"train/{unicodedata.normalize('NFC', 'café')}/a.png")
    draw(f"val/{unicodedata.normalize('NFD', 'café')}/a.png")
    dataset = folder(load, images)
    assert len(dataset.classes) == 3
    assert len(dataset.test) == 5


@pytest.mark.parametrize(
    ("names", "flip"),
    [(("cat", "dog"), True), (("0", "1"), False), (("cat", "-90"), False), (("turn_left", "turn_right"), False), (("LEFT", "x"), False)],
)
def test_mirroring_where_it_keeps_the_class(names: tuple[str, ...], flip: bool, load: Any, draw: Any, tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in names:
            draw(f"{part}/{name}/a.png")
    assert folder(load, tmp_path / "images").flip is flip


# --- D3: files that cannot be read ---------------------------------------------------------------


def spoil(images: Path) -> dict[Path, str]:
    """The files of CASES D3 in train/cat: what cannot be read, with a word of the reason."""
    cat = images / "train" / "cat"
    half = cat / "half.jpg"
    from PIL import Image

    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).resize((8, 8)).save(half)
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    (cat / "empty.jpg").write_bytes(b"")
    (cat / "page.jpg").write_bytes(b"<html><body>Not found</body></html>")
    (cat / "._ok.jpg").write_bytes(b"\0\5\x16\7 resource fork")
    (cat / "nowhere.png").symlink_to(cat / "gone.png")
    return {half: "", cat / "empty.jpg": "empty file", cat / "page.jpg": "web page", cat / "nowhere.png": "No such file"}


def test_every_unreadable_image_is_listed(load: Any, images: Path) -> None:
    bad = spoil(images)
    bad[images / "val" / "dog" / "text.png"] = "no image"
    (images / "val" / "dog" / "text.png").write_text("text")
    with pytest.raises(DataError, match="5 of 15 images cannot be read") as caught:
        folder(load, images)
    lines = caught.value.found.splitlines()
    assert len(lines) == 5
    for path, reason in bad.items():
        assert any(f"{path}: " in line and reason in line for line in lines)
    assert "._ok.jpg" not in caught.value.found
    assert "data.skip_unreadable=true" in caught.value.remedy


def test_unreadable_images_can_be_skipped_and_are_counted(load: Any, images: Path) -> None:
    whole = folder(load, images)
    bad = spoil(images)
    dataset = folder(load, images, skip_unreadable=True)
    assert dataset.sha256 == whole.sha256
    note = next(note for note in dataset.notes if "skipped" in note)
    assert note.startswith("4 of 14 images skipped")
    assert all(str(path) in note for path in bad)
    assert any(note == "1 hidden or system files ignored" for note in dataset.notes)


def test_labels_stay_with_their_images_when_some_are_skipped(load: Any, images: Path) -> None:
    from PIL import Image

    (images / "train" / "cat" / "0.png").write_bytes(b"")
    (images / "train" / "dog" / "1.png").write_bytes(b"")
    (images / "val" / "cat" / "1.png").write_bytes(b"")
    dataset = folder(load, images, skip_unreadable=True)
    assert dataset.train.labels_N.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels_N.tolist() == [0, 1, 1]
    kept = ("train/cat/1", "train/cat/2", "train/dog/0", "train/dog/2")
    for row, name in enumerate(kept):
        with Image.open(images / f"{name}.png") as image:
            np.testing.assert_array_equal(dataset.train.images_NCHW[row], np.asarray(image).transpose(2, 0, 1))


def test_a_class_with_nothing_left_is_an_error(load: Any, images: Path) -> None:
    for path in (images / "train" / "cat").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="without an image") as caught:
        folder(load, images, skip_unreadable=True)
    assert caught.value.found == "cat"


@pytest.mark.parametrize("skip", [False, True])
def test_when_no_image_can_be_read(skip: bool, load: Any, images: Path) -> None:
    for path in images.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="10 of 10 images cannot be read"):
        folder(load, images, skip_unreadable=skip)


def test_what_systems_leave_behind_is_ignored_and_counted(load: Any, draw: Any, images: Path) -> None:
    whole = folder(load, images)
    cat = images / "train" / "cat"
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._0.png", ".hidden.png"):
        (cat / name).write_bytes(b"\0")
    (images / "train" / ".ipynb_checkpoints").mkdir()
    (images / "train" / "__MACOSX").mkdir()
    (cat / "notes.txt").write_text("not an image")
    (images / "train" / "labels.csv").write_text("not an image")
    dataset = folder(load, images)
    assert dataset.sha256 == whole.sha256
    assert dataset.classes == ("cat", "dog")
    expected = {
        "7 hidden or system files ignored",
        "1 files without the ending of an image ignored",
        "1 files outside of the class folders ignored",
    }
    assert set(dataset.notes) == expected


# --- D4, D6: modes, channels, sizes --------------------------------------------------------------


def test_modes_are_converted_and_counted(load: Any, draw: Any, tmp_path: Path) -> None:
    kinds = (("RGBA", "png"), ("RGBA", "png"), ("CMYK", "jpg"), ("P", "png"), ("LA", "png"), ("1", "png"), ("RGB", "png"))
    for part in ("train", "val"):
        for number, (mode, suffix) in enumerate(kinds):
            draw(f"{part}/a/{number}.{suffix}", mode=mode)
    dataset = folder(load, tmp_path / "images")
    assert dataset.train.images_NCHW.shape == (7, 3, 8, 8)
    note = next(note for note in dataset.notes if "converted" in note)
    assert note == "images converted to RGB (transparent parts on white): 1 2, CMYK 2, LA 2, P 2, RGBA 4"


def test_one_channel(load: Any, images: Path) -> None:
    dataset = folder(load, images, channels=1)
    assert dataset.shape_CHW == (1, 8, 8)
    assert len(dataset.mean) == len(dataset.std) == 1
    np.testing.assert_allclose(dataset.mean[0], dataset.train.images_NCHW.mean() / 255)
    assert any("converted to grey" in note for note in dataset.notes)


def test_images_of_different_sizes(load: Any, draw: Any, images: Path) -> None:
    odd = draw("val/cat/odd.png", size=(10, 6))
    with pytest.raises(DataError, match="2 different sizes") as caught:
        folder(load, images)
    assert f"{odd} is 10x6" in caught.value.found
    assert "is 8x8" in caught.value.found
    assert "data.size=8" in caught.value.remedy
    assert folder(load, images, size=8).shape_CHW == (3, 8, 8)


def test_unreadable_images_come_before_sizes(load: Any, draw: Any, images: Path) -> None:
    draw("val/cat/odd.png", size=(10, 6))
    (images / "val" / "cat" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match="1 of 11 images cannot be read"):
        folder(load, images)


@pytest.mark.parametrize("option", [{"size": 4}, {"channels": 1}])
def test_another_treatment_is_decoded_anew(option: dict[str, Any], load: Any, images: Path) -> None:
    whole = folder(load, images)
    treated = folder(load, images, **option)
    assert treated.sha256 != whole.sha256
    assert folder(load, images).sha256 == whole.sha256


# --- where there is nothing ---------------------------------------------------------------------


def test_an_empty_or_missing_root(load: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for root in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(DataMissing) as caught:
            folder(load, root)
        assert "train/CLASS" in caught.value.remedy


def test_class_folders_in_the_root(load: Any, images: Path) -> None:
    with pytest.raises(DataError, match="no folder train") as caught:
        folder(load, images / "train")
    assert "cat, dog" in caught.value.found


@pytest.mark.parametrize("gone", ["val", "classes of train", "classes of val"])
def test_half_a_layout(gone: str, load: Any, images: Path) -> None:
    part = images / gone.rpartition(" ")[2]
    part.rename(images / "elsewhere")
    if gone != "val":
        part.mkdir()
        (part / "a.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        folder(load, images, fallback="synthetic10")
    assert "CLASS" in caught.value.remedy


# --- decoded once ---------------------------------------------------------------------------------


def test_progress_counts_every_image_and_the_second_load_none(load: Any, images: Path) -> None:
    folder(load, images)
    assert (load.progress[-1].done, load.progress[-1].total, load.progress[-1].unit) == (10, 10, "images")
    load.progress.clear()
    folder(load, images)
    assert not load.progress


@pytest.mark.parametrize("change", ["content", "one more", "one less", "renamed class"])
def test_a_changed_tree_is_decoded_anew(change: str, load: Any, draw: Any, images: Path) -> None:
    before = folder(load, images).sha256
    path = images / "train" / "cat" / "1.png"
    if change == "content":
        facts = path.stat()
        draw("train/cat/1.png")
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    elif change == "one more":
        draw("train/cat/4.png")
    elif change == "one less":
        path.unlink()
    else:
        for part in ("train", "val"):
            (images / part / "cat").rename(images / part / "lion")
    assert folder(load, images).sha256 != before


def test_more_images_than_one_thread_takes_at_once(load: Any, draw: Any, tmp_path: Path) -> None:
    for number in range(300):
        draw(f"train/{number % 3}/{number:03}.bmp", size=(5, 4))
    draw("test/0/a.bmp", size=(5, 4))
    dataset = folder(load, tmp_path / "images")
    from PIL import Image

    paths = [Path(path) for members in scan_tree(tmp_path / "images" / "train").classes.values() for path in members]
    assert len(dataset.train) == len(paths) == 300
    for row in range(0, 300, 37):
        with Image.open(paths[row]) as image:
            np.testing.assert_array_equal(dataset.train.images_NCHW[row], np.asarray(image).transpose(2, 0, 1))
    splits = split(dataset, DataOptions(name="folder", validation=30, calibration=30))
    assert (len(splits.train_N), len(splits.validation_N), len(splits.calibration_N)) == (240, 30, 30)
