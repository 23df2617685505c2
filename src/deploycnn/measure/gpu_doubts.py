"""Reasons not to trust what was measured on a GPU, each with what would remove it. Thresholds are constants here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deploycnn import units
from deploycnn.environment import GpuFacts
from deploycnn.types import Doubt

THROTTLED_SHARE = 0.01  # of the time that was measured
OTHER_USE = 0.05
CLOCK_SWING = 0.05

_HELD_BACK = ("power cap", "hardware slowdown", "heat", "heat (hardware)", "power brake")


def gpu_doubts(gpus: Iterable[GpuFacts], measured_s: float) -> tuple[Doubt, ...]:
    """Doubts about the GPUs while `measured_s` seconds were measured on them."""
    return tuple(doubt for gpu in gpus for doubt in _doubts(gpu, measured_s))


def _doubts(gpu: GpuFacts, measured_s: float) -> Iterator[Doubt]:
    causes = [f"{cause} for {units.seconds(time_s)}" for cause, time_s in gpu.throttled_s.items() if time_s > THROTTLED_SHARE * measured_s]
    causes = causes or [reason for reason in gpu.reasons if reason in _HELD_BACK]
    if causes:
        hottest = f", up to {gpu.hottest_c} °C" if gpu.hottest_c is not None else ""
        yield Doubt(
            kind="gpu-throttling",
            what=f"{gpu.name} was held back while measuring: {', '.join(causes)}{hottest}",
            remedy="cool it, raise its power limit (nvidia-smi --power-limit), or lock its clocks lower",
        )
    if gpu.others or (gpu.other_use or 0.0) > OTHER_USE:
        pids = f" ({', '.join(map(str, gpu.others[:5]))})" if gpu.others else ""
        busy = f", it was {units.percent(gpu.other_use, 0)} busy beforehand" if gpu.other_use else ""
        yield Doubt(
            kind="gpu-shared",
            what=f"other processes were on {gpu.name}{pids}{busy}",
            remedy="stop them, or choose another GPU with CUDA_VISIBLE_DEVICES",
        )
    low, high = gpu.sm_mhz or (0, 0)
    if high - low > CLOCK_SWING * high:
        yield Doubt(
            kind="gpu-clocks",
            what=f"the SM clock of {gpu.name} was not locked: {low} to {high} MHz between rounds",
            remedy="sudo nvidia-smi --lock-gpu-clocks=MHZ at a clock that it can hold (undone by --reset-gpu-clocks)",
        )
