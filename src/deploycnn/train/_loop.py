"""The loop itself: one pass over the training images after another, each followed by the validation images."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploycnn.data import DataSet, Splits
from deploycnn.environment import environment
from deploycnn.errors import TrainingError
from deploycnn.recipe import TrainOptions
from deploycnn.train._device import autocast
from deploycnn.train._distributed import Group
from deploycnn.train._pixels import DevicePixels
from deploycnn.train._state import Epoch, State
from deploycnn.train.frameworks._contract import ADAM_EPSILON
from deploycnn.types import Preprocessing, Progress, ProgressCallback

if TYPE_CHECKING:
    import torch
    from torch import nn

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


def learning_rate(options: TrainOptions, share: float) -> float:
    """The learning rate after `share` (0 to 1) of all steps: up in a line for a quarter, then down to zero along a cosine.

    One-cycle after Smith and Topin, "Super-convergence", 2018 (arXiv 1708.07120), momentum left alone.
    """
    if options.schedule == "constant":
        return options.lr
    if share < _WARM_UP:
        return options.lr * (_FIRST_LR + (1 - _FIRST_LR) * share / _WARM_UP)
    return options.lr * 0.5 * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP)))


def epoch_seed(seed: int, number: int) -> int:
    """What is random in an epoch (counted from 1) depends on this alone."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])


def epoch_order(seed: int, number: int, n_images: int) -> NDArray[np.int64]:
    """The order of the training images in that epoch, (n_images,): the same one in every framework."""
    import torch

    generator = torch.Generator().manual_seed(epoch_seed(seed, number))
    order_N: NDArray[np.int64] = torch.randperm(n_images, generator=generator).numpy()
    return order_N


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


class Run:
    """One training: images, module and optimiser on the device, and what has come of them so far."""

    def __init__(
        self,
        module: nn.Module,
        dataset: DataSet,
        splits: Splits,
        options: TrainOptions,
        preprocessing: Preprocessing,
        device: torch.device,
        group: Group,
    ) -> None:
        import torch

        self.group = group
        self.options, self.dataset, self.device, self.preprocessing = options, dataset, device, preprocessing
        self.mirrors = options.augment and options.flip and dataset.flip
        pad = options.crop if options.augment else 0
        self.train_pixels = DevicePixels(dataset.train, splits.train_N, pad, preprocessing, device)
        own_N = splits.validation_N[group.share(len(splits.validation_N))]
        self.validation_pixels = DevicePixels(dataset.train, own_N, 0, preprocessing, device)
        self.n_validation = len(splits.validation_N)
        self.module = module.to(device)
        if any(isinstance(layer, torch.nn.Conv2d) for layer in module.modules()):
            # A fifth faster for LeNet and a third for ResNet-8 on CPUs; what tensor cores want on GPUs.
            self.module = module.to(memory_format=torch.channels_last)
        self.optimizer = _optimizer(module, options)
        self.step_module = group.wrapped(self.module, device)
        self.history: list[Epoch] = []
        self.best_epoch = 0
        self.best: dict[str, torch.Tensor] = {}

    def epoch(self, progress: ProgressCallback) -> None:
        """One pass over the training images, then the validation images."""
        number = len(self.history) + 1
        began_s = time.perf_counter()
        loss = self._pass(number, progress)
        trained_s = time.perf_counter()
        validation_loss, top1 = self._validated()
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
            own = self.group.share(len(labels_B))
            weight = self.group.size * (own.stop - own.start) / len(labels_B)
            # The order is random, so the first half is a random half.
            x_NCHW = pixels.batch(offsets_B[own], (own.stop - own.start) // 2 if self.mirrors else 0)
            with autocast(self.device):
                logits_NK = self.step_module(x_NCHW)
            loss = F.cross_entropy(logits_NK.float(), labels_B[own], label_smoothing=options.label_smoothing) * weight
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
        return self.group.total(losses).item() / self.group.size / len(sizes)

    def _validated(self) -> tuple[float, float]:
        """(mean cross entropy, top-1 share) over the validation images of all processes."""
        import torch

        loss, top1 = evaluate(self.module, self.validation_pixels)
        n = len(self.validation_pixels)
        sums = self.group.total(torch.tensor([loss * n, round(top1 * n)], dtype=torch.float64, device=self.device)).tolist()
        return sums[0] / self.n_validation, sums[1] / self.n_validation

    def _drawn(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the crops of this epoch begin, in its order, and their labels. Depends on seed and epoch alone."""
        import torch

        n, pixels = len(self.train_pixels), self.train_pixels
        seed = epoch_seed(self.options.seed, number)
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
            "n_validation": self.n_validation,
            "data": self.dataset.name,
            "data_official": self.dataset.official,
            "data_sha256": self.dataset.sha256,
            "options": self.options.model_dump(mode="json"),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "machine": environment().summary,
            "torch": torch.__version__,
            "framework": "torch",
            "processes": self.group.size,
            "effective_batch": self.options.batch,  # of all processes together
        }
        return TrainResult(module=module, history=tuple(self.history), facts=facts, **figures)


def _optimizer(module: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """Biases and BatchNorm's scales are not pulled to zero: that regularises nothing."""
    import torch

    trained = [p for p in module.parameters() if p.requires_grad]
    parts = (([p for p in trained if p.ndim > 1], options.weight_decay), ([p for p in trained if p.ndim <= 1], 0.0))
    groups = [{"params": members, "weight_decay": decay} for members, decay in parts if members]
    if options.optimizer == "adam":
        return torch.optim.Adam(groups, lr=options.lr, eps=ADAM_EPSILON, fused=True)
    nesterov = options.nesterov and options.momentum > 0
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, nesterov=nesterov, fused=True)


def _diverged(number: int, step: int, lr: float, options: TrainOptions) -> TrainingError:
    return TrainingError(
        "training has diverged",
        found=f"the loss is not a number by step {step} of epoch {number}, at learning rate {lr:.3g}",
        remedy=f"lower train.lr (now {options.lr:g}), for example to {options.lr / 4:g}, and train from the start",
    )
