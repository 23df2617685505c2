"""What else the machine did while it was measured. Looks between rounds, never while something runs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from deploycnn.types import Value

LOOK_EVERY_S = 0.5  # a look costs about a millisecond for each process that is ours


class MachineFacts(Value):
    """Between the first look and the last. None: this machine does not say."""

    seconds: float
    other_cores: float | None  # cores that processes other than ours kept busy, on average
    stolen_share: float | None  # of all cores' time, taken by the hypervisor
    throttled: int | None  # thermal throttling events, all cores
    frequency_swing: float | None  # (highest - lowest) / highest over the looks
    swapped_bytes: int | None  # in and out


class MachineWatch:
    """`look()` now and then, between rounds; `facts()` at the end. Made at the beginning.

    Args:
        root: of the file system, for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._cpu = root / "sys/devices/system/cpu"
        self._begun_s = self._looked_s = time.monotonic()
        self._first_times = psutil.cpu_times()
        self._first_own_s = _own_s()
        self._highest_own_s = self._first_own_s
        self._first_throttled = self._throttled()
        self._first_swapped = _swapped_bytes()
        self._frequencies: list[float] = []

    def look(self) -> None:
        """Takes note of what passes: frequencies, and what children used that will have ended later."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._highest_own_s = max(self._highest_own_s, _own_s())
        with contextlib.suppress(OSError, ValueError):
            self._frequencies.append(float((self._cpu / "cpu0/cpufreq/scaling_cur_freq").read_text()))

    def facts(self) -> MachineFacts:
        """What happened so far."""
        seconds = max(time.monotonic() - self._begun_s, 1e-3)
        times = psutil.cpu_times()
        spent = {name: getattr(times, name) - getattr(self._first_times, name) for name in times._fields}
        total_s = sum(spent.values())
        idle_s = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
        stolen_s = spent.get("steal")
        own_s = max(self._highest_own_s, _own_s()) - self._first_own_s
        # `guest` is counted inside `user` already, and a virtual machine's stolen time is nobody's here.
        busy_s = total_s - idle_s - (stolen_s or 0.0) - spent.get("guest", 0.0) - spent.get("guest_nice", 0.0)
        throttled, swapped = self._throttled(), _swapped_bytes()
        return MachineFacts(
            seconds=seconds,
            other_cores=max(0.0, busy_s - own_s) / seconds if total_s > 0 else None,
            stolen_share=stolen_s / total_s if stolen_s is not None and total_s > 0 else None,
            throttled=throttled - self._first_throttled if throttled is not None and self._first_throttled is not None else None,
            frequency_swing=1 - min(self._frequencies) / max(self._frequencies) if self._frequencies else None,
            swapped_bytes=swapped - self._first_swapped if swapped is not None and self._first_swapped is not None else None,
        )

    def _throttled(self) -> int | None:
        counts = []
        for path in self._cpu.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
            with contextlib.suppress(OSError, ValueError):
                counts.append(int(path.read_text()))
        return sum(counts) if counts else None


def _own_s() -> float:
    """Processor time of this process and all its descendants, the ended ones included once they were waited for."""
    total_s = 0.0
    with contextlib.suppress(psutil.Error):
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def _swapped_bytes() -> int | None:
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):  # psutil raises either where /proc/vmstat is hidden
        return None
    return int(swap.sin + swap.sout)
