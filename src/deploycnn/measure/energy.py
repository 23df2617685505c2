"""Energy where the machine counts it: RAPL for processors, NVML for NVIDIA GPUs. "Not available here" elsewhere.

The counters are of whole packages and whole cards, so everything else that runs is in them: what is reported is net of what
the machine drew when idle just before, and only means something on a machine that has nothing else to do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploycnn.record import Energy


class EnergyMeter:
    """The counters of this machine. `reason` says why there are none.

    Args:
        gpu: index of the GPU whose energy is meant, None: the processors'.
        root: of the file system, for tests.
        clock_s, sleep: for tests.
    """

    def __init__(
        self,
        *,
        gpu: int | None = None,
        root: Path = Path("/"),
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock_s, self._sleep = clock_s, sleep
        self._counter: _Rapl | _Nvml | None = None
        try:
            self._counter = _Rapl(root) if gpu is None else _Nvml(gpu)
            self.reason = ""
        except _NoCounter as error:
            self.reason = f"not available here: {error}"

    def measure(self, work: Callable[[], int], *, batch: int, idle_s: float = 2.0) -> Energy | None:
        """Energy of `work`, which gives back how many images it ran in batches of `batch`; a second of it or more.

        None where nothing counts energy.
        """
        if self._counter is None:
            return None
        idle_w, _ = self._power_w(lambda: self._sleep(idle_s))
        n_images = 0

        def counted() -> None:
            nonlocal n_images
            n_images = work()

        busy_w, seconds = self._power_w(counted)
        joules = (busy_w - idle_w) * seconds / max(1, n_images)
        return Energy(source=self._counter.source, batch=batch, seconds=seconds, idle_w=idle_w, busy_w=busy_w, joules_per_image=joules)

    def _power_w(self, during: Callable[[], None]) -> tuple[float, float]:
        assert self._counter is not None
        start_s, before = self._clock_s(), self._counter.read()
        during()
        joules, seconds = self._counter.joules_since(before), max(self._clock_s() - start_s, 1e-9)
        return joules / seconds, seconds


class _NoCounter(Exception):
    """Why energy cannot be read."""


class _Rapl:
    """Running averages of power limits: microjoules of each processor package, counted by the processor."""

    def __init__(self, root: Path) -> None:
        folders = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
        self._packages = [folder for folder in folders if _text(folder / "name").startswith("package-")]
        if not self._packages:
            raise _NoCounter("this processor or virtual machine shows no RAPL counters")
        if not all(_text(folder / "energy_uj") for folder in self._packages):
            raise _NoCounter("the RAPL counters may be read by root only (chmod a+r /sys/class/powercap/*/energy_uj)")
        self.source = f"RAPL {', '.join(_text(folder / 'name') for folder in self._packages)}"

    def read(self) -> list[int]:
        return [int(_text(folder / "energy_uj")) for folder in self._packages]

    def joules_since(self, before: list[int]) -> float:
        """Counters start anew at `max_energy_range_uj`; work here is far shorter than one round of them."""
        total_uj = 0
        for folder, first, last in zip(self._packages, before, self.read(), strict=True):
            total_uj += last - first if last >= first else last - first + int(_text(folder / "max_energy_range_uj") or 0)
        return total_uj / 1e6


class _Nvml:
    """Millijoules of one card since its driver was loaded; Volta and later."""

    source = "NVML"

    def __init__(self, index: int) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise _NoCounter("the package nvidia-ml-py is not installed") from error
        try:
            pynvml.nvmlInit()
            self._handle: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml: Any = pynvml
            self.read()
        except pynvml.NVMLError as error:
            raise _NoCounter(f"the NVIDIA driver counts no energy ({error})") from error

    def read(self) -> list[int]:
        return [int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))]

    def joules_since(self, before: list[int]) -> float:
        return (self.read()[0] - before[0]) / 1e3


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return ""
