"""What the GPUs did while something was measured on them, as NVML tells it. Looks between rounds, never while something runs.

Throttling is also counted by the driver itself (nvmlDeviceGetViolationStatus), so that what happened inside a block is not missed.
What a GPU or driver does not answer is None or empty, and no error; without a driver there is nothing to watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from deploycnn.environment import GpuFacts, GpuState

LOOK_EVERY_S = 0.5
SETTLE_S = 1.2  # a GPU's use is a mean over up to a second, in which validation may have ended

# Bits of nvmlDeviceGetCurrentClocksEventReasons, by the end of their name, and how they are called here.
_REASONS = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "application clocks",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
}
_POLICIES = {"POWER": "power", "THERMAL": "heat", "BOARD_LIMIT": "board limit", "RELIABILITY": "reliability"}


class GpuWatch:
    """Made before anything of ours is on a GPU; `look()` between rounds; `facts()` at the end, while our processes may be gone.

    Args:
        nvml: the module pynvml, or one with its functions; None: there is nothing to watch.
    """

    def __init__(self, nvml: Any | None) -> None:
        self._nvml = nvml
        self._looked_s = 0.0
        self._cards = [] if nvml is None else _cards(nvml)

    def look(self) -> None:
        """Takes note of clocks, temperature, power and of who is on the cards, not more often than twice a second."""
        if not self._cards or time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return
        ours = _own_pids()
        for card in self._cards:
            card.look(ours)
        self._looked_s = time.monotonic()

    def facts(self) -> tuple[GpuFacts, ...]:
        """What happened so far, of the GPUs that our processes were seen on; of all where the driver does not show processes."""
        used = [card for card in self._cards if card.ours_seen] or self._cards
        return tuple(card.facts() for card in used)


def gpu_watch() -> GpuWatch:
    """A watch over this machine's GPUs; over none where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return GpuWatch(None)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return GpuWatch(None)
    return GpuWatch(pynvml)


class _Card:
    """One GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._name = str(self._ask(nvml.nvmlDeviceGetName, handle) or "a GPU")
        self._before = self._state()
        self._first_violations_s = self._violations_s()
        self._other_use = self._use()
        if self._other_use:
            time.sleep(SETTLE_S)
            self._other_use = self._use()
        self._others = set(self._pids())  # nothing of ours runs yet
        self._states: list[GpuState] = []
        self.ours_seen = False

    def look(self, ours: set[int]) -> None:
        self._states.append(self._state())
        pids = set(self._pids())
        self.ours_seen = self.ours_seen or bool(pids & ours)
        # A number that no process has here is of another namespace: it may well be our own, seen from outside a container.
        self._others |= {pid for pid in pids - ours if psutil.pid_exists(pid)}

    def facts(self) -> GpuFacts:
        after = self._state()
        states = [self._before, *self._states, after]
        busy_mhz = [state.sm_mhz for state in self._states if state.sm_mhz is not None and "idle" not in state.reasons]
        first = self._first_violations_s
        throttled_s = {cause: total_s - first[cause] for cause, total_s in self._violations_s().items() if cause in first}
        return GpuFacts(
            name=self._name,
            before=self._before,
            after=after,
            sm_mhz=(min(busy_mhz), max(busy_mhz)) if busy_mhz else None,
            hottest_c=max((state.temperature_c for state in states if state.temperature_c is not None), default=None),
            highest_power_w=max((state.power_w for state in states if state.power_w is not None), default=None),
            reasons=tuple(dict.fromkeys(reason for state in self._states for reason in state.reasons if reason != "idle")),
            throttled_s={cause: seconds for cause, seconds in throttled_s.items() if seconds > 0},
            others=tuple(sorted(self._others)),
            other_use=self._other_use,
        )

    def _state(self) -> GpuState:
        nvml, handle = self._nvml, self._handle
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuState(
            sm_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            reasons=self._reasons(),
        )

    def _reasons(self) -> tuple[str, ...]:
        bits = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle)
        if not bits:
            return ()
        return tuple(text for name, text in _REASONS.items() if bits & getattr(self._nvml, f"nvmlClocksEventReason{name}"))

    def _violations_s(self) -> dict[str, float]:
        """Seconds of throttling since the driver was loaded, by cause."""
        found = {}
        for name, cause in _POLICIES.items():
            status = self._ask(self._nvml.nvmlDeviceGetViolationStatus, self._handle, getattr(self._nvml, f"NVML_PERF_POLICY_{name}"))
            if status is not None:
                found[cause] = status.violationTime / 1e9
        return found

    def _use(self) -> float | None:
        use = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, self._handle)
        return None if use is None else use.gpu / 100

    def _pids(self) -> list[int]:
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, self._handle) or ()
        return [int(process.pid) for process in processes]

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What NVML answers, None where it does not."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def _cards(nvml: Any) -> list[_Card]:
    try:
        return [_Card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []


def _own_pids() -> set[int]:
    me = psutil.Process()
    try:
        return {me.pid, *(child.pid for child in me.children(recursive=True))}
    except psutil.Error:  # a child ended while the list was made
        return {me.pid}
