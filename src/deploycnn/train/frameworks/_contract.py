"""What a framework is asked for, and what it must answer."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from deploycnn.environment import package_version
from deploycnn.errors import RecipeError
from deploycnn.types import Preprocessing, ProgressCallback, Readiness, Value

Mode = Literal["fp32", "mixed", "compiled"]
MODES: tuple[Mode, ...] = ("fp32", "mixed", "compiled")
NETWORKS = ("mnist_cnn",)  # that every framework builds
ADAM_EPSILON = 1e-7  # of Keras; PyTorch's own is 1e-8


class Task(Value):
    """One training: the same network, optimiser and batches in every framework.

    The network is `mnist_cnn` on (pixels / 255 - mean) / std, its weights uniform after Glorot, biases zero; the optimiser is Adam
    with its usual betas, the loss sparse categorical cross-entropy on logits.
    """

    network: Literal["mnist_cnn"] = "mnist_cnn"
    width: float = 1.0
    shape_CHW: tuple[int, int, int]
    n_classes: int
    preprocessing: Preprocessing
    lr: float
    seed: int
    threads: int
    device: Literal["cpu", "cuda"]
    mode: Mode = "fp32"  # mixed: bf16 where the framework finds it safe; compiled: torch.compile or XLA, in fp32


class Device(Value):
    """One device that a framework sees."""

    kind: Literal["cpu", "cuda"]
    name: str


class FrameworkFacts(Value):
    """A framework in this environment, by its own word."""

    name: str
    version: str  # "TensorFlow 2.21.0, Keras 3.15.1"
    devices: tuple[Device, ...]
    gpu_reason: str = ""  # why no GPU is among them

    def count(self, kind: str) -> int:
        """How many devices of that kind it sees."""
        return sum(device.kind == kind for device in self.devices)


class Training(ABC):
    """A network, its optimiser and its images in one process."""

    @abstractmethod
    def epoch(self, order_N: NDArray[np.int64], sizes: Sequence[int], progress: ProgressCallback) -> float:
        """One pass over the images in that order, cut into batches of those sizes. Returns when the device is done.

        Args:
            order_N: places in the images given to `begin`.
            sizes: of the batches, in order; all alike but the last one or two.
            progress: told of images; may be told nothing.

        Returns:
            Mean loss over the images; not finite where training diverged.
        """

    @abstractmethod
    def logits(self, images_NCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits (N, K) of uint8 images."""

    @abstractmethod
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The parameters with the names and layout of the PyTorch twin's state dict."""

    @abstractmethod
    def state(self) -> bytes:
        """Weights and optimiser, enough to go on with in another process."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Goes back to what `state` gave. Raises TrainingError where it is no such state."""

    @abstractmethod
    def device_peak_bytes(self) -> int | None:
        """The most memory that tensors took on the GPU, by the framework's own word; None on a CPU."""


class Framework(ABC):
    """One way to train. Importing its file imports no tensor library."""

    name: ClassVar[str]
    title: ClassVar[str]  # as people write it
    modules: ClassVar[Mapping[str, str]]  # what must be importable: the distribution that brings it
    extra: ClassVar[str | None]  # of ours that installs them; None: they come with deploycnn itself

    def probe(self) -> Readiness:
        """Whether its packages are installed. Imports none of them."""
        missing = [distribution for module, distribution in self.modules.items() if importlib.util.find_spec(module) is None]
        if not missing:
            return Readiness(state="ready", version=self.version())
        remedy = f"pip install 'deploycnn[{self.extra}]'" if self.extra else "pip install deploycnn again"
        return Readiness(state="unavailable", reason=f"{self.title} needs {' and '.join(missing)}, not installed here", remedy=remedy)

    @abstractmethod
    def version(self) -> str:
        """Of its packages, without importing them: `TensorFlow 2.21.0, Keras 3.15.1`."""

    @abstractmethod
    def facts(self) -> FrameworkFacts:
        """What it sees. Imports it: call it in a process of its own."""

    @abstractmethod
    def begin(self, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Training:
        """Builds network and optimiser and puts the images where they are trained on. Imports the framework.

        Raises:
            Unavailable: the task's device is not here.
            Unsupported: it cannot train in the task's mode on that device.
        """


def versions(titles: Mapping[str, str]) -> str:
    """`TensorFlow 2.21.0, Keras 3.15.1` of distributions by title, those that are installed."""
    found = {title: package_version(distribution) for title, distribution in titles.items()}
    return ", ".join(f"{title} {version}" for title, version in found.items() if version)


def check_options(framework: str, network: str, options: Mapping[str, Any]) -> None:
    """What a framework other than PyTorch can be asked for. Raises RecipeError with all that must be changed.

    Args:
        options: of `recipe.TrainOptions`, by name.
    """
    if network not in NETWORKS:
        raise RecipeError(
            f"model.framework is {framework}",
            found=f"model.name is {network}, which only PyTorch builds",
            remedy=f"set model.name to {', '.join(NETWORKS)}, or model.framework to torch",
        )
    wanted = {"optimizer": "adam", "schedule": "constant", "augment": False, "weight_decay": 0.0, "label_smoothing": 0.0}
    wrong = {key: value for key, value in wanted.items() if options[key] != value}
    if wrong:
        raise RecipeError(
            f"{framework} trains with Adam at a constant rate and nothing else",
            found=", ".join(f"train.{key} is {options[key]}" for key in wrong),
            remedy="set " + " ".join(f"train.{key}={str(value).lower()}" for key, value in wrong.items()),
        )
