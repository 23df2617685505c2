"""Frameworks in processes of their own: same network and batches, weights that the PyTorch twin answers with, states to go on from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deploycnn.errors import RecipeError, TrainingError, Unavailable
from deploycnn.recipe import ModelOptions, TrainOptions
from deploycnn.train.frameworks import Task, check_options, framework_class, framework_classes
from deploycnn.types import Preprocessing
from deploycnn.workers.training import TrainWorker

NAMES = tuple(framework_classes())
TASK = Task(
    width=0.25,
    shape_CHW=(1, 28, 28),
    n_classes=4,
    preprocessing=Preprocessing(mean=(0.3,), std=(0.4,)),
    lr=0.003,
    seed=3,
    threads=1,
    device="cpu",
)
N, BATCH = 200, 32
SIZES = (32, 32, 32, 32, 32, 40)  # a rest that joined the batch before it


def stripes(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise over stripes whose period is the class: uint8 (n, 1, 28, 28), int64 (n,)."""
    random = np.random.default_rng(0)
    labels_N = np.arange(n, dtype=np.int64) % 4
    wave_NW = np.sin(2 * np.pi * (labels_N[:, None] + 1) * (np.arange(28)[None] / 14 + random.random((n, 1))))
    images = 128 + 80 * wave_NW[:, None, None, :] + 15 * random.normal(size=(n, 1, 28, 28))
    return images.clip(0, 255).astype(np.uint8), labels_N


IMAGES_NCHW, LABELS_N = stripes(N)


def order(epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(N)


def need(name: str) -> None:
    readiness = framework_class(name)().probe()
    if readiness.state != "ready":
        pytest.skip(readiness.reason)


@pytest.fixture(params=NAMES)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, TrainWorker]]:
    need(request.param)
    with TrainWorker(request.param, log_path=tmp_path / "log.txt", threads=1) as started:
        yield request.param, started


def twin_logits(weights: dict[str, np.ndarray]) -> np.ndarray:
    import torch

    from deploycnn.models import build_model

    module = build_model(ModelOptions(name="mnist_cnn", width=TASK.width), TASK.shape_CHW, TASK.n_classes).eval()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    x_NCHW = (torch.from_numpy(IMAGES_NCHW).float() / 255 - TASK.preprocessing.mean[0]) / TASK.preprocessing.std[0]
    with torch.inference_mode():
        logits_NK: np.ndarray = module(x_NCHW).numpy()
    return logits_NK


def test_all_three_are_found_and_a_wrong_name_is_told_the_nearest() -> None:
    assert NAMES == ("keras", "tensorflow", "torch")
    with pytest.raises(RecipeError, match="did you mean tensorflow"):
        framework_class("tensorflw")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    framework = framework_class(name)()
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    said = framework.probe()
    assert said.state == "unavailable"
    assert all(distribution in said.reason for distribution in framework.modules.values())
    assert ("deploycnn[" + framework.extra + "]" if framework.extra else "deploycnn") in said.remedy


def test_what_another_framework_cannot_train_is_said_with_what_to_set() -> None:
    plain = TrainOptions(optimizer="adam", schedule="constant", augment=False, weight_decay=0.0, label_smoothing=0.0)
    check_options("keras", "mnist_cnn", plain.model_dump(mode="json"))
    with pytest.raises(RecipeError, match="only PyTorch builds"):
        check_options("keras", "lenet", plain.model_dump(mode="json"))
    with pytest.raises(RecipeError, match=r"train\.augment=false"):
        check_options("keras", "mnist_cnn", plain.model_copy(update={"augment": True}).model_dump(mode="json"))


@pytest.mark.slow
def test_it_learns_its_twin_answers_alike_and_it_goes_on_where_it_was(worker: tuple[str, TrainWorker], tmp_path: Path) -> None:
    name, first = worker
    seen = first.facts(name)
    assert seen.count("cpu") == 1
    assert bool(seen.gpu_reason) == (seen.count("cuda") == 0)
    first.begin(name, TASK, IMAGES_NCHW, LABELS_N)
    losses = [first.epoch(order(number), SIZES).loss for number in range(6)]
    assert losses[-1] < 0.5 * losses[0]
    logits_NK = first.logits(IMAGES_NCHW)
    assert logits_NK.shape == (N, 4)
    assert np.abs(twin_logits(first.weights()) - logits_NK).max() <= 1e-4 * np.abs(logits_NK).max()
    state = first.state()
    next_loss = first.epoch(order(6), SIZES).loss
    with TrainWorker(name, log_path=tmp_path / "second.txt", threads=1) as second:
        second.begin(name, TASK, IMAGES_NCHW, LABELS_N)
        second.restore(state)
        assert second.epoch(order(6), SIZES).loss == pytest.approx(next_loss, rel=1e-4)
        with pytest.raises(TrainingError, match="not of this training"):
            second.restore(b"damaged")


@pytest.mark.slow
def test_keras_on_pytorch_never_imports_tensorflow() -> None:
    need("keras")
    need("tensorflow")  # else there is nothing to keep out
    code = f"""
import sys
import numpy as np
from deploycnn.train.frameworks import Task, framework_class
task = Task.model_validate_json({TASK.model_dump_json()!r})
training = framework_class("keras")().begin(task, np.zeros((8, 1, 28, 28), np.uint8), np.arange(8) % 4)
training.epoch(np.arange(8), (8,), lambda step: None)
print(sorted(name for name, module in sys.modules.items() if name.split(".")[0] == "tensorflow" and module is not None))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.mark.slow
def test_a_gpu_that_is_not_there_is_said(worker: tuple[str, TrainWorker]) -> None:
    name, started = worker
    if started.facts(name).count("cuda"):
        pytest.skip("there is a GPU here")
    with pytest.raises(Unavailable, match="GPU"):
        started.begin(name, TASK.model_copy(update={"device": "cuda"}), IMAGES_NCHW, LABELS_N)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["fp32", "mixed", "compiled"])
def test_every_mode_learns_on_a_gpu(worker: tuple[str, TrainWorker], mode: str) -> None:
    name, started = worker
    if not started.facts(name).count("cuda"):
        pytest.skip(started.facts(name).gpu_reason)
    started.begin(name, TASK.model_copy(update={"device": "cuda", "mode": mode}), IMAGES_NCHW, LABELS_N)
    losses = [started.epoch(order(number), SIZES).loss for number in range(6)]
    assert losses[-1] < 0.5 * losses[0]
    assert (started.memory().device_peak_bytes or 0) > 0


def test_weights_of_keras_become_those_of_the_twin_by_layout() -> None:
    from deploycnn.train.frameworks._keras_network import twin_weights

    random = np.random.default_rng(1)
    kernels = {"conv1": (3, 3, 1, 2), "conv2": (3, 3, 2, 3), "conv3": (3, 3, 3, 4), "dense1": (2 * 2 * 4, 5), "dense2": (5, 6)}
    found = {f"sequential/{layer}/kernel": random.normal(size=shape) for layer, shape in kernels.items()}
    found |= {f"sequential/{layer}/bias": random.normal(size=shape[-1]) for layer, shape in kernels.items()}
    moved = twin_weights(found, (2, 2, 4))
    x_HWC = random.normal(size=(2, 2, 4))
    theirs = x_HWC.reshape(-1) @ found["sequential/dense1/kernel"]
    ours = moved["classifier.0.weight"] @ x_HWC.transpose(2, 0, 1).reshape(-1)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert moved["features.3.weight"].shape == (3, 2, 3, 3)
    assert moved["features.3.weight"][2, 1, 0, 2] == pytest.approx(found["sequential/conv2/kernel"][0, 2, 1, 2])
