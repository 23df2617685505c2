"""The parent's side of a worker that trains: one framework, one training, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from deploycnn.train.frameworks import FrameworkFacts, Task
from deploycnn.types import Progress, ProgressCallback
from deploycnn.workers.protocol import EpochFacts
from deploycnn.workers.worker import Worker

START_LIMIT_S = 900.0  # importing a framework and building a network
EPOCH_LIMIT_S = 24 * 3600.0
CALL_LIMIT_S = 3600.0


def _silent(_: Progress) -> None:
    return


class TrainWorker(Worker):
    """A child process that trains. See `Worker` for its life and what each call raises beside what is said here."""

    child: ClassVar[str] = "deploycnn.workers.training_child"

    def facts(self, framework: str) -> FrameworkFacts:
        """What the framework sees, by its own word."""
        return cast(FrameworkFacts, self._call("facts", START_LIMIT_S, "", framework=framework))

    def begin(self, framework: str, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> float:
        """Builds the network over these training images; the seconds that took, the framework's import included.

        Raises:
            Unavailable: the framework or the device is not here.
            Unsupported: the framework cannot train in the task's mode.
        """
        images_NCHW, labels_N = np.array(images_NCHW), np.array(labels_N)  # by value: they may be maps of files
        call = partial(self._call, "begin", START_LIMIT_S, "", framework=framework, task=task)
        return cast(float, call(images_NCHW=images_NCHW, labels_N=labels_N))

    def epoch(self, order_N: NDArray[np.int64], sizes: Sequence[int], progress: ProgressCallback = _silent) -> EpochFacts:
        """One pass over the images in that order, in batches of those sizes."""
        return cast(EpochFacts, self._call("epoch", EPOCH_LIMIT_S, "", progress, order_N=order_N, sizes=tuple(sizes)))

    def logits(self, images_NCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits (N, K) of the network as it is now."""
        return cast("NDArray[np.float32]", self._call("logits", CALL_LIMIT_S, "", images_NCHW=np.array(images_NCHW)))

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The parameters as the PyTorch twin names and lays them out."""
        return cast("dict[str, NDArray[np.float32]]", self._call("weights", CALL_LIMIT_S, ""))

    def state(self) -> bytes:
        """Weights and optimiser, to go on with in another worker."""
        return cast(bytes, self._call("state", CALL_LIMIT_S, ""))

    def restore(self, state: bytes) -> None:
        """Goes back to what `state` gave. Raises TrainingError where it is of another training."""
        self._call("restore", CALL_LIMIT_S, "", state=state)
