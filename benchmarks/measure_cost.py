"""What does measuring cost?

    python benchmarks/measure_cost.py [--artifacts 10] [--interval 0.02] [--quick]

Ten artifacts (onnxruntime sessions of LeNet that differ in width) at batch 1 and 32, with their twin and control, are measured
until every median and every ratio is known to 2 %. Promised: at most 3 minutes on 2 cores. Prints what the time went into.
Fails where it takes longer, or where an interval stayed wider.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from _runs_to_compare import scratch

from deploycnn import stats, units
from deploycnn.environment import environment
from deploycnn.export import export_graph
from deploycnn.measure.control import ControlContender
from deploycnn.measure.schedule import measure, twin_of
from deploycnn.measure.summary import summarise
from deploycnn.models import build_model
from deploycnn.recipe import MeasureOptions, ModelOptions
from deploycnn.types import Artifact, CompileRequest, Preprocessing, Target
from deploycnn.workers import Worker
from deploycnn.workers.confine import pick_cores

PROMISED_S = 180.0
SHAPE_CHW = (3, 32, 32)
LIMIT_S = 120.0


class Session:
    """See schedule.Contender: an artifact of onnxruntime in a worker."""

    def __init__(self, key: str, artifact: Artifact, folder: Path, options: MeasureOptions) -> None:
        self.key, self.batches = key, options.batches
        self._artifact, self._folder, self._options = artifact, folder, options
        self._x_NCHW = np.random.default_rng(0).integers(0, 256, (max(options.batches), *SHAPE_CHW), dtype=np.uint8)
        self._worker: Worker | None = None

    def start(self, process: int) -> None:
        self._worker = Worker(self.key, log_path=self._folder / "log.txt", threads=self._options.threads).__enter__()
        self._worker.load("onnxruntime", {}, self._artifact, self._folder, timeout_s=LIMIT_S)

    def ready(self, batch: int) -> bool:
        self._worker.set_batch(self._x_NCHW[:batch], timeout_s=LIMIT_S)
        return self._worker.warm_up(timeout_s=LIMIT_S).steady

    def block(self) -> np.ndarray:
        return self._worker.block(self._options.block_s, timeout_s=LIMIT_S)

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()


def built(folder: Path, width: float) -> Artifact:
    """LeNet of that width, untrained, as an artifact of onnxruntime in `folder`."""
    module = build_model(ModelOptions(name="lenet", width=width), SHAPE_CHW, 10)
    preprocessing = Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3)
    sample_x_NCHW = np.random.default_rng(0).integers(0, 256, (64, *SHAPE_CHW), dtype=np.uint8)
    (folder / "graph").mkdir(parents=True)
    (folder / "artifact").mkdir()
    names = tuple("abcdefghij")
    variant = export_graph(module, preprocessing, SHAPE_CHW, names, sample_x_NCHW, folder / "graph", {})
    request = CompileRequest(variant=variant, target=Target(device="cpu"), batches=(1, 32), folder=folder / "artifact", cache_folder=folder)
    with Worker("build", log_path=folder / "log.txt") as worker:
        return worker.compile("onnxruntime", {}, request, timeout_s=LIMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=10)
    parser.add_argument("--interval", type=float, default=0.02)
    parser.add_argument("--quick", action="store_true", help="two artifacts, loosely, to see that it runs")
    arguments = parser.parse_args()
    n_artifacts, interval = (2, 0.2) if arguments.quick else (arguments.artifacts, arguments.interval)
    options = MeasureOptions(batches=(1, 32), interval=interval, budget_s=PROMISED_S)
    print(environment().summary)
    with scratch() as folder:
        keys = [f"onnxruntime/width{i}/cpu" for i in range(n_artifacts)]
        artifacts = {key: built(folder / key, 1 + i / 4) for i, key in enumerate(keys)}
        contenders = [Session(key, artifacts[key], folder / key / "artifact", options) for key in keys]
        contenders.append(Session(twin_of(keys[0]), artifacts[keys[0]], folder / keys[0] / "artifact", options))
        control = ControlContender(options.batches, threads=1, block_s=options.block_s, cores=pick_cores(1))
        begun_s = time.monotonic()
        measured = measure([*contenders, control], options, reference=keys[0])
        took_s = time.monotonic() - begun_s
        summary = summarise(measured.samples, options, reference=keys[0])
        summarised_s = time.monotonic() - begun_s - took_s
    in_blocks_s = sum(float(samples.time_ns.sum()) for samples in measured.samples.values()) / 1e9
    rows = [latency for latencies in summary.latencies.values() for latency in latencies]
    widest = max(stats.half_width(found) for row in rows for found in (row.p50_s, row.ratio) if found is not None)
    wide = sum(row.noisy for row in rows)
    print(f"{len(rows)} rows, {measured.generations} starts each, rounds {dict(measured.rounds)}, errors {list(measured.dropped)}")
    print(f"took {units.seconds(took_s)} (promised {units.seconds(PROMISED_S)}), of it in blocks {units.seconds(in_blocks_s)}")
    print(f"summary {units.seconds(summarised_s)}; widest interval ±{units.percent(widest, 1)}, {wide} rows wider than asked")
    print(f"noise floor { ({batch: f'{i.low:.3f}-{i.high:.3f}' for batch, i in summary.noise_floor.items()}) }")
    sys.exit(int(took_s > PROMISED_S * 1.01 or wide > 0))


if __name__ == "__main__":
    main()
