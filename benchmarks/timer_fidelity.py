"""Does the median that is reported stand for the runtime itself? Reported over a bare loop: at most 1.03, at batch 1 and 32.

    timer_fidelity.py [--quick] [--backends onnxruntime,torch] [--batches 1,32] [--rounds 40] [--restarts 4]

For every backend that is ready, one artifact of LeNet is run by two kinds of process that take turns, block by block:
deploycnn's worker, and a loop around the runtime's own session that imports nothing of deploycnn (`_bare_loops.py`). All
are pinned to the same core. The ratio is taken round by round; the bare loop against a second process of its own kind
shows what the method cannot tell apart. Fails where the whole interval of a ratio lies above 1.03.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from deploycnn.backends import backend_classes, create
from deploycnn.export import export_graph
from deploycnn.models import build_model
from deploycnn.recipe import ModelOptions
from deploycnn.types import Artifact, CompileRequest, Preprocessing, Target, Variant
from deploycnn.units import seconds
from deploycnn.workers import Worker
from deploycnn.workers.confine import pick_cores, thread_environment

LIMIT = 1.03
SHAPE_CHW = (3, 32, 32)
OPTIONS = {"tvm": {"tune": False}}  # the clock is on trial here, not the code
LOOPS = Path(__file__).with_name("_bare_loops.py")


class BareLoop:
    """One process of `_bare_loops.py`."""

    def __init__(self, backend: str, folder: Path, batch: int) -> None:
        cores = ",".join(map(str, pick_cores(1)))
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | thread_environment(1)
        command = [sys.executable, str(LOOPS), backend, str(folder), str(batch), *map(str, SHAPE_CHW), cores]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables
        )
        if self._read() != "ready":
            raise SystemExit(f"the bare loop of {backend} did not start: try {' '.join(command)}")

    def __enter__(self) -> BareLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def median_ns(self, n_runs: int) -> float:
        self._process.stdin.write(f"{n_runs}\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        return self._process.stdout.readline().strip()


def lenet(folder: Path) -> Variant:
    module = build_model(ModelOptions(name="lenet"), SHAPE_CHW, 10).eval()
    images_NCHW = np.random.default_rng(0).integers(0, 256, (65, *SHAPE_CHW), dtype=np.uint8)
    preprocessing = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    return export_graph(module, preprocessing, SHAPE_CHW, tuple("abcdefghij"), images_NCHW, folder, {})


def restart(backend: str, artifact: Artifact, folder: Path, batch: int, rounds: int, block_s: float) -> list[tuple[float, float, float]]:
    """Medians in nanoseconds of the worker and of two bare loops, by round, in processes started for this."""
    options = OPTIONS.get(backend, {})
    x_NCHW = np.random.default_rng(0).integers(0, 256, (batch, *SHAPE_CHW), dtype=np.uint8)
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(Worker(f"{backend}/fp32/cpu", log_path=folder / "log.txt"))
        bare, twin = (stack.enter_context(BareLoop(backend, folder, batch)) for _ in range(2))
        worker.load(backend, options, artifact, folder, timeout_s=120)
        worker.set_batch(x_NCHW, timeout_s=60)
        run_s = worker.warm_up(timeout_s=60).run_s
        n_runs = max(5, round(block_s / run_s))
        runners = [
            lambda: float(np.median(worker.block(block_s, timeout_s=60))),
            lambda: bare.median_ns(n_runs),
            lambda: twin.median_ns(n_runs),
        ]
        for run in runners[1:]:
            run()
        rng, found = np.random.default_rng(rounds), []
        for _ in range(rounds):
            medians = [0.0, 0.0, 0.0]
            for place in rng.permutation(3):
                medians[place] = runners[place]()
            found.append(tuple(medians))
    return found


def interval(ratios_PR: np.ndarray) -> tuple[float, float, float]:
    """Median of the ratios of all rounds; 95 % limits by drawing restarts, and rounds within them, anew."""
    rng = np.random.default_rng(0)
    n_restarts, n_rounds = ratios_PR.shape
    draws = []
    for _ in range(2000):
        chosen_PR = ratios_PR[rng.integers(n_restarts, size=n_restarts)]
        draws.append(np.median(np.take_along_axis(chosen_PR, rng.integers(n_rounds, size=(n_restarts, n_rounds)), axis=1)))
    return float(np.median(ratios_PR)), float(np.quantile(draws, 0.025)), float(np.quantile(draws, 0.975))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, onnxruntime only: does the script work?")
    parser.add_argument("--backends", default="")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--block-s", type=float, default=0.02)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.backends, arguments.rounds, arguments.restarts = arguments.backends or "onnxruntime", 6, 2
    sys.path.insert(0, str(LOOPS.parent))
    from _bare_loops import RUNTIMES

    ready = [name for name in backend_classes() if name in RUNTIMES and create(name, {}).probe(Target(device="cpu")).state == "ready"]
    names = [name for name in arguments.backends.split(",") if name] or ready
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        variant = lenet(Path(scratch))
        print(f"{'LeNet fp32, one thread':24} {'bare loop':>10}  reported / bare        bare / bare")
        for name in names:
            folder = Path(scratch) / name
            folder.mkdir()
            batches = tuple(int(batch) for batch in arguments.batches.split(","))
            request = CompileRequest(variant=variant, target="cpu", batches=batches, folder=folder, cache_folder=Path(scratch) / "cache")
            with Worker(f"{name}/fp32/cpu", log_path=folder / "log.txt", threads=os.cpu_count() or 1) as worker:
                artifact = worker.compile(name, OPTIONS.get(name, {}), request, timeout_s=600)
            for batch in batches:
                rounds = [restart(name, artifact, folder, batch, arguments.rounds, arguments.block_s) for _ in range(arguments.restarts)]
                times_PRK = np.array(rounds)
                ratio, low, high = interval(times_PRK[..., 0] / times_PRK[..., 1])
                floor, floor_low, floor_high = interval(times_PRK[..., 2] / times_PRK[..., 1])
                bare_s = statistics.median(times_PRK[..., 1].ravel().tolist()) / 1e9
                failed |= low > LIMIT
                verdict = "above 1.03" if low > LIMIT else "" if high <= LIMIT else "not clear"
                print(
                    f"{name:16} batch {batch:<2}  {seconds(bare_s):>9}  {ratio:.3f} ({low:.3f}-{high:.3f})  "
                    f"{floor:.3f} ({floor_low:.3f}-{floor_high:.3f})  {verdict}",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
