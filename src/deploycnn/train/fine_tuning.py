"""Quantisation-aware fine-tuning: a trained network goes on training for a few epochs while it is rounded as int8 will round it.

Weights and the inputs of convolutions and dense layers are rounded in the forward pass (by torchao), gradients pass as if they were
not (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018,
arXiv 1712.05877). What comes out is an ordinary float network; the int8 file is made of it as of any other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from deploycnn.data import DataSet, Splits
from deploycnn.environment import usable_cores
from deploycnn.errors import TrainingError, Unavailable
from deploycnn.recipe import QatOptions
from deploycnn.train._pixels import DevicePixels
from deploycnn.types import Int8Form, Preprocessing, Progress, ProgressCallback, Value

if TYPE_CHECKING:
    from torch import nn

    from deploycnn.train._rounding import Rounding

CROP = 2  # pixels that training images are shifted by
MOMENTUM = 0.9


class FineTuned(Value):
    """Validation top-1 of the rounded network, share 0 to 1."""

    before: float
    after: float  # of the epoch that was kept
    epoch: int  # 0: none was better than what was there


def fine_tune(
    module: nn.Module,
    dataset: DataSet,
    splits: Splits,
    options: QatOptions,
    preprocessing: Preprocessing,
    form: Int8Form,
    progress: ProgressCallback,
) -> FineTuned:
    """Trains `module` in place and leaves the epoch that is best on the validation part when rounded.

    Args:
        module: float images (N, C, H, W), normalised, to logits (N, K); on the CPU.
        form: what the weights and activations are rounded to.
        progress: told about images.

    Raises:
        TrainingError: the loss is no longer a number.
        Unavailable: torchao is not installed.
    """
    import torch

    try:
        from deploycnn.train._rounding import Rounding
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torchao":
            raise
        raise Unavailable("int8-qat needs torchao", found="it is not installed here", remedy="pip install 'deploycnn[qat]'") from error

    device = torch.device("cpu")
    training = DevicePixels(dataset.train, splits.train_N, CROP, preprocessing, device)
    validation = DevicePixels(dataset.train, splits.validation_N, 0, preprocessing, device)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(usable_cores())
    try:
        with torch.random.fork_rng(), Rounding(module, form) as rounding:
            torch.manual_seed(options.seed)
            _find_ranges(rounding, training, options)
            before = _top1(rounding, validation, options.batch)
            best = FineTuned(before=before, after=before, epoch=0)
            kept = rounding.state()
            for epoch in range(options.epochs):
                _epoch(rounding, training, options, epoch, dataset.flip, progress)
                top1 = _top1(rounding, validation, options.batch)
                if top1 >= best.after:
                    best, kept = FineTuned(before=before, after=top1, epoch=epoch + 1), rounding.state()
            rounding.restore(kept)
    finally:
        torch.set_num_threads(threads_before)
    module.eval()
    return best


def _find_ranges(rounding: Rounding, images: DevicePixels, options: QatOptions) -> None:
    """Ranges of activations before anything is trained."""
    import torch

    rounding.train()
    with torch.no_grad():
        for start in range(0, min(len(images), 8 * options.batch), options.batch):
            rounding.module(images.batch(images.centred(torch.arange(start, min(start + options.batch, len(images)))), 0))


def _epoch(rounding: Rounding, images: DevicePixels, options: QatOptions, epoch: int, flip: bool, progress: ProgressCallback) -> None:
    import torch
    from torch.nn import functional

    rng = np.random.default_rng((options.seed, epoch))
    order_N = torch.from_numpy(rng.permutation(len(images)))
    shifts_2N = torch.from_numpy(rng.integers(0, 2 * images.pad + 1, (2, len(images))))
    batches = max(1, len(images) // options.batch)  # what is left over waits for another epoch
    optimiser = torch.optim.SGD(rounding.module.parameters(), lr=options.lr, momentum=MOMENTUM)
    rounding.train()
    for index, part_N in enumerate(torch.tensor_split(order_N[: batches * options.batch], batches)):
        for group in optimiser.param_groups:
            group["lr"] = _rate(options, epoch, index / batches)
        x_NCHW = images.batch(images.offsets(part_N, *shifts_2N[:, part_N]), len(part_N) // 2 if flip else 0)
        loss = functional.cross_entropy(rounding.module(x_NCHW), images.labels_N[part_N])
        if not math.isfinite(float(loss.detach())):
            raise TrainingError("the loss of the fine-tuning is no longer a number", remedy="lower qat.lr")
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        done = epoch * batches + index + 1
        progress(Progress(done=done * options.batch, total=options.epochs * batches * options.batch, unit="images"))


def _rate(options: QatOptions, epoch: int, share: float) -> float:
    """Half a cosine over all epochs."""
    return options.lr * 0.5 * (1 + math.cos(math.pi * (epoch + share) / options.epochs))


def _top1(rounding: Rounding, images: DevicePixels, batch: int) -> float:
    import torch

    rounding.eval()
    right = 0
    with torch.no_grad():
        for part_N in torch.split(torch.arange(len(images)), batch):
            answers_N = rounding.module(images.batch(images.centred(part_N), 0)).argmax(dim=1)
            right += int((answers_N == images.labels_N[part_N]).sum())
    return right / len(images)
