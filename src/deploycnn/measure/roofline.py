"""How fast could it be: the machine's measured peaks, and what share of them an artifact reaches (Williams et al. 2009).

Peaks are measured, not read from a data sheet: a large fp32 matrix product, and copies that stay in the cache and that do not,
each by numpy on the threads that artifacts get. Products of small convolutions cannot reach the peak of a large square
one, and fp16 or int8 units are faster than fp32 ones, so a share is a diagnosis and no grade; it may pass 100 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import deploycnn
from deploycnn import units
from deploycnn.errors import WorkerError
from deploycnn.record import Peak
from deploycnn.types import Value

PEAK_LIMIT_S = 120.0
CACHE_BYTES = 2**20  # a working set up to here is taken to stay in a core's own cache
LAUNCH_SHARE = 0.4  # of the time that the call itself must take to be what bounds it
NEAR_PEAK = 0.5
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class Cost(Value):
    """What one run must do at least, whole batch."""

    flops: float  # two for a multiply-add
    bytes: float  # weights read once, activations written and read once


class Roofline(Value):
    """An artifact at one batch size against the peaks."""

    floor_s: float  # no run can be shorter at these peaks
    arithmetic_s: float
    traffic_s: float
    share: float  # floor over the measured median
    flops_per_s: float  # that the artifact reached
    bound: Literal["launch", "compute", "memory"]
    sentence: str


def measure_peak(threads: int, cores: Sequence[int] = ()) -> Peak:
    """Measures the peaks in a process of its own, about three seconds. Callers keep the answer per machine and threads.

    Args:
        cores: that the process is pinned to; () where the system cannot pin.

    Raises:
        WorkerError: the process failed or took too long.
    """
    root = str(Path(deploycnn.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-P", "-m", "deploycnn.measure.roofline_child", *map(str, cores)]
    variables = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads)), "PYTHONPATH": path}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PEAK_LIMIT_S, env=variables)
        figures = json.loads(answer.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        raise WorkerError("the machine's peak could not be measured", found=str(error), remedy="leave the roofline out") from error
    return Peak(threads=threads, **figures)


def cost(*, flops_per_image: float, weight_bytes: float, activation_bytes_per_image: float, batch: int) -> Cost:
    """What a run over `batch` images costs at least."""
    return Cost(flops=flops_per_image * batch, bytes=weight_bytes + 2 * activation_bytes_per_image * batch)


def roofline(peak: Peak, needed: Cost, p50_s: float, *, dispatch_s: float | None = None) -> Roofline:
    """Where an artifact stands.

    Args:
        dispatch_s: median of the same backend's run of a graph of next to nothing (see dispatch.py), None: not known.
    """
    bytes_per_s = peak.cache_bytes_per_s if needed.bytes <= CACHE_BYTES else peak.memory_bytes_per_s
    arithmetic_s, traffic_s = needed.flops / peak.flops_per_s, needed.bytes / bytes_per_s
    floor_s = max(arithmetic_s, traffic_s)
    bound: Literal["launch", "compute", "memory"]
    if dispatch_s is not None and dispatch_s > LAUNCH_SHARE * p50_s:
        bound = "launch"
    else:
        bound = "compute" if arithmetic_s >= traffic_s else "memory"
    share = floor_s / p50_s
    return Roofline(
        floor_s=floor_s,
        arithmetic_s=arithmetic_s,
        traffic_s=traffic_s,
        share=share,
        flops_per_s=needed.flops / p50_s,
        bound=bound,
        sentence=_sentence(bound, share, p50_s, dispatch_s),
    )


def _sentence(bound: str, share: float, p50_s: float, dispatch_s: float | None) -> str:
    reached = f"reaches {units.percent(share, 0)} of this machine's measured peak"
    if bound == "launch" and dispatch_s is not None:
        return f"launch-bound: {units.percent(dispatch_s / p50_s, 0)} of the time is the call itself; larger batches hide it"
    unit = "arithmetic" if bound == "compute" else "memory traffic"
    if share >= NEAR_PEAK:
        return f"{bound}-bound: {reached} in {unit}; only less work or lower precision makes it faster"
    return f"{bound}-bound on paper, but it {reached} in {unit}: better kernels, fusion or tuning could gain"
