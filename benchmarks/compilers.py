"""Tuned TVM, OpenVINO and TorchInductor against ONNX Runtime with IOBinding, fp32, one thread.

    compilers.py [--networks lenet,resnet8] [--batches 1,32] [--backends tvm,openvino,inductor] [--minutes 8] [--trials 2000]
                 [--budget 120] [--cache FOLDER] [--quick]

Each artifact is built and run in a process of its own; short blocks of all take turns in random order, and ratios are taken
round by round. Promised for tuned TVM, time over ONNX Runtime's: LeNet at most 0.75 at batch 1 and 1.0 at batch 32, ResNet-8 at
most 1.05 at batch 1. Fails where the whole interval of a ratio lies above its promise, and then shows what limits it: the
slowest functions, and their rate against the best one on this core. Schedules that were found before, or that ship, are used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from deploycnn import units
from deploycnn.backends import create
from deploycnn.environment import environment
from deploycnn.errors import DeployError
from deploycnn.export import export_graph
from deploycnn.measure.estimates import Row, median_intervals, ratio_intervals
from deploycnn.measure.schedule import measure, twin_of
from deploycnn.models import build_model
from deploycnn.recipe import MeasureOptions, ModelOptions
from deploycnn.samples import sample_name
from deploycnn.store import Store, cache_root
from deploycnn.types import Artifact, CompileRequest, Preprocessing, Progress, Target, Variant
from deploycnn.workers import Worker

PROMISES = {("lenet", 1): 0.75, ("lenet", 32): 1.0, ("resnet8", 1): 1.05}
REFERENCE = "onnxruntime"
SHAPE_CHW = (3, 32, 32)
LIMIT_S = 120.0
CPU = Target(device="cpu")


class Contender:
    """See measure.schedule.Contender: an artifact in a worker."""

    def __init__(self, key: str, backend: str, artifact: Artifact, folder: Path, options: MeasureOptions) -> None:
        self.key, self.batches = key, options.batches
        self._backend, self._artifact, self._folder, self._options = backend, artifact, folder, options
        self._x_NCHW = np.random.default_rng(0).integers(0, 256, (max(options.batches), *SHAPE_CHW), dtype=np.uint8)
        self._worker: Worker | None = None

    def start(self, process: int) -> None:
        log = self._folder.with_name(f"{self._folder.name}.log")
        self._worker = Worker(self.key, log_path=log, threads=self._options.threads).__enter__()
        self._worker.load(self._backend, {}, self._artifact, self._folder, timeout_s=LIMIT_S)

    def ready(self, batch: int) -> bool:
        self._worker.set_batch(self._x_NCHW[:batch], timeout_s=LIMIT_S)
        return self._worker.warm_up(timeout_s=LIMIT_S).steady

    def block(self) -> np.ndarray:
        return self._worker.block(self._options.block_s, timeout_s=LIMIT_S)

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()


def graph(network: str, folder: Path) -> Variant:
    """The network as a graph, untrained: no compiler's time depends on the weights."""
    folder.mkdir()
    module = build_model(ModelOptions(name=network), SHAPE_CHW, 10).eval()
    images_NCHW = np.random.default_rng(0).integers(0, 256, (65, *SHAPE_CHW), dtype=np.uint8)
    preprocessing = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    return export_graph(module, preprocessing, SHAPE_CHW, tuple("abcdefghij"), images_NCHW, folder, {})


def built(backend: str, options: dict[str, object], variant: Variant, batches: tuple[int, ...], cache: Path, folder: Path) -> Artifact:
    """Compiles in a worker with every core, as the pipeline does."""
    folder.mkdir()
    request = CompileRequest(variant=variant, target=CPU, batches=batches, folder=folder, cache_folder=cache / backend)

    def say(progress: Progress) -> None:
        print(f"\r    {progress.done} of {progress.total} {progress.unit} {progress.note}".ljust(90), end="", flush=True)

    cores = environment().cpu.usable_cores
    with Worker(backend, log_path=folder.with_name(f"{folder.name}.log"), threads=cores) as worker:
        artifact = worker.compile(backend, options, request, timeout_s=3600.0, progress=say)
    print(f"\r  {backend}: built in {units.seconds(artifact.build_s)}".ljust(94))
    return artifact


def compare(network: str, artifacts: dict[str, tuple[Artifact, Path]], options: MeasureOptions) -> list[str]:
    """Measures, prints a table, gives back the promises that were missed."""
    contenders = [Contender(backend, backend, *entry, options) for backend, entry in artifacts.items()]
    contenders.append(Contender(twin_of(REFERENCE), REFERENCE, *artifacts[REFERENCE], options))
    measured = measure(contenders, options, reference=REFERENCE)
    for key, error in measured.dropped.items():
        print(f"  {key} was dropped: {error.one_line}")
    missed = []
    for batch in options.batches:
        rows = {c.key: Row(found) for c in contenders if (found := measured.samples.get(sample_name(c.key, batch))) is not None}
        medians = median_intervals(rows, options.confidence)
        ratios = ratio_intervals(rows, REFERENCE, options.confidence)
        print(f"  batch {batch}, {measured.rounds[batch]} rounds, {measured.generations} starts")
        for key, median in medians.items():
            line = f"    {key:16} {units.seconds(median.value):>9}"
            if (ratio := ratios.get(key)) is not None:
                line += f"   {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {REFERENCE}"
                promise = PROMISES.get((network, batch)) if key == "tvm" else None
                if promise is not None:
                    kept = "kept" if ratio.high <= promise else "missed" if ratio.low > promise else "undecided"
                    line += f"   promised {promise}: {kept}"
                    missed += [f"{network} batch {batch}"] if kept == "missed" else []
            print(line)
    return missed


def explain(artifact: Artifact) -> None:
    """What tuning found and cost, and what limits it."""
    for key, facts in artifact.details.items():
        if not key.startswith("batch "):
            continue
        tuned, untuned = facts["evaluator_tuned_s"], facts["evaluator_untuned_s"]
        print(
            f"  tvm, {key}: {facts['trials']} trials in {units.seconds(facts['tuning_s'])} ({facts['new_trials']} of them now), layout"
            f" {facts['layout']}; by its own evaluator {units.seconds(untuned)} untuned, {units.seconds(tuned)} tuned"
        )
        for row in facts["slowest_functions"]:
            print(
                f"    {units.seconds(row['best_s']):>9} x {row['calls']}  {row['gflop_per_s']:6.1f} GFLOP/s,"
                f" {row['share_of_best_rate']:.2f} of the best rate, {row['trials']:4d} trials  {row['function']}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="lenet,resnet8")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--backends", default="tvm,openvino,inductor")
    parser.add_argument("--minutes", type=float, default=8.0, help="of tuning per network, earlier runs' counted")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of measuring per network")
    parser.add_argument("--cache", type=Path, default=None, help="of tuning records; default: where runs keep them")
    parser.add_argument("--quick", action="store_true", help="hardly any tuning and measuring, to see that it runs")
    arguments = parser.parse_args()
    cache = arguments.cache or Store(cache_root()).shared("backends")
    batches = tuple(sorted(map(int, arguments.batches.split(","))))
    options = MeasureOptions(
        batches=batches, budget_s=6.0 if arguments.quick else arguments.budget, interval=0.2 if arguments.quick else 0.01
    )
    tuning = {"trials": 1, "minutes": 0.05} if arguments.quick else {"trials": arguments.trials, "minutes": arguments.minutes}
    print(environment().summary)
    missed = []
    with tempfile.TemporaryDirectory(prefix="deploycnn-compilers-") as temp:
        for network in arguments.networks.split(","):
            print(network)
            variant = graph(network, Path(temp, network))
            artifacts: dict[str, tuple[Artifact, Path]] = {}
            for backend in (REFERENCE, *arguments.backends.split(",")):
                said = create(backend, {}).probe(CPU)
                if said.state != "ready":
                    print(f"  {backend} is left out: {said.reason}")
                    continue
                folder = Path(temp, f"{network}-{backend}")
                try:
                    artifacts[backend] = built(backend, tuning if backend == "tvm" else {}, variant, batches, cache, folder), folder
                except DeployError as error:
                    print(f"  {backend} is left out: {error.one_line}")
            missed += compare(network, artifacts, options)
            if "tvm" in artifacts:
                explain(artifacts["tvm"][0])
    if missed:
        print(f"missed: {', '.join(missed)}")
    sys.exit(int(bool(missed) and not arguments.quick))


if __name__ == "__main__":
    main()
