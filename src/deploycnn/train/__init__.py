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

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.data import DataSet, Splits
from deploycnn.environment import usable_cores
from deploycnn.errors import TrainingError
from deploycnn.models.fit import check_fit
from deploycnn.recipe import TrainOptions
from deploycnn.train._device import choose_device
from deploycnn.train._distributed import Group, current_group, joined, started_by_torchrun
from deploycnn.train._loop import Run, TrainResult, batch_sizes, epoch_order, evaluate, learning_rate
from deploycnn.train._state import BEST, LAST, Epoch, load_state, save_state
from deploycnn.types import Preprocessing, Progress, ProgressCallback

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "BEST",
    "LAST",
    "Epoch",
    "Group",
    "TrainResult",
    "batch_sizes",
    "epoch_order",
    "evaluate",
    "joined",
    "learning_rate",
    "started_by_torchrun",
    "train",
]


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

    In a process that has `joined` others, they train it together: all of them call this with the same arguments, each gets
    the result, the first one writes the files and is told the progress.

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
    group = current_group()
    group.check_batch(min(batch_sizes(len(splits.train_N), options.batch)))
    device = choose_device(options.device, group.local_rank)
    check_fit(module, dataset.shape_CHW, dataset.classes, training_batch=min(batch_sizes(len(splits.train_N), options.batch)))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads or usable_cores())
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            run = Run(module, dataset, splits, options, preprocessing, device, group)
            if resume and (folder / LAST).exists():
                run.restore(load_state(folder / LAST, device, run.identity()))
            while len(run.history) < options.epochs:
                run.epoch(progress if group.leads else _silent)
                if group.leads:
                    save_state(folder, run.state(), run.identity())
            return run.result()
    finally:
        torch.set_num_threads(threads_before)


def _silent(_: Progress) -> None:
    return
