"""`recommend` over a large record: a second, without torch. Prints seconds as a user waits for them, and the share spent starting Python.

    python benchmarks/recommend.py [RUN]

Without RUN, a record of 200 cells is made: 20 backends at 5 precisions on 2 targets, with per-class figures of 100 classes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5
LIMIT_S = 1.0


def waited_s(command: list[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of a process: the second one does not grow on a busy machine."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.99 * value, "high": 1.01 * value, "confidence": 0.95}


def cell(backend: str, precision: str, target: str, p50_s: float) -> dict[str, object]:
    verdict = {"state": "pass", "reason": "made up", "remedy": ""}
    per_class = [{"name": f"class {i}", "n_images": 100, "top1": 0.7, "reference_top1": 0.7} for i in range(100)]
    shared = {"reference_top1": 0.7, "agreement": 0.99, "right_to_wrong": list(range(100)), "wrong_to_right": list(range(100, 200))}
    errors = {"relative_logit_error": 1e-3, "max_logit_error": 0.01, "nonfinite_images": 0}
    confidence = {"mean_confidence": 0.8, "reference_mean_confidence": 0.8, "ece": 0.05, "reference_ece": 0.05}
    accuracy = {"n_images": 10000, "top1": interval(0.7), "drop": interval(0.001), "per_class": per_class, **shared, **errors, **confidence}
    counts = {"n_samples": 4000, "n_blocks": 40, "n_rounds": 20, "n_processes": 2, "outliers": 1, "noisy": False}
    tails = {f"p{p}_s": interval(p50_s * 1.2) for p in ("90", "95", "99", "999")}
    extremes = {"mean_s": p50_s, "min_s": p50_s, "max_s": 2 * p50_s, "images_per_s": interval(1 / p50_s), "ratio": interval(p50_s / 1e-4)}
    latencies = [
        {"batch": b, "threads": 1, "samples": "none", "p50_s": interval(p50_s * b), **counts, **tails, **extremes} for b in (1, 8, 32, 128)
    ]
    return {
        "backend": backend,
        "precision": precision,
        "target": target,
        "outcome": {"state": "done"},
        "evidence": verdict,
        "accuracy": {**accuracy, "verdict": verdict},
        "latencies": latencies,
    }


def large_record() -> dict[str, object]:
    cells = [
        cell(f"backend{i}", precision, target, 1e-4 * (1 + i / 10))
        for i in range(20)
        for precision in ("fp32", "fp16", "bf16", "int8", "int8-auto")
        for target in ("cpu", "cuda:sm89")
    ]
    sizes = {"n_train": 1, "n_validation": 1, "n_calibration": 1, "n_test": 10000}
    names = {"name": "made up", "asked": "made up", "source": "nowhere", "official": None, "sha256": "0" * 64}
    return {
        "schema_version": 1,
        "deploycnn_version": "0",
        "created": "2026-01-01T00:00:00+00:00",
        "command": "none",
        "recipe": {},
        "data": {**names, "classes": [f"class {i}" for i in range(100)], "shape_CHW": [3, 32, 32], **sizes},
        "model": {"name": "made up", "parameters": 1, "source": "trained", "checkpoint_sha256": None, "graph_sha256": "0" * 64},
        "environments": {},
        "reference": "backend0/fp32/cpu",
        "cells": cells,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    given = parser.parse_args().run
    with tempfile.TemporaryDirectory() as folder:
        path = given or Path(folder) / "record.json"
        if given is None:
            path.write_text(json.dumps(large_record()))
        python_s = statistics.median(waited_s([sys.executable, "-c", "pass"])[0] for _ in range(REPEATS))
        command = [sys.executable, "-m", "deploycnn.pipeline", "recommend", str(path), "--p99-ms", "2"]
        times_s = sorted(waited_s(command) for _ in range(REPEATS))
        heavy = "import sys; sys.argv = ['x', 'recommend', sys.argv[1]]; import deploycnn.pipeline.cli as cli\n"
        heavy += "try: cli.main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
        torch_loaded = subprocess.run([sys.executable, "-c", heavy, str(path)], capture_output=True, text=True).stderr.strip()
    walls_s = [wall_s for wall_s, _ in times_s]
    print(f"recommend: {walls_s[0]:.2f} s best, {statistics.median(walls_s):.2f} s median of {REPEATS}, {walls_s[-1]:.2f} s worst")
    print(f"CPU time {min(cpu_s for _, cpu_s in times_s):.2f} s")
    print(f"of which Python itself {python_s:.2f} s; torch loaded: {torch_loaded}; promised: under {LIMIT_S:.0f} s")


if __name__ == "__main__":
    main()
