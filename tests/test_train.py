"""Training: it learns, goes on exactly where it was stopped, and says why it cannot."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from deploycnn import disk
from deploycnn.data import DataSet, ImageSet, Splits
from deploycnn.errors import DeployError, ModelError, StoreError, TrainingError, Unavailable
from deploycnn.models import build_model
from deploycnn.recipe import ModelOptions, TrainOptions
from deploycnn.train import BEST, LAST, TrainResult, batch_sizes, evaluate, learning_rate, train
from deploycnn.train._pixels import DevicePixels
from deploycnn.types import Preprocessing, Progress

CHANGES = {"epochs": 2, "batch": 32, "lr": 0.05, "threads": 1}


def image_set(images_NCHW: np.ndarray, labels_N: np.ndarray) -> ImageSet:
    digests = [np.frombuffer(hashlib.blake2b(image.tobytes(), digest_size=16).digest(), np.uint8) for image in images_NCHW]
    sha256 = hashlib.sha256(images_NCHW.tobytes() + labels_N.tobytes()).hexdigest()
    return ImageSet(images_NCHW=images_NCHW, labels_N=labels_N, digests_ND=np.stack(digests), sha256=sha256)


def stripes(n: int, shape_CHW: tuple[int, int, int], n_classes: int, seed: int) -> ImageSet:
    """Noise over stripes whose period is the class: learnt in a few epochs, not by mean colour."""
    random = np.random.default_rng(seed)
    labels_N = np.arange(n, dtype=np.int64) % n_classes
    column_W = np.arange(shape_CHW[2])
    wave_NW = np.sin(2 * np.pi * (labels_N[:, None] + 1) * (column_W[None] / 16 + random.random((n, 1))))
    images = 128 + 70 * wave_NW[:, None, None, :] + 20 * random.normal(size=(n, *shape_CHW))
    return image_set(images.clip(0, 255).astype(np.uint8), labels_N)


def data(n: int = 200, shape_CHW: tuple[int, int, int] = (3, 16, 16), n_classes: int = 4) -> tuple[DataSet, Splits]:
    train_set, test_set = stripes(n + 100, shape_CHW, n_classes, seed=1), stripes(40, shape_CHW, n_classes, seed=2)
    dataset = DataSet(
        name="stripes",
        classes=tuple(f"period {k}" for k in range(n_classes)),
        train=train_set,
        test=test_set,
        official=None,
        source="the test",
        notes=(),
        sha256=train_set.sha256,
        mean=(0.5,) * shape_CHW[0],
        std=(0.25,) * shape_CHW[0],
        flip=True,
    )
    index_N = np.arange(n + 100)
    return dataset, Splits(train_N=index_N[:n], validation_N=index_N[n : n + 67], calibration_N=index_N[n + 67 :])


def run(
    folder: Path, *, module: nn.Module | None = None, resume: bool = False, parts: Any = None, progress: Any = None, **options: Any
) -> TrainResult:
    dataset, splits = parts or data()
    module = module or build_model(ModelOptions(name="lenet"), dataset.shape_CHW, len(dataset.classes))
    preprocessing = Preprocessing(mean=dataset.mean, std=dataset.std)
    told = progress or (lambda step: None)
    return train(module, dataset, splits, TrainOptions(**{**CHANGES, **options}), preprocessing, folder, resume, told)


def same_weights(left: nn.Module, right: nn.Module) -> bool:
    other = right.state_dict()
    return all(torch.equal(tensor, other[name]) for name, tensor in left.state_dict().items())


# --- it learns ------------------------------------------------------------------------------


def test_it_learns_and_says_what_it_did(tmp_path: Path) -> None:
    steps: list[Progress] = []
    result = run(tmp_path, epochs=8, progress=steps.append)
    assert result.validation_top1 > 0.9
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert [epoch.epoch for epoch in result.history] == list(range(1, 9))
    assert result.validation_top1 == max(epoch.validation_top1 for epoch in result.history)
    assert (steps[-1].done, steps[-1].total, steps[-1].unit) == (1600, 1600, "images")
    assert result.facts["options"]["seed"] == 0
    assert result.facts["n_train"] == 200
    assert result.facts["data"] == "stripes"
    assert not result.module.training
    assert {parameter.device.type for parameter in result.module.parameters()} == {"cpu"}


def test_the_module_given_back_is_the_best_epoch(tmp_path: Path) -> None:
    dataset, splits = data()
    result = run(tmp_path, epochs=4)
    pixels = DevicePixels(dataset.train, splits.validation_N, 0, Preprocessing(mean=dataset.mean, std=dataset.std), torch.device("cpu"))
    assert evaluate(result.module, pixels)[1] == result.validation_top1 == result.history[result.best_epoch - 1].validation_top1
    from safetensors.torch import load_file

    kept = load_file(tmp_path / BEST)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in result.module.state_dict().items())


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    first, second, other = (run(tmp_path / name, seed=seed).module for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert same_weights(first, second)
    assert not same_weights(first, other)


def test_training_leaves_the_callers_random_numbers_and_threads_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    run(tmp_path, epochs=1, threads=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


# --- schedule and batches -------------------------------------------------------------------


def test_one_cycle_rises_for_a_quarter_and_falls_to_zero() -> None:
    options = TrainOptions(lr=0.4)
    rates = [learning_rate(options, share / 100) for share in range(101)]
    assert max(rates) == rates[25] == 0.4
    assert rates[0] == pytest.approx(0.016)
    assert rates[100] == pytest.approx(0, abs=1e-12)
    assert rates[:26] == sorted(rates[:26])
    assert rates[25:] == sorted(rates[25:], reverse=True)
    assert learning_rate(TrainOptions(lr=0.4, schedule="constant"), 0.9) == 0.4


@pytest.mark.parametrize(("n", "batch"), [(65, 64), (64, 64), (1, 64), (100, 64), (129, 64), (5, 4), (7, 1), (70, 64), (2, 2), (3, 2)])
def test_every_image_is_in_one_batch_and_no_batch_is_a_small_rest(n: int, batch: int) -> None:
    sizes = batch_sizes(n, batch)
    assert sum(sizes) == n
    assert min(sizes) >= min(n, batch, max(2, batch / 4)) or batch == 1


@pytest.mark.parametrize("batch", [64, 1])
def test_a_rest_of_one_image_trains_with_batchnorm_and_evaluation_counts_every_image(tmp_path: Path, batch: int) -> None:
    class Dense(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(768, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    parts = data(n=65)
    if batch == 1:
        with pytest.raises(ModelError, match="cannot train on batches of 1"):
            run(tmp_path, module=Dense(), parts=parts, batch=batch)
        return
    result = run(tmp_path, module=Dense(), parts=parts, batch=batch)
    assert result.facts["n_train"] == 65
    assert (result.validation_top1 * 67) == pytest.approx(round(result.validation_top1 * 67))
    assert result.facts["n_validation"] == 67


# --- pixels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape_CHW", [(3, 16, 16), (1, 12, 20), (4, 9, 7)])
@pytest.mark.parametrize("pad", [0, 2])
def test_crops_are_slices_of_the_mirrored_image(shape_CHW: tuple[int, int, int], pad: int) -> None:
    random = np.random.default_rng(0)
    images = image_set(random.integers(0, 256, (10, *shape_CHW), np.uint8), np.arange(10))
    c, h, w = shape_CHW
    mean, std = tuple(np.linspace(0.3, 0.6, c)), tuple(np.linspace(0.2, 0.3, c))
    pixels = DevicePixels(images, np.arange(10), pad, Preprocessing(mean=mean, std=std), torch.device("cpu"))
    index_N = torch.tensor([3, 9, 0, 9])
    dy_N, dx_N = torch.tensor([0, 2 * pad, pad, 0]), torch.tensor([2 * pad, 0, pad, 0])
    got = pixels.batch(pixels.offsets(index_N, dy_N, dx_N), 2).numpy()
    padded = np.pad(images.images_NCHW, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
    for k, (i, dy, dx) in enumerate(zip(index_N, dy_N, dx_N, strict=True)):
        crop = padded[i, :, dy : dy + h, dx : dx + w].astype(np.float64)
        crop = crop[:, :, ::-1] if k < 2 else crop
        want = (crop / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
        np.testing.assert_allclose(got[k], want, atol=2e-5)
    centred = pixels.batch(pixels.centred(torch.arange(10)), 0).numpy()
    plain = (images.images_NCHW / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(centred, plain, atol=2e-5)


# --- stopping and going on ------------------------------------------------------------------


class Killed(Exception):
    """Stands for SIGKILL: nothing of training runs after it."""


def killer(epoch: int) -> Callable[[Progress], None]:
    def told(step: Progress) -> None:
        if step.note.startswith(f"epoch {epoch}/"):
            raise Killed

    return told


@pytest.mark.parametrize("network", ["lenet", "resnet8", "dropout"])
def test_killed_in_epoch_3_of_6_and_resumed_gives_the_weights_of_an_uninterrupted_run(tmp_path: Path, network: str) -> None:
    def fresh() -> nn.Module:
        if network != "dropout":
            return build_model(ModelOptions(name=network, width=0.5), (3, 16, 16), 4)
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 4))

    whole = run(tmp_path / "whole", module=fresh(), epochs=6)
    with pytest.raises(Killed):
        run(tmp_path / "parts", module=fresh(), epochs=6, progress=killer(3))
    resumed = run(tmp_path / "parts", module=fresh(), epochs=6, resume=True)
    assert same_weights(whole.module, resumed.module)
    keys = ("epoch", "lr", "loss", "validation_loss", "validation_top1")
    assert [[getattr(e, k) for k in keys] for e in whole.history] == [[getattr(e, k) for k in keys] for e in resumed.history]


def test_resuming_a_finished_training_trains_nothing(tmp_path: Path) -> None:
    first = run(tmp_path)

    def told(step: Progress) -> None:
        raise AssertionError(f"it trained: {step}")

    again = run(tmp_path, resume=True, progress=told)
    assert same_weights(first.module, again.module)
    assert again.history == first.history


def test_resuming_from_nothing_starts_at_the_start(tmp_path: Path) -> None:
    assert same_weights(run(tmp_path / "a", resume=True).module, run(tmp_path / "b").module)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"lr": 0.1}, "train.lr is 0.1, was 0.05"), ({"epochs": 3}, "train.epochs is 3, was 2"), ({"parts": data(n=150)}, "training images")],
)
def test_a_state_of_another_training_is_refused_by_what_differs(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    run(tmp_path)
    with pytest.raises(TrainingError, match=named):
        run(tmp_path, resume=True, **change)


def test_device_and_threads_may_change_between_stop_and_resume(tmp_path: Path) -> None:
    run(tmp_path)
    assert run(tmp_path, resume=True, threads=2, device="cpu").epochs == 2


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "damage",
    [_cut, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"<html>not found</html>"), lambda p: torch.save({"a": 1}, p)],
    ids=["cut in half", "0 bytes", "a web page", "something else"],
)
def test_a_damaged_state_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    run(tmp_path)
    damage(tmp_path / LAST)
    with pytest.raises(ModelError) as caught:
        run(tmp_path, resume=True)
    assert str(tmp_path / LAST) in caught.value.asked
    assert "delete" in caught.value.remedy


def test_a_full_disk_is_one_message_and_the_state_before_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(number: int) -> Callable[[Progress], None]:
        def told(step: Progress) -> None:
            if step.note.startswith(f"epoch {number}/"):
                monkeypatch.setattr(disk.os, "fsync", full)

        return told

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match="the disk is full"):
        run(tmp_path, epochs=3, progress=fill(2))
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, LAST]
    assert same_weights(run(tmp_path, epochs=3, resume=True).module, run(tmp_path / "whole", epochs=3).module)


@pytest.mark.parametrize(
    "signal_name", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.slow), pytest.param("SIGTERM", marks=pytest.mark.slow)]
)
def test_a_signal_leaves_a_state_to_go_on_from(tmp_path: Path, signal_name: str) -> None:
    program = f"""
        import importlib.util, os, signal, sys
        from pathlib import Path
        spec = importlib.util.spec_from_file_location("train_tests", {str(Path(__file__))!r})
        tests = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tests)
        def told(step):
            if step.note.startswith("epoch 3/"):
                os.kill(os.getpid(), signal.{signal_name})
        tests.run(Path({str(tmp_path)!r}), epochs=4, progress=told)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode != 0, ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".tmp")) == [BEST, LAST]
    assert same_weights(run(tmp_path, epochs=4, resume=True).module, run(tmp_path / "whole", epochs=4).module)


# --- what cannot go on ----------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_stops_training_and_keeps_the_state_before(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="diverged") as caught:
        run(tmp_path, lr=1e8, schedule="constant", epochs=30)
    assert "train.lr" in caught.value.remedy
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


class FixedPool(nn.Sequential):
    """A network for 32x32 images that says nothing of it but by failing."""

    def __init__(self, channels: int = 3, classes: int = 4) -> None:
        super().__init__(nn.Conv2d(channels, 8, 3, stride=4, padding=1), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(8, classes))


@pytest.mark.parametrize(
    ("module", "shape_CHW", "said"),
    [
        (FixedPool(), (3, 64, 64), ["3x32x32", "3x64x64", "data.size to 32"]),
        (FixedPool(), (3, 28, 28), ["3x32x32", "3x28x28", "data.size to 32"]),
        (FixedPool(channels=1), (3, 32, 32), ["1x32x32", "3x32x32", "data.channels to 1"]),
        (FixedPool(channels=3), (1, 32, 32), ["3x32x32", "1x32x32", "data.channels to 3"]),
        (FixedPool(channels=1), (3, 64, 64), ["1x32x32", "3x64x64", "data.channels to 1", "data.size to 32"]),
        (FixedPool(classes=10), (3, 32, 32), ["10 logits", "4 classes", "period 0, period 1, period 2, period 3"]),
        (FixedPool(classes=1000), (3, 32, 32), ["1000 logits", "4 classes", "period 3"]),
        (nn.Conv2d(3, 4, 3), (3, 32, 32), ["one row of logits"]),
    ],
    ids=["size 64", "size 28", "gray network", "gray images", "both", "10 logits", "1000 logits", "no logits"],
)
def test_a_network_that_does_not_fit_is_told_before_training(tmp_path: Path, module: nn.Module, shape_CHW: Any, said: list[str]) -> None:
    def told(step: Progress) -> None:
        raise AssertionError("it trained")

    with pytest.raises(ModelError) as caught:
        run(tmp_path, module=module, parts=data(n=40, shape_CHW=shape_CHW), progress=told)
    for text in said:
        assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_gray_network_trains_on_gray_images(tmp_path: Path) -> None:
    assert run(tmp_path, module=FixedPool(channels=1), parts=data(n=40, shape_CHW=(1, 32, 32))).epochs == 2


@pytest.mark.parametrize(("part", "kind"), [("train_N", TrainingError), ("validation_N", TrainingError)])
def test_no_images_is_said(tmp_path: Path, part: str, kind: type[DeployError]) -> None:
    dataset, splits = data()
    empty = np.array([], np.int64)
    parts = {name: getattr(splits, name) for name in ("train_N", "validation_N", "calibration_N")} | {part: empty}
    with pytest.raises(kind, match="nothing to train on"):
        run(tmp_path, parts=(dataset, Splits(**parts)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"train\.device is cuda"):
        run(tmp_path, device="cuda")


@pytest.mark.gpu
def test_training_on_a_gpu_learns_and_resumes(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", epochs=8, device="cuda").validation_top1 > 0.9
    with pytest.raises(Killed):
        run(tmp_path / "parts", epochs=8, device="cuda", progress=killer(3))
    assert run(tmp_path / "parts", epochs=8, device="cuda", resume=True).validation_top1 > 0.9
