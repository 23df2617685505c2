"""The watch over GPUs, with a made-up NVML: no GPU is needed, and none is looked at. The names it calls are checked against pynvml."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from deploycnn.environment import GpuFacts, GpuState, environment
from deploycnn.measure import gpu_watch as module
from deploycnn.measure.gpu_doubts import gpu_doubts
from deploycnn.measure.gpu_watch import GpuWatch, gpu_watch


class NvmlError(Exception):
    pass


class MadeUpNvml:
    """Two cards; `facts[card]` answers by name of what is asked, a missing one is "not supported"."""

    NVMLError = NvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *cards: dict[str, Any]) -> None:
        pynvml = pytest.importorskip("pynvml")
        for name in dir(pynvml):
            if name.startswith(("nvmlClocksEventReason", "NVML_PERF_POLICY_")):
                setattr(self, name, getattr(pynvml, name))
        self.cards = cards

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.cards[index]

    def _said(self, card: dict[str, Any], name: str) -> Any:
        if name not in card:
            raise NvmlError("not supported")
        return card[name]

    def nvmlDeviceGetName(self, card: dict[str, Any]) -> str:
        return str(self._said(card, "name"))

    def nvmlDeviceGetClockInfo(self, card: dict[str, Any], which: int) -> int:
        return int(self._said(card, "sm" if which == self.NVML_CLOCK_SM else "memory"))

    def nvmlDeviceGetTemperature(self, card: dict[str, Any], _: int) -> int:
        return int(self._said(card, "temperature"))

    def nvmlDeviceGetPowerUsage(self, card: dict[str, Any]) -> int:
        return int(self._said(card, "power_mw"))

    def nvmlDeviceGetUtilizationRates(self, card: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._said(card, "use"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: dict[str, Any]) -> int:
        return int(self._said(card, "reasons"))

    def nvmlDeviceGetViolationStatus(self, card: dict[str, Any], policy: int) -> SimpleNamespace:
        return SimpleNamespace(violationTime=self._said(card, "violations_ns")[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, card: dict[str, Any]) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self._said(card, "pids")]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)


def card(**changes: Any) -> dict[str, Any]:
    quiet = {"name": "Made-up 4000", "sm": 1500, "memory": 9000, "temperature": 50, "power_mw": 120_500, "use": 0, "reasons": 0}
    return {**quiet, "pids": [], "violations_ns": dict.fromkeys(range(16), 10**9), **changes}


def test_what_the_card_did_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = MadeUpNvml(card())
    (gpu,) = nvml.cards
    watch = GpuWatch(nvml)
    gpu.update(sm=1200, temperature=83, reasons=nvml.nvmlClocksEventReasonSwPowerCap, pids=[os.getpid()])
    gpu["violations_ns"] = {**gpu["violations_ns"], nvml.NVML_PERF_POLICY_POWER: 3 * 10**9}
    watch.look()
    gpu.update(sm=210, reasons=nvml.nvmlClocksEventReasonGpuIdle, power_mw=90_000)  # idle clocks say nothing
    watch.look()
    gpu.update(sm=1500, temperature=70, reasons=0)
    watch.look()
    (facts,) = watch.facts()
    assert facts.before == GpuState(sm_mhz=1500, memory_mhz=9000, temperature_c=50, power_w=120.5)
    assert facts.after.temperature_c == 70
    assert facts.sm_mhz == (1200, 1500)
    assert facts.hottest_c == 83
    assert facts.highest_power_w == 120.5
    assert facts.reasons == ("power cap",)
    assert facts.throttled_s == {"power": 2.0}
    assert facts.others == ()
    assert {doubt.kind for doubt in gpu_doubts([facts], 60)} == {"gpu-throttling", "gpu-clocks"}


def test_processes_of_others_are_told_from_ours_and_from_those_of_another_namespace() -> None:
    nvml = MadeUpNvml(card(pids=[4_100_001]))  # there before anything of ours was
    watch = GpuWatch(nvml)
    nvml.cards[0]["pids"] = [4_100_001, os.getpid(), os.getppid(), 4_100_002]
    watch.look()
    (facts,) = watch.facts()
    assert facts.others == tuple(sorted([4_100_001, os.getppid()]))
    (doubt,) = gpu_doubts([facts], 60)
    assert doubt.kind == "gpu-shared"
    assert "4100001" in doubt.what
    assert doubt.remedy


def test_only_cards_that_we_ran_on_are_told_of() -> None:
    nvml = MadeUpNvml(card(name="first"), card(name="second"))
    watch = GpuWatch(nvml)
    assert [gpu.name for gpu in watch.facts()] == ["first", "second"]
    nvml.cards[1]["pids"] = [os.getpid()]
    watch.look()
    assert [gpu.name for gpu in watch.facts()] == ["second"]


def test_a_card_that_answers_nothing_is_no_error_and_no_doubt() -> None:
    watch = GpuWatch(MadeUpNvml({}))
    watch.look()
    (facts,) = watch.facts()
    assert facts.before == GpuState()
    assert gpu_doubts([facts], 60) == ()


def test_without_a_driver_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    watch = gpu_watch()
    watch.look()
    assert watch.facts() == ()


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"throttled_s": {"heat": 0.5}}, []),
        ({"throttled_s": {"heat": 5.0}}, ["gpu-throttling"]),
        ({"reasons": ("heat (hardware)",)}, ["gpu-throttling"]),
        ({"reasons": ("application clocks",)}, []),
        ({"others": (77,)}, ["gpu-shared"]),
        ({"other_use": 0.4}, ["gpu-shared"]),
        ({"other_use": 0.01}, []),
        ({"sm_mhz": (1000, 1500)}, ["gpu-clocks"]),
        ({"sm_mhz": (1490, 1500)}, []),
    ],
)
def test_doubts(changes: dict[str, Any], kinds: list[str]) -> None:
    quiet = GpuFacts(name="Made-up 4000", before=GpuState(), after=GpuState())
    found = gpu_doubts([quiet.model_copy(update=changes)], 60)
    assert [doubt.kind for doubt in found] == kinds
    assert all(doubt.remedy and "Made-up 4000" in doubt.what for doubt in found)


def test_every_name_that_is_called_is_pynvmls() -> None:
    pynvml = pytest.importorskip("pynvml")
    called = [name for name in vars(MadeUpNvml) if name.startswith("nvml")]
    assert len(called) == 10
    assert [name for name in called if not callable(getattr(pynvml, name, None))] == []
    assert all(hasattr(pynvml, f"nvmlClocksEventReason{name}") for name in module._REASONS)
    assert all(hasattr(pynvml, f"NVML_PERF_POLICY_{name}") for name in module._POLICIES)


@pytest.mark.gpu
def test_the_watch_reads_the_gpus_that_are_here() -> None:
    watch = gpu_watch()
    watch.look()
    facts = watch.facts()
    assert {gpu.name for gpu in facts} <= {gpu.name for gpu in environment().gpus}
    assert all(gpu.before.sm_mhz and gpu.before.temperature_c is not None for gpu in facts)
