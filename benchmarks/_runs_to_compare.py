"""Whole runs of one recipe, measured anew each time, and a background load: what the benchmarks of `compare` share."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.run import RunOptions, run_recipe
from deploycnn.recipe import parse_recipe


class Runs:
    """Runs of a small recipe (torch, onnxruntime, null) in a folder and a cache of their own."""

    def __init__(self, folder: Path, *, budget_s: float, batches: tuple[int, ...] = (1, 32)) -> None:
        self._folder = folder
        self._budget_s = budget_s
        self._batches = batches
        os.environ["DEPLOYCNN_CACHE"] = str(folder / "cache")

    def run(self, name: str, *, spin_s: float) -> Path:
        """Everything but the latencies comes from the cache after the first time. Gives back the run's folder."""
        recipe = {
            "name": "compare",
            "data": {"name": "synthetic10", "train": 1500, "test": 400, "validation": 200, "calibration": 100},
            "train": {"epochs": 1},
            "precisions": ["fp32", "int8"],
            "backends": {"torch": {}, "onnxruntime": {}, "null": {"spin_s": spin_s}},
            "targets": ["cpu"],
            "measure": {"budget_s": self._budget_s, "batches": list(self._batches), "seed": random.randrange(2**31)},
        }
        out = self._folder / name
        options = RunOptions(out=out, remeasure=True, command=f"benchmark {name}")
        with contextlib.redirect_stdout(io.StringIO()):
            run_recipe(parse_recipe(recipe, "benchmark"), options, Talk(quiet=True))
        return out


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextlib.contextmanager
def background_load(processes: int) -> Iterator[None]:
    """So many processes that work and rest in turns of random length, as other users of a machine do."""
    started = [multiprocessing.get_context("spawn").Process(target=_work_and_rest, args=(i,), daemon=True) for i in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def _work_and_rest(seed: int) -> None:
    rng = random.Random(seed)
    matrix = np.random.default_rng(seed).normal(size=(400, 400))
    while True:
        until_s = time.monotonic() + rng.uniform(0.1, 2.0)
        while time.monotonic() < until_s:
            matrix @ matrix
        time.sleep(rng.uniform(0.1, 4.0))
