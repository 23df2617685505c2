"""An artifact in a worker process, as the schedule wants it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.pipeline.context import Context
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.workers import Worker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class WorkerContender:
    """See measure.schedule.Contender. One worker lives between `start` and `stop`."""

    def __init__(self, context: Context, planned: PlannedCell, key: str, images_NCHW: NDArray[np.uint8]) -> None:
        artifact = planned.cell.artifact
        assert artifact is not None, "only artifacts are measured"
        self._context = context
        self._cell = planned.cell
        self._artifact = artifact
        self._options = planned.backend.options.model_dump(mode="json")
        self._images_NCHW = images_NCHW
        self._key = key
        self._worker: Worker | None = None

    @property
    def key(self) -> str:
        return self._key

    @property
    def batches(self) -> tuple[int, ...]:
        asked = self._context.recipe.measure.batches
        return tuple(batch for batch in asked if self._artifact.batches is None or batch in self._artifact.batches)

    def start(self, process: int) -> None:
        recipe, cell = self._context.recipe, self._cell
        log = self._context.log(self._key, "measure")
        worker = Worker(self._key, log_path=log, threads=recipe.measure.threads, memory_bytes=self._context.memory_bytes)
        self._worker = worker.__enter__()
        folder = self._context.out / Path(cell.folder or "")
        worker.load(cell.backend, self._options, self._artifact, folder, timeout_s=recipe.limits.load_s)

    def ready(self, batch: int) -> bool:
        limits = self._context.recipe.limits
        self._alive.set_batch(self._images_NCHW[:batch], timeout_s=limits.run_s)
        return self._alive.warm_up(timeout_s=limits.run_s).steady

    def block(self) -> NDArray[np.int64]:
        recipe = self._context.recipe
        return self._alive.block(recipe.measure.block_s, timeout_s=recipe.limits.run_s)

    def device_block(self) -> NDArray[np.int64] | None:
        recipe = self._context.recipe
        if self._cell.target.device == "cpu":
            return None
        return self._alive.device_block(recipe.measure.block_s, timeout_s=recipe.limits.run_s)

    def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    @property
    def _alive(self) -> Worker:
        assert self._worker is not None, "started before it is asked to run"
        return self._worker
