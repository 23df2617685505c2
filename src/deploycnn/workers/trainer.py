"""The work of a worker that trains, in its own process: every method is a call of `TrainWorker`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deploycnn.errors import WorkerError
from deploycnn.measure import clock
from deploycnn.train.frameworks import FrameworkFacts, Task, Training, framework_class
from deploycnn.types import ProgressCallback
from deploycnn.workers.memory import peak_bytes
from deploycnn.workers.protocol import EpochFacts, MemoryFacts


class Trainer:
    """Holds at most one training."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self._training: Training | None = None

    def facts(self, framework: str) -> FrameworkFacts:
        return framework_class(framework)().facts()

    def begin(self, framework: str, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> float:
        if self._training is not None:
            raise WorkerError("this worker trains already", remedy="start one worker for each training")
        maker = framework_class(framework)()
        self._training, start_s = clock.timed_call(lambda: maker.begin(task, images_NCHW, labels_N))
        return start_s

    def epoch(self, order_N: NDArray[np.int64], sizes: Sequence[int]) -> EpochFacts:
        training = self._begun()
        loss, train_s = clock.timed_call(lambda: training.epoch(order_N, sizes, self._progress))
        return EpochFacts(loss=loss, train_s=train_s)

    def logits(self, images_NCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._begun().logits(images_NCHW)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return self._begun().weights()

    def state(self) -> bytes:
        return self._begun().state()

    def restore(self, state: bytes) -> None:
        self._begun().restore(state)

    def memory(self) -> MemoryFacts:
        import psutil

        resident_bytes = psutil.Process().memory_info().rss
        device_bytes = self._begun().device_peak_bytes()
        return MemoryFacts(
            resident_bytes=resident_bytes, peak_bytes=max(resident_bytes, peak_bytes()), device_bytes=None, device_peak_bytes=device_bytes
        )

    def close(self) -> None:
        self._training = None

    def _begun(self) -> Training:
        if self._training is None:
            raise WorkerError("this worker trains nothing", remedy="call begin first")
        return self._training
