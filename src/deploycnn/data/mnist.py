"""MNIST: 60,000 + 10,000 handwritten digits, 28x28x1, from IDX files.

Mean and deviation are the constants of the PyTorch example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from deploycnn.data._contract import DataSource, Found
from deploycnn.data._download import Resource, fetch_resources
from deploycnn.data._idx import find_idx
from deploycnn.recipe import DataOptions
from deploycnn.types import ProgressCallback

SITE = "https://ossci-datasets.s3.amazonaws.com/"  # tried before torchvision is asked for addresses
CLASSES = tuple(str(digit) for digit in range(10))


class Mnist(DataSource):
    """Found in the root folder or in MNIST/raw below it, where torchvision keeps it."""

    name: ClassVar[str] = "mnist"
    mean: ClassVar[tuple[float, ...] | None] = (0.1307,)
    std: ClassVar[tuple[float, ...] | None] = (0.3081,)

    def find(self, options: DataOptions) -> Found | None:
        return find_idx(self.name, (options.root / "MNIST" / "raw", options.root), CLASSES)

    def fetch(self, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> None:
        fetch_resources(self.name, SITE, _resources, options.root, "MNIST/raw", progress, warn)

    def flips(self, classes: Sequence[str]) -> bool:
        return False


def _resources() -> list[Resource]:
    from torchvision.datasets import MNIST

    return [Resource(urls=tuple(f"{mirror}{name}" for mirror in MNIST.mirrors), name=name, md5=md5) for name, md5 in MNIST.resources]
