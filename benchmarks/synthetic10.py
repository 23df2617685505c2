"""How hard the built-in images are: LeNet trained on them as the quickstart does, and its int8 damage by the size of its margins.

    python benchmarks/synthetic10.py [--epochs 8] [--train 20000] [--test 5000] [--seed 0]

Prints the time it takes to make the images, top-1 by epoch and class, and how many test images change their answer when
the weights are rounded to fewer and fewer bits: a data set without images near the decision boundary would not show any.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from deploycnn import units
from deploycnn.data import DataSet, load_dataset, split
from deploycnn.models import build_model
from deploycnn.recipe import DataOptions, ModelOptions, TrainOptions
from deploycnn.store import Store
from deploycnn.train import train
from deploycnn.types import Preprocessing, Progress

PROMISED_TOP1 = (0.75, 0.92)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--train", type=int)
    parser.add_argument("--test", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    options = DataOptions(name="synthetic10", train=given.train, test=given.test, seed=given.seed)
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        dataset = load_dataset(options, Store(Path(folder)), silent, print)
        made_s = time.perf_counter() - start_s
        n_images = len(dataset.train) + len(dataset.test)
        print(f"{n_images:,} images made, hashed and stored in {units.seconds(made_s)}: {units.rate(n_images / made_s, 'images')}")
        module = trained(dataset, options, TrainOptions(epochs=given.epochs, seed=given.seed), Path(folder) / "training")
        report(module, dataset)


def silent(progress: Progress) -> None:
    """No bars between the figures."""


def trained(dataset: DataSet, options: DataOptions, train_options: TrainOptions, folder: Path) -> torch.nn.Module:
    """LeNet after the quickstart's training."""
    module = build_model(ModelOptions(name="lenet"), dataset.shape_CHW, len(dataset.classes))
    preprocessing = Preprocessing(mean=dataset.mean, std=dataset.std)
    splits = split(dataset, options)
    result = train(module, dataset, splits, train_options, preprocessing, folder, resume=False, progress=silent)
    print(f"{len(splits.train_N):,} images, {train_options.epochs} epochs: {units.seconds(result.seconds)}")
    return module


def logits_of(module: torch.nn.Module, dataset: DataSet) -> np.ndarray:
    """(N, K) logits of all test images."""
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (dataset.mean, dataset.std))
    module.eval()
    found = []
    with torch.inference_mode():
        for start in range(0, len(dataset.test), 500):
            x_NCHW = (dataset.test.images_NCHW[start : start + 500].astype(np.float32) / 255 - mean) / std
            found.append(module(torch.from_numpy(x_NCHW)).numpy())
    return np.concatenate(found)


def report(module: torch.nn.Module, dataset: DataSet) -> None:
    """Prints top-1, classes, margins and what coarse weights do."""
    logits_NK = logits_of(module, dataset)
    labels_N, answers_N = dataset.test.labels_N, logits_NK.argmax(1)
    top1 = float((answers_N == labels_N).mean())
    low, high = PROMISED_TOP1
    print(f"top-1 {units.percent(top1)} of {len(labels_N):,} test images (promised: {units.percent(low, 0)} to {units.percent(high, 0)})")
    for label, name in enumerate(dataset.classes):
        print(f"  {name:10} {units.percent(float((answers_N == labels_N)[labels_N == label].mean()), 1)}")
    ordered_NK = np.sort(logits_NK, axis=1)
    margins_N = (ordered_NK[:, -1] - ordered_NK[:, -2]) / logits_NK.std()
    print(f"closer to the boundary than a tenth of the logits' deviation: {units.percent(float((margins_N < 0.1).mean()), 1)}")
    for bits in (8, 6, 5, 4, 3):
        coarse_N = logits_of(rounded(module, bits), dataset).argmax(1)
        changed = float((coarse_N != answers_N).mean())
        coarse_top1 = float((coarse_N == labels_N).mean())
        print(f"weights in {bits} bits: {units.percent(changed)} of answers change, top-1 {units.points(coarse_top1 - top1)}")


def rounded(module: torch.nn.Module, bits: int) -> torch.nn.Module:
    """A copy with every weight tensor rounded to a symmetric grid of `bits` bits."""
    coarse = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in coarse.parameters():
            if parameter.dim() > 1:
                step = parameter.abs().max() / (2 ** (bits - 1) - 1)
                parameter.copy_((parameter / step).round() * step)
    return coarse


if __name__ == "__main__":
    main()
