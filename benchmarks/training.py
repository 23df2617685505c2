"""Training LeNet: images/s of deploycnn over the loop of PyTorch's CIFAR-10 tutorial, in alternation.

    python benchmarks/training.py [--root DIR] [--rounds 7] [--quick]

The tutorial's loop is its own, line by line: one PIL image at a time through ToTensor and Normalize, DataLoader with
batches of 4 and 2 workers, SGD 0.001 with momentum 0.9, `loss.item()` every step. Ours is `deploycnn.train.train` as a
recipe's defaults have it (batch 256, flip and shifted crop, one-cycle), told nothing of being timed. Each round runs both
in random order with every core this process may use; the ratio is taken round by round. Neither side's start counts:
not the loader's workers, not moving images to the device. Promised: at least 12 times.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from deploycnn import units
from deploycnn.data import DataSet, Splits, load_dataset, split
from deploycnn.environment import environment, usable_cores
from deploycnn.models import build_model
from deploycnn.recipe import DataOptions, ModelOptions, TrainOptions
from deploycnn.stats.bootstrap import paired_ratio_interval
from deploycnn.store import Store
from deploycnn.train import train
from deploycnn.types import Preprocessing, Progress

PROMISED = 12.0
BESIDE = Path(__file__).parents[2] / "shared" / "data" / "unpack"  # a copy of CIFAR-10 that some machines have


class Net(nn.Module):
    """The tutorial's network, as it writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = self.fc3(x)
        return x


class Cifar10(Dataset[Any]):
    """What torchvision.datasets.CIFAR10 does for one image, over arrays in memory as it has them."""

    def __init__(self, dataset: DataSet) -> None:
        self.data = np.ascontiguousarray(dataset.train.images_NCHW.transpose(0, 2, 3, 1))
        self.targets = dataset.train.labels_N.tolist()
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.data[index])
        return self.transform(image), self.targets[index]

    def __len__(self) -> int:
        return len(self.data)


def tutorial_images_per_s(images: Cifar10, n_batches: int, n_warm_up: int = 50) -> float:
    """The tutorial's loop over `n_batches` batches of 4, after `n_warm_up` that are not counted."""
    loader = DataLoader(images, batch_size=4, shuffle=True, num_workers=2)
    net = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    running_loss, start_s = 0.0, 0.0
    for i, batch in enumerate(loader):
        if i == n_warm_up:
            start_s = time.perf_counter()
        inputs, labels = batch
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i + 1 == n_warm_up + n_batches:
            break
    assert math.isfinite(running_loss)
    return 4 * n_batches / (time.perf_counter() - start_s)


def product_images_per_s(dataset: DataSet, parts: Splits, epochs: int, folder: Path) -> float:
    """The rate that training itself reports."""

    def silent(progress: Progress) -> None:
        pass

    module = build_model(ModelOptions(name="lenet"), dataset.shape_CHW, len(dataset.classes))
    preprocessing = Preprocessing(mean=dataset.mean, std=dataset.std)
    result = train(module, dataset, parts, TrainOptions(epochs=epochs), preprocessing, folder, False, silent)
    return result.images_per_s


def images(root: Path, folder: Path, count: int) -> tuple[DataSet, Splits]:
    """CIFAR-10 where it is, the built-in set elsewhere."""
    if BESIDE.is_file() and not (root / "cifar-10-batches-py").is_dir():
        import subprocess

        root = folder / "cifar"
        print("unpacking the copy of CIFAR-10 beside the project", file=sys.stderr)
        subprocess.run([sys.executable, str(BESIDE), "batches", str(root)], check=True)
    options = DataOptions(root=root, download=False, fallback="synthetic10", train=count, test=100, validation=100, calibration=100)
    dataset = load_dataset(options, Store(folder / "cache"), lambda progress: None, lambda line: print(line, file=sys.stderr))
    return dataset, split(dataset, options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar-10-batches-py")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three short rounds: shows that it works, proves nothing")
    arguments = parser.parse_args()
    rounds, count, n_batches = (3, 5_000, 150) if arguments.quick else (arguments.rounds, 25_000, 800)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, parts = images(arguments.root, folder, count)
        tutorial_images = Cifar10(dataset)
        print(environment().summary)
        print(f"{dataset.name} ({dataset.source}), {len(parts.train_N):,} images, PyTorch {torch.__version__}, {usable_cores()} cores")
        runners = {
            "ours": lambda: product_images_per_s(dataset, parts, 1 if arguments.quick else 2, folder / "training"),
            "tutorial": lambda: tutorial_images_per_s(tutorial_images, n_batches),
        }
        rates: dict[str, list[float]] = {side: [] for side in runners}
        chance = random.Random(0)
        for number in range(rounds):
            for side in chance.sample(list(runners), 2):
                rates[side].append(runners[side]())
            latest = {side: values[-1] for side, values in rates.items()}
            shown = ", ".join(f"{side} {units.rate(value, 'images')}" for side, value in latest.items())
            print(f"round {number + 1}: {shown}, {units.ratio(latest['ours'] / latest['tutorial'])}", flush=True)
    logs = np.log(rates["ours"]) - np.log(rates["tutorial"])
    ratio = paired_ratio_interval(logs, np.zeros(rounds))
    for side, values in rates.items():
        print(f"{side}: median {units.rate(float(np.median(values)), 'images')}, {min(values):,.0f} to {max(values):,.0f}, n={rounds}")
    interval = f"95 % interval {units.ratio(ratio.low)} to {units.ratio(ratio.high)}"
    print(f"ratio: {units.ratio(ratio.value)}, {interval} (promised: at least {units.ratio(PROMISED)})")
    return 0 if ratio.value >= PROMISED or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
