"""Finds the TVM schedules that ship in models/tvm/, so that nobody has to search for the networks of this project.

    ship_schedules.py [--networks lenet,resnet8] [--batches 1,32] [--mcpu x86-64-v3] [--minutes 20] [--trials 2000]
                      [--cache FOLDER] [--pack]

Tunes each network at each batch size, one at a time, and keeps the three best schedules of each function. An interrupted run
goes on from what it found. `--mcpu x86-64-v3` finds schedules for CPUs with AVX2 on any CPU that has it. `--pack` writes
models/tvm/FAMILY.jsonl.gz from the cache without tuning. Times in the file are this machine's: whoever uses the
schedules times them anew.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from deploycnn.backends.tvm import TVMBackend, TVMOptions, _library
from deploycnn.backends.tvm._records import Records, write_shipped
from deploycnn.export import export_graph
from deploycnn.models import build_model
from deploycnn.recipe import ModelOptions
from deploycnn.types import CompileRequest, Preprocessing, Progress, Target, Variant

SHAPE_CHW = (3, 32, 32)
KEPT = 3
FOLDER = Path(__file__).parents[1] / "models" / "tvm"


def graph(network: str, folder: Path) -> Variant:
    """The network as a graph. Schedules do not depend on its weights."""
    module = build_model(ModelOptions(name=network), SHAPE_CHW, 10).eval()
    images_NCHW = np.random.default_rng(0).integers(0, 256, (65, *SHAPE_CHW), dtype=np.uint8)
    folder.mkdir(parents=True)
    preprocessing = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    return export_graph(module, preprocessing, SHAPE_CHW, tuple("abcdefghij"), images_NCHW, folder, {})


def tune(variant: Variant, batch: int, options: TVMOptions, cache: Path, folder: Path) -> None:
    last = [-1]

    def say(progress: Progress) -> None:
        if progress.done // 50 != last[0]:
            last[0] = progress.done // 50
            print(f"  {progress.done} of {progress.total} {progress.unit}: {progress.note}", flush=True)

    folder.mkdir()
    request = CompileRequest(variant=variant, target=Target(device="cpu"), batches=(batch,), folder=folder, cache_folder=cache)
    facts = TVMBackend(options).compile(request, say).details[f"batch {batch}"]
    print(f"  {facts['trials']} trials, {facts['tuning_s']:.0f} s: {facts['evaluator_tuned_s'] * 1e6:.1f} µs, {facts['layout']}")
    for row in facts["slowest_functions"]:
        print(f"    {row['best_s'] * 1e6:9.2f} µs {row['gflop_per_s']:7.1f} GFLOP/s  {row['trials']:4d} trials  {row['function']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="lenet,resnet8")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--mcpu", default=None)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "deploycnn-schedules")
    parser.add_argument("--pack", action="store_true")
    arguments = parser.parse_args()
    cpu = _library.named_cpu(arguments.mcpu) if arguments.mcpu else _library.host_cpu()
    options = TVMOptions(minutes=arguments.minutes, trials=arguments.trials, mcpu=cpu.mcpu)
    if not arguments.pack:
        with tempfile.TemporaryDirectory() as temp:
            for network in arguments.networks.split(","):
                variant = graph(network, Path(temp, network))
                for batch in map(int, arguments.batches.split(",")):
                    print(f"{network}, batch {batch}, {cpu.mcpu} ({cpu.family})", flush=True)
                    tune(variant, batch, options, arguments.cache, Path(temp, f"{network}-{batch}"))
    best = {}
    for folder in sorted(arguments.cache.glob(f"tvm/*-{cpu.mcpu}-*")):
        for path in sorted(folder.glob("*.jsonl")):
            done = [m for m in Records(folder).read(path.stem).measured if m.seconds is not None]
            best[path.stem] = sorted(done, key=lambda m: m.seconds)[:KEPT]
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_shipped(FOLDER / f"{cpu.family}.jsonl.gz", best)
    print(f"{FOLDER / cpu.family}.jsonl.gz: {len(best)} functions, {(FOLDER / f'{cpu.family}.jsonl.gz').stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
