"""The only clock around `run()`.

The boundary is host to host for every backend: one sample is one `run` and the `synchronise` after it, from pixels in
host memory to logits in host memory. Nothing else is inside: no allocation, no garbage collection, no Python frame of
ours. What the clock itself costs (about 0.1 µs a sample) is part of the sample and the same for all.
`benchmarks/timer_fidelity.py` holds the reported median against a bare loop in a process without deploycnn.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from deploycnn.types import Value

T = TypeVar("T")

LEAD_IN_RUNS = 3  # untimed, at the beginning of a block,
LEAD_IN_SHARE = 0.1  # for at most this share of it: runs that are long beside the caches' refilling need none


class Runnable(Protocol):
    """What a clock needs of a session: an input is bound already."""

    def run(self) -> None: ...

    def synchronise(self) -> None: ...


@runtime_checkable
class DeviceTimed(Protocol):
    """What a session offers, beside `run`, whose device tells how long it was busy: copies and launching left out."""

    def mark_device(self) -> None:
        """Begins: what `run_on_device` does from here counts."""
        ...

    def run_on_device(self) -> None:
        """One inference over the pixels that the last `run` left on the device. May return before it is finished."""
        ...

    def device_elapsed_s(self) -> float:
        """Seconds on the device since `mark_device`; waits for the work."""
        ...


class WarmUp(Value):
    """What it took until the times stood still."""

    n_runs: int
    run_s: float  # median of the last window
    steady: bool  # False: still getting faster when the limit was reached


def timed_call(function: Callable[[], T]) -> tuple[T, float]:
    """The function's value, and the seconds that it took."""
    start_ns = perf_counter_ns()
    value = function()
    return value, (perf_counter_ns() - start_ns) / 1e9


def timed_block(session: Runnable, n_runs: int) -> np.ndarray:
    """`n_runs` runs back to back, each timed.

    Returns:
        int64, shape (n_runs,): nanoseconds of each run, in order.
    """
    samples_ns = np.full(n_runs, 0, dtype=np.int64)  # filled, so that no page fault falls into the block
    cells = samples_ns.data  # stores an int in half the time that numpy's own indexing takes
    run, synchronise, clock_ns = session.run, session.synchronise, perf_counter_ns
    collects = gc.isenabled()
    gc.disable()
    try:
        for i in range(n_runs):
            start_ns = clock_ns()
            run()
            synchronise()
            cells[i] = clock_ns() - start_ns
    finally:
        if collects:
            gc.enable()
    return samples_ns


def timed_for(session: Runnable, min_s: float, expected_run_s: float) -> np.ndarray:
    """Runs back to back for at least `min_s` of running time, at least one.

    A few runs before them are not timed: while the other artifacts had their turn this one's memory left the caches, and
    its first run takes 3 to 5 times as long as those that follow, the second 1.2 times. Timed, that would be the p99 of every
    artifact with fewer than a hundred runs a block, and it says how the blocks were laid, not how fast the artifact is.

    The number of runs is fixed before they start, from `expected_run_s`: looking at the clock to decide when to stop
    would end a block more often after a slow run than after a fast one.

    Returns:
        int64, shape (n_runs,): nanoseconds of each run, in order.
    """
    for _ in range(min(LEAD_IN_RUNS, int(LEAD_IN_SHARE * min_s / expected_run_s))):
        session.run()
        session.synchronise()
    chunks = [timed_block(session, max(1, math.ceil(min_s / expected_run_s)))]
    while (total_s := sum(int(chunk.sum()) for chunk in chunks) / 1e9) < min_s:
        n_so_far = sum(chunk.size for chunk in chunks)
        chunks.append(timed_block(session, max(1, math.ceil((min_s - total_s) / (total_s / n_so_far)))))
    return np.concatenate(chunks)


def timed_on_device(session: DeviceTimed, n_runs: int) -> np.ndarray:
    """Device time of one run, as the mean over `n_runs` back to back.

    Not each run by itself: on an idle device the first kernel waits for its launch, which is what this time leaves out. So there
    is one sample a block, and no percentile of single runs can be had from it.

    Returns:
        int64, shape (1,): nanoseconds.
    """
    session.mark_device()
    for _ in range(n_runs):
        session.run_on_device()
    return np.array([round(session.device_elapsed_s() / n_runs * 1e9)], dtype=np.int64)


def warm_up(session: Runnable, *, window_s: float = 0.03, limit_s: float = 3.0, tolerance: float = 0.02) -> WarmUp:
    """Runs until the times stand still.

    The rule: windows of at least `window_s` and three runs, until two windows in a row have a median that is not more
    than `tolerance` below the lowest median before them; at most `limit_s` of running time, at least one window.
    """
    first_ns = timed_block(session, 1)  # may allocate, compile or choose an algorithm: no guide to what follows
    run_s = float(timed_block(session, 1)[0]) / 1e9
    n_runs, spent_s, quiet = 2, float(first_ns[0]) / 1e9 + run_s, 0
    best_s = math.inf
    while quiet < 2 and (spent_s < limit_s or best_s == math.inf):
        window_ns = timed_block(session, min(max(3, math.ceil(window_s / run_s)), 100_000))
        run_s = float(np.median(window_ns)) / 1e9
        n_runs, spent_s = n_runs + window_ns.size, spent_s + float(window_ns.sum()) / 1e9
        quiet = quiet + 1 if run_s > best_s * (1 - tolerance) else 0
        best_s = min(best_s, run_s)
    return WarmUp(n_runs=n_runs, run_s=run_s, steady=quiet >= 2)
