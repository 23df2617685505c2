"""The same network trained in PyTorch, Keras on PyTorch, and TensorFlow: time per epoch by paired ratios, accuracy at the end.

    python benchmarks/frameworks.py [--epochs 5] [--seed 0] [--frameworks torch keras tensorflow] [--quick]

Each framework trains in a process of its own, all alive at once; in each round every one of them trains one epoch, in random
order, on the same batches. The first epoch is warm-up: it counts for accuracy, not for time. Ratios are taken round by round.
Data: Fashion-MNIST where it is (Debian's dataset-fashion-mnist), else the built-in set, for which nothing is promised.
Promised on Fashion-MNIST after 5 epochs: at least 90 % of the test images in each framework, within 0.5 pp of each other.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from deploycnn import units
from deploycnn.data import DataSet, load_dataset
from deploycnn.environment import environment, usable_cores
from deploycnn.recipe import DataOptions
from deploycnn.stats import paired_ratio_interval
from deploycnn.store import Store
from deploycnn.train import batch_sizes, epoch_order
from deploycnn.train.frameworks import Task, framework_class, framework_classes
from deploycnn.types import Preprocessing
from deploycnn.workers.training import TrainWorker

PROMISED_TOP1, PROMISED_SPREAD = 0.90, 0.005
BATCH, LR = 128, 0.001


def ready(names: list[str]) -> list[str]:
    """Those that can train here; says why the others cannot."""
    found = []
    for name in names:
        readiness = framework_class(name)().probe()
        if readiness.state == "ready":
            found.append(name)
        else:
            print(f"{name}: {readiness.reason}; {readiness.remedy}")
    return found


def show(dataset: DataSet, times_s: dict[str, list[float]], top1: dict[str, float], memory: dict[str, int], n: int) -> None:
    """One line for each framework, ratios against the first one."""
    reference, *_ = times_s
    for name, values in times_s.items():
        timed = np.array(values[1:])
        line = f"{name}: top-1 {units.percent(top1[name])} on {dataset.name}, peak memory {units.size(memory[name])}"
        if len(timed):
            line += f", {units.seconds(float(np.median(timed)))} an epoch, {units.rate(n / float(np.median(timed)), 'images')}"
        if len(timed) > 1 and name != reference:
            ratio = paired_ratio_interval(np.log(timed) - np.log(times_s[reference][1:]), np.zeros(len(timed)))
            interval = f"95 % interval {units.ratio(ratio.low)} to {units.ratio(ratio.high)}, n={len(timed)}"
            line += f", time over {reference} {units.ratio(ratio.value)} ({interval})"
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "keras", "tensorflow"], choices=list(framework_classes()))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of each framework; 1 on a busy machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--quick", action="store_true", help="2 epochs of 2,000 images: shows that it works, proves nothing")
    arguments = parser.parse_args()
    epochs, count = (2, 2_000) if arguments.quick else (arguments.epochs, None)
    names = ready(arguments.frameworks)
    if not names:
        return 1
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        options = DataOptions(name="fashion-mnist", root=arguments.root, download=False, fallback="synthetic10", train=count)
        dataset = load_dataset(options, Store(Path(folder) / "cache"), lambda step: None, lambda line: print(line, file=sys.stderr))
        n, threads = len(dataset.train.labels_N), arguments.threads
        print(f"{environment().summary}; {dataset.name}, {n:,} training images, batch {BATCH}, seed {arguments.seed}, {threads} threads")
        channels = dataset.shape_CHW[0]
        task = Task(
            shape_CHW=dataset.shape_CHW,
            n_classes=len(dataset.classes),
            preprocessing=Preprocessing(mean=(0.0,) * channels, std=(1.0,) * channels),
            lr=LR,
            seed=arguments.seed,
            threads=threads,
            device="cpu",
        )
        workers: dict[str, TrainWorker] = {}
        for name in names:
            workers[name] = stack.enter_context(TrainWorker(name, log_path=Path(folder) / f"{name}.txt", threads=threads))
            print(workers[name].facts(name).version)
            workers[name].begin(name, task, dataset.train.images_NCHW, dataset.train.labels_N)
        times_s: dict[str, list[float]] = {name: [] for name in names}
        chance = random.Random(arguments.seed)
        for number in range(1, epochs + 1):
            for name in chance.sample(names, len(names)):
                order_N = epoch_order(arguments.seed, number, n)
                times_s[name].append(workers[name].epoch(order_N, batch_sizes(n, BATCH)).train_s)
            print(f"epoch {number}: " + ", ".join(f"{name} {units.seconds(times_s[name][-1])}" for name in names), flush=True)
        labels_N = np.asarray(dataset.test.labels_N)
        top1 = {
            name: float((worker.logits(dataset.test.images_NCHW).argmax(axis=1) == labels_N).mean()) for name, worker in workers.items()
        }
        show(dataset, times_s, top1, {name: worker.memory().peak_bytes for name, worker in workers.items()}, n)
    spread = max(top1.values()) - min(top1.values())
    kept = min(top1.values()) >= PROMISED_TOP1 and spread <= PROMISED_SPREAD
    lowest = f"lowest {units.percent(min(top1.values()))} (promised: {units.percent(PROMISED_TOP1)})"
    print(f"{lowest}, {100 * spread:.2f} pp apart (promised: {100 * PROMISED_SPREAD:.2f})")
    return 0 if kept or arguments.quick or dataset.name != "fashion-mnist" else 1


if __name__ == "__main__":
    sys.exit(main())
