"""Measures the machine's peaks: `python -m deploycnn.measure.roofline_child CORE...`, prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

SIDE = 1024
TRIES_S = 0.5  # for each way to reach a peak


def main(cores: list[str]) -> None:
    """Prints the peaks. A peak is the best that the machine did: a disturbed try says nothing about what it can do."""
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores})
    import numpy as np  # not before the process is pinned

    rng = np.random.default_rng(0)
    a_NN, b_NN = rng.normal(size=(2, SIDE, SIDE)).astype(np.float32)
    product_NN = np.empty_like(a_NN)
    product_s = _best_s(lambda: np.matmul(a_NN, b_NN, out=product_NN))
    figures = {"flops_per_s": 2 * SIDE**3 / product_s}
    for name, n_bytes in (("cache", 2**18), ("memory", 2**26)):
        figures[f"{name}_bytes_per_s"] = 2 * n_bytes / min(_best_s(work) for work in _movers(n_bytes))
    print(json.dumps(figures))


def _movers(n_bytes: int) -> tuple[Callable[[], object], ...]:
    """Ways to read and write so many bytes: memcpy, and plain vector loads and stores.

    The C library copies medium sizes by `rep movsb`, which on Zen 3 runs at a third of the speed of vector loads from the cache.
    """
    import numpy as np

    source, target = np.ones((2, n_bytes // 4), dtype=np.float32)
    return (lambda: np.copyto(target, source), lambda: np.negative(source, out=target))


def _best_s(work: Callable[[], object]) -> float:
    import time

    best_s, until_s = float("inf"), time.monotonic() + TRIES_S
    while time.monotonic() < until_s:
        start_ns = time.perf_counter_ns()
        work()
        best_s = min(best_s, (time.perf_counter_ns() - start_ns) / 1e9)
    return best_s


if __name__ == "__main__":
    main(sys.argv[1:])
