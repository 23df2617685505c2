from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from deploycnn.data import DataMissing, data_sources
from deploycnn.errors import DataError, RecipeError


def test_the_folder_is_scanned() -> None:
    assert set(data_sources()) == {"cifar10", "mnist", "fashion-mnist", "folder", "synthetic10"}


def test_an_unknown_name_is_told_the_nearest(load: Any) -> None:
    with pytest.raises(RecipeError, match="cifar-10") as caught:
        load(name="cifar-10")
    assert "did you mean cifar10" in caught.value.remedy
    assert "synthetic10" in caught.value.remedy


@pytest.mark.parametrize("option", [{"size": 64}, {"channels": 1}, {"skip_unreadable": True}])
@pytest.mark.parametrize("name", ["cifar10", "mnist", "synthetic10"])
def test_options_of_image_folders_are_refused_elsewhere(name: str, option: dict[str, Any], load: Any) -> None:
    with pytest.raises(RecipeError, match=f"data.{next(iter(option))} "):
        load(name=name, **option)


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist", "folder"])
def test_nothing_there_and_no_download(name: str, load: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploycnn.data.fashion_mnist.DEBIAN", tmp_path / "not installed")
    with pytest.raises(DataMissing) as caught:
        load(name=name, root=tmp_path / "nowhere", download=False)
    assert str(tmp_path / "nowhere") in caught.value.asked
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["cifar10", "mnist", "folder"])
def test_the_fallback_is_loud_and_named(name: str, load: Any, tmp_path: Any) -> None:
    dataset = load(name=name, root=tmp_path / "nowhere", download=False, fallback="synthetic10", train=50, test=20)
    assert dataset.name == "synthetic10"
    assert len(load.warnings) == 1
    assert "\n" not in load.warnings[0]
    assert f"USING 'synthetic10' INSTEAD OF '{name}'" in load.warnings[0]
    assert str(tmp_path / "nowhere") in load.warnings[0]


def test_options_of_image_folders_do_not_stop_the_fallback(load: Any, tmp_path: Any) -> None:
    dataset = load(name="folder", root=tmp_path / "nowhere", fallback="synthetic10", size=64, channels=1, train=20, test=10)
    assert dataset.shape_CHW == (3, 32, 32)


def test_a_missing_fallback_is_an_error_too(load: Any, tmp_path: Any) -> None:
    with pytest.raises(DataMissing, match="mnist"):
        load(name="cifar10", root=tmp_path, download=False, fallback="mnist")


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist", "folder", "synthetic10"])
def test_a_file_as_root(name: str, load: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploycnn.data.fashion_mnist.DEBIAN", tmp_path / "not installed")
    (tmp_path / "file").write_text("no folder")
    if name == "synthetic10":
        assert len(load(name=name, root=tmp_path / "file", train=10, test=10).train) == 10
    else:
        with pytest.raises(DataError):
            load(name=name, root=tmp_path / "file", download=False)


def test_no_tensor_library_is_imported() -> None:
    code = (
        "import sys, tempfile, pathlib\n"
        "from deploycnn.data import load_dataset, split, data_sources\n"
        "from deploycnn.recipe import DataOptions\n"
        "from deploycnn.store import Store\n"
        "data_sources()\n"
        "assert 'PIL' not in sys.modules\n"
        "options = DataOptions(name='synthetic10', train=200, test=20, validation=20, calibration=20)\n"
        "dataset = load_dataset(options, Store(pathlib.Path(tempfile.mkdtemp())), lambda p: None, print)\n"
        "split(dataset, options)\n"
        "print([name for name in ('torch', 'torchvision', 'onnx') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stdout.strip() == "[]"


def test_arrays_are_read_only_memory_maps(load: Any) -> None:
    dataset = load(name="synthetic10", train=30, test=10)
    for images in (dataset.train, dataset.test):
        assert isinstance(images.images_NCHW, np.memmap)
        assert images.images_NCHW.dtype == np.uint8
        assert images.labels_N.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            images.images_NCHW[0] = 0
