"""Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28x28x1, from IDX files. Source: Xiao, Rasul, Vollgraf 2017."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from deploycnn.data._contract import DataSource, Found
from deploycnn.data._download import Resource, fetch_resources
from deploycnn.data._idx import find_idx
from deploycnn.recipe import DataOptions
from deploycnn.types import ProgressCallback

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # tried before torchvision is asked for addresses
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist installs
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


class FashionMnist(DataSource):
    """Found below the root folder in FashionMNIST/raw (torchvision's place), in the root itself, or where Debian installs it."""

    name: ClassVar[str] = "fashion-mnist"
    mean: ClassVar[tuple[float, ...] | None] = (0.2860,)
    std: ClassVar[tuple[float, ...] | None] = (0.3530,)

    def find(self, options: DataOptions) -> Found | None:
        return find_idx(self.name, (options.root / "FashionMNIST" / "raw", options.root, DEBIAN), CLASSES)

    def fetch(self, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> None:
        fetch_resources(self.name, SITE, _resources, options.root, "FashionMNIST/raw", progress, warn)

    def flips(self, classes: Sequence[str]) -> bool:
        return True


def _resources() -> list[Resource]:
    from torchvision.datasets import FashionMNIST

    mirrors = FashionMNIST.mirrors
    return [Resource(urls=tuple(f"{mirror}{name}" for mirror in mirrors), name=name, md5=md5) for name, md5 in FashionMNIST.resources]
