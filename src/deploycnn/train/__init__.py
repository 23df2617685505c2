"""Training, top to bottom: images on the device as bytes, augmentation by whole batches, one-cycle SGD.

LeNet on the JPEG copy of CIFAR-10: 74.15 % of 10,000 test images after 60 epochs of 44,488 (pipeline/train-lenet.yaml),
ResNet-8: 83.15 % after 24 (pipeline/train-resnet8.yaml); each n=1, seed 0, PyTorch 2.14.1, one thread of an Intel Xeon
(Sapphire Rapids). LeNet there: 5,500-7,500 images per CPU second, batch 256, n=6 on a machine shared with other work;
ResNet-8: 570-740 images/s. benchmarks/training.py measures it against the loop of PyTorch's tutorial.

Every epoch draws its order and its crops from (seed, epoch) alone, so a run that was killed and resumed goes on exactly
as it would have: `last.pt` holds weights, optimiser, epoch and history, and is replaced whole after each epoch.
Nothing else is random in training but dropout, which is seeded by epoch too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploycnn.data import DataSet, Splits
from deploycnn.environment import environment, usable_cores
from deploycnn.errors import TrainingError
from deploycnn.models.fit import check_fit
from deploycnn.recipe import TrainOptions
from deploycnn.train._device import autocast, choose_device
from deploycnn.train._pixels import DevicePixels
from deploycnn.train._state import BEST, LAST, Epoch, State, load_state, save_state
from deploycnn.types import Preprocessing, Progress, ProgressCallback

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["BEST", "LAST", "Epoch", "TrainResult", "batch_sizes", "evaluate", "learning_rate", "train"]

_WARM_UP = 0.25  # share of one-cycle training in which the learning rate rises
_FIRST_LR = 0.04  # of the peak
_CHECK_EVERY = 50  # steps between looks at the loss: on a GPU each look waits for the device
_TELL_EVERY_S = 0.1
_EVALUATION_BATCH = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainResult:
    """A trained network and how it came about.

    Attributes:
        module: the one given, on the CPU in eval mode, with the weights of the epoch with the best validation top-1.
        epochs: how many were trained, those before a resume among them.
        best_epoch: counted from 1; the later one of equals.
        validation_top1: of that epoch, share 0 to 1.
        images_per_s: median over epochs, validation not counted.
        seconds: all epochs with their validation, those before a resume among them.
        history: one entry per epoch.
        facts: JSON values for the checkpoint: options, seed, images, machine, versions, figures.
    """

    module: nn.Module
    epochs: int
    best_epoch: int
    validation_top1: float
    images_per_s: float
    seconds: float
    history: tuple[Epoch, ...]
    facts: Mapping[str, Any]


def train(
    module: nn.Module,
    dataset: DataSet,
    splits: Splits,
    options: TrainOptions,
    preprocessing: Preprocessing,
    folder: Path,
    resume: bool,
    progress: ProgressCallback,
) -> TrainResult:
    """Trains `module` on the training part and keeps the epoch that is best on the validation part.

    Args:
        module: float images (N, C, H, W), normalised, to logits (N, K). Trained in place.
        folder: `last.pt` (what a resume needs) and `best.safetensors` (weights) are written here after each epoch.
        resume: go on from `last.pt` if there is one; otherwise it is overwritten.
        progress: told about images, epoch, rate and accuracy, ten times a second.

    Raises:
        ModelError: the module does not take these images or does not give one logit per class; a damaged `last.pt`.
        TrainingError: the loss is no longer a number; `last.pt` belongs to another training; no images.
        Unavailable: `options.device` is cuda and there is none.
        StoreError: disk full or not writable; the previous `last.pt` is then still whole.
    """
    import torch

    if len(splits.train_N) == 0 or len(splits.validation_N) == 0:
        found = f"{len(splits.train_N)} training and {len(splits.validation_N)} validation images"
        raise TrainingError("there is nothing to train on", found=found, remedy="lower data.validation and data.calibration, or add images")
    device = choose_device(options.device)
    check_fit(module, dataset.shape_CHW, dataset.classes, training_batch=min(batch_sizes(len(splits.train_N), options.batch)))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads or usable_cores())
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            run = _Run(module, dataset, splits, options, preprocessing, device)
            if resume and (folder / LAST).exists():
                run.restore(load_state(folder / LAST, device, run.identity()))
            while len(run.history) < options.epochs:
                run.epoch(progress)
                save_state(folder, run.state(), run.identity())
            return run.result()
    finally:
        torch.set_num_threads(threads_before)


def learning_rate(options: TrainOptions, share: float) -> float:
    """The learning rate after `share` (0 to 1) of all steps: up in a line for a quarter, then down to zero along a cosine.

    One-cycle after Smith and Topin, "Super-convergence", 2018 (arXiv 1708.07120), momentum left alone.
    """
    if options.schedule == "constant":
        return options.lr
    if share < _WARM_UP:
        return options.lr * (_FIRST_LR + (1 - _FIRST_LR) * share / _WARM_UP)
    return options.lr * 0.5 * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP)))


def batch_sizes(n_images: int, batch: int) -> list[int]:
    """How an epoch is cut: a rest of one image, or of less than a quarter batch, joins the batch before it.

    BatchNorm cannot train on one image, and a few images give it statistics that do harm. Every image is used.
    """
    whole, rest = divmod(n_images, batch)
    sizes = [batch] * whole
    if rest and sizes and (rest == 1 or 4 * rest < batch):
        sizes[-1] += rest
    elif rest:
        sizes.append(rest)
    return sizes


def evaluate(module: nn.Module, pixels: DevicePixels) -> tuple[float, float]:
    """(mean cross entropy, top-1 share) over every image of `pixels`, in fp32 and eval mode."""
    import torch
    from torch.nn import functional as F

    module.eval()
    device = pixels.labels_N.device
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    with torch.inference_mode():
        for first in range(0, len(pixels), _EVALUATION_BATCH):
            index_B = torch.arange(first, min(first + _EVALUATION_BATCH, len(pixels)), device=device)
            logits_NK = module(pixels.batch(pixels.centred(index_B), 0))
            labels_B = pixels.labels_N[index_B]
            loss += F.cross_entropy(logits_NK, labels_B, reduction="sum")
            right += (logits_NK.argmax(1) == labels_B).sum()
    return loss.item() / len(pixels), right.item() / len(pixels)


class _Run:
    """One training: images, module and optimiser on the device, and what has come of them so far."""

    def __init__(
        self,
        module: nn.Module,
        dataset: DataSet,
        splits: Splits,
        options: TrainOptions,
        preprocessing: Preprocessing,
        device: torch.device,
    ) -> None:
        import torch

        self.options, self.dataset, self.device, self.preprocessing = options, dataset, device, preprocessing
        self.mirrors = options.augment and options.flip and dataset.flip
        pad = options.crop if options.augment else 0
        self.train_pixels = DevicePixels(dataset.train, splits.train_N, pad, preprocessing, device)
        self.validation_pixels = DevicePixels(dataset.train, splits.validation_N, 0, preprocessing, device)
        self.module = module.to(device)
        if any(isinstance(layer, torch.nn.Conv2d) for layer in module.modules()):
            # A fifth faster for LeNet and a third for ResNet-8 on CPUs; what tensor cores want on GPUs.
            self.module = module.to(memory_format=torch.channels_last)
        # Biases and BatchNorm's scales are not pulled to zero: that regularises nothing.
        trained = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": options.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.SGD(
            [group for group in groups if group["params"]],
            lr=options.lr,
            momentum=options.momentum,
            nesterov=options.nesterov and options.momentum > 0,
            fused=True,
        )
        self.history: list[Epoch] = []
        self.best_epoch = 0
        self.best: dict[str, torch.Tensor] = {}

    def epoch(self, progress: ProgressCallback) -> None:
        """One pass over the training images, then the validation images."""
        number = len(self.history) + 1
        began_s = time.perf_counter()
        loss = self._pass(number, progress)
        trained_s = time.perf_counter()
        validation_loss, top1 = evaluate(self.module, self.validation_pixels)
        train_s = trained_s - began_s
        self.history.append(
            Epoch(
                epoch=number,
                lr=self.optimizer.param_groups[0]["lr"],
                loss=loss,
                validation_loss=validation_loss,
                validation_top1=top1,
                train_s=train_s,
                validation_s=time.perf_counter() - trained_s,
                images_per_s=len(self.train_pixels) / train_s,
            )
        )
        if self.best_epoch == 0 or top1 >= self.history[self.best_epoch - 1].validation_top1:
            self.best_epoch = number
            self.best = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}

    def _pass(self, number: int, progress: ProgressCallback) -> float:
        """Trains on every image once; the mean loss. Raises TrainingError where it is not a number."""
        import torch
        from torch.nn import functional as F

        options, pixels = self.options, self.train_pixels
        offsets_N, labels_N = self._drawn(number)
        sizes = batch_sizes(len(pixels), options.batch)
        batches = zip(torch.split(offsets_N, sizes), torch.split(labels_N, sizes), strict=True)
        losses = torch.zeros((), device=self.device)
        began_s, told_s, done = time.perf_counter(), 0.0, 0
        self.module.train()
        for step, (offsets_B, labels_B) in enumerate(batches, start=1):
            lr = learning_rate(options, (number - 1 + (step - 1) / len(sizes)) / options.epochs)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            # The order is random, so the first half is a random half.
            x_NCHW = pixels.batch(offsets_B, len(offsets_B) // 2 if self.mirrors else 0)
            with autocast(self.device):
                logits_NK = self.module(x_NCHW)
            loss = F.cross_entropy(logits_NK.float(), labels_B, label_smoothing=options.label_smoothing)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()
            losses += loss.detach()
            done += len(labels_B)
            last = step == len(sizes)
            if (last or step % _CHECK_EVERY == 0) and not math.isfinite(losses.item()):
                raise _diverged(number, step, lr, options)
            now_s = time.perf_counter()
            if last or now_s - told_s > _TELL_EVERY_S:
                self._tell(progress, number, done, done / (now_s - began_s))
                told_s = now_s
        return losses.item() / len(sizes)

    def _drawn(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the crops of this epoch begin, in its order, and their labels. Depends on seed and epoch alone."""
        import torch

        n, pixels = len(self.train_pixels), self.train_pixels
        seed = int(np.random.SeedSequence((self.options.seed, number)).generate_state(1, np.uint64)[0])
        torch.manual_seed(seed)  # dropout draws from the global generators
        generator = torch.Generator().manual_seed(seed)
        order_N = torch.randperm(n, generator=generator).to(self.device)
        shifts_2N = torch.randint(0, 2 * pixels.pad + 1, (2, n), generator=generator).to(self.device)
        return pixels.offsets(order_N, shifts_2N[0], shifts_2N[1]), pixels.labels_N[order_N]

    def _tell(self, progress: ProgressCallback, number: int, done: int, rate: float) -> None:
        n, epochs = len(self.train_pixels), self.options.epochs
        note = f"epoch {number}/{epochs}, {rate:,.0f} images/s"
        if self.history:
            note += f", validation {100 * self.history[-1].validation_top1:.1f} %"
        progress(Progress(done=(number - 1) * n + done, total=epochs * n, unit="images", note=note))

    def identity(self) -> dict[str, Any]:
        """What must be the same for a resume to make sense; the schedule depends on the number of epochs, so that too."""
        options = self.options.model_dump(mode="json", exclude={"device", "threads"})
        shapes = {name: list(tensor.shape) for name, tensor in self.module.state_dict().items()}
        return {
            **{f"train.{key}": value for key, value in options.items()},
            "data": self.dataset.sha256,
            "training images": len(self.train_pixels),
            "preprocessing": self.preprocessing.model_dump(mode="json"),
            "network": str(shapes),
        }

    def state(self) -> State:
        """Everything that a resume needs."""
        return State(
            weights=self.module.state_dict(),
            optimizer=self.optimizer.state_dict(),
            best=self.best,
            best_epoch=self.best_epoch,
            history=self.history,
        )

    def restore(self, state: State) -> None:
        """Goes back to a saved state."""
        self.module.load_state_dict(state.weights)
        self.optimizer.load_state_dict(dict(state.optimizer))
        self.best, self.best_epoch, self.history = dict(state.best), state.best_epoch, list(state.history)

    def result(self) -> TrainResult:
        """The best epoch's weights in the module, on the CPU."""
        import torch

        self.module.load_state_dict(self.best)
        module = self.module.cpu().to(memory_format=torch.contiguous_format).eval()
        figures: dict[str, Any] = {
            "epochs": len(self.history),
            "best_epoch": self.best_epoch,
            "validation_top1": self.history[self.best_epoch - 1].validation_top1,
            "images_per_s": float(np.median([epoch.images_per_s for epoch in self.history])),
            "seconds": sum(epoch.train_s + epoch.validation_s for epoch in self.history),
        }
        facts = {
            **figures,
            "n_train": len(self.train_pixels),
            "n_validation": len(self.validation_pixels),
            "data": self.dataset.name,
            "data_official": self.dataset.official,
            "data_sha256": self.dataset.sha256,
            "options": self.options.model_dump(mode="json"),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "machine": environment().summary,
            "torch": torch.__version__,
        }
        return TrainResult(module=module, history=tuple(self.history), facts=facts, **figures)


def _diverged(number: int, step: int, lr: float, options: TrainOptions) -> TrainingError:
    return TrainingError(
        "training has diverged",
        found=f"the loss is not a number by step {step} of epoch {number}, at learning rate {lr:.3g}",
        remedy=f"lower train.lr (now {options.lr:g}), for example to {options.lr / 4:g}, and train from the start",
    )
