"""The device boundary, over sessions and contenders whose device is made up: what is timed, when, and what is claimed of it."""

from __future__ import annotations

import numpy as np
import pytest

from deploycnn.measure.clock import DeviceTimed, timed_on_device
from deploycnn.measure.schedule import DEVICE, measure, twin_of
from deploycnn.measure.summary import summarise
from deploycnn.recipe import MeasureOptions
from deploycnn.samples import sample_name

REFERENCE, OTHER = "torch/fp32/cpu", "tensorrt/fp16/cuda"
OPTIONS = MeasureOptions(batches=(1, 8), processes=2, min_rounds=6, budget_s=4.0)


class FakeSession:
    """Each run takes 30 µs of the device, and what it took to launch the first one is not counted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pending_s = 0.0

    def run(self) -> None:
        self.calls.append("run")

    def synchronise(self) -> None:
        self.calls.append("synchronise")

    def mark_device(self) -> None:
        self.calls.append("mark")
        self.pending_s = 0.0

    def run_on_device(self) -> None:
        self.calls.append("device")
        self.pending_s += 30e-6

    def device_elapsed_s(self) -> float:
        self.calls.append("elapsed")
        return self.pending_s


def test_a_sample_is_the_mean_run_of_a_block_between_two_marks() -> None:
    session = FakeSession()
    samples_ns = timed_on_device(session, 4)
    assert samples_ns.dtype == np.int64
    assert samples_ns.tolist() == [30_000]
    assert session.calls == ["mark", *["device"] * 4, "elapsed"]


def test_a_session_offers_device_time_by_its_methods() -> None:
    class HostOnly:
        def run(self) -> None: ...

        def synchronise(self) -> None: ...

    assert isinstance(FakeSession(), DeviceTimed)
    assert not isinstance(HostOnly(), DeviceTimed)


def test_tensorrts_session_is_one_of_them() -> None:
    from deploycnn.backends.tensorrt.session import TensorRTSession

    assert all(callable(getattr(TensorRTSession, name)) for name in ("mark_device", "run_on_device", "device_elapsed_s"))


class Clock:
    now_s = 0.0


class Fake:
    """A contender under a clock that only moves when it runs."""

    def __init__(self, clock: Clock, key: str, run_s: float) -> None:
        self.clock, self.key, self.run_s = clock, key, run_s
        self.batches = (1, 8)
        self.rng = np.random.default_rng(sum(key.encode()))
        self.log: list[str] = []

    def start(self, process: int) -> None: ...

    def ready(self, batch: int) -> bool:
        return True

    def block(self) -> np.ndarray:
        self.log.append("block")
        times_s = self.run_s * np.exp(self.rng.normal(0, 0.01, 20))
        self.clock.now_s += float(times_s.sum())
        return (times_s * 1e9).astype(np.int64)

    def stop(self) -> None: ...


class FakeOnDevice(Fake):
    def device_block(self) -> np.ndarray | None:
        self.log.append("device")
        self.clock.now_s += 0.01
        return np.array([round(self.run_s * 0.6e9 * np.exp(self.rng.normal(0, 0.01)))])


def measured(*contenders: Fake) -> tuple:
    measurement = measure(contenders, OPTIONS, reference=REFERENCE, clock_s=lambda: contenders[0].clock.now_s)
    return measurement, summarise(measurement.samples, OPTIONS, reference=REFERENCE)


def test_device_rows_lie_beside_the_others_and_claim_no_percentiles() -> None:
    clock = Clock()
    other = FakeOnDevice(clock, OTHER, 1e-4)
    measurement, summary = measured(Fake(clock, REFERENCE, 1e-3), Fake(clock, twin_of(REFERENCE), 1e-3), other)
    assert other.log[:2] == ["block", "device"]
    assert other.log.count("block") == other.log.count("device")
    assert {name for name in measurement.samples if DEVICE in name} == {sample_name(OTHER + DEVICE, batch) for batch in (1, 8)}
    assert set(summary.latencies) == {REFERENCE, OTHER}
    assert set(summary.device_latencies) == {OTHER}
    host, device = summary.latencies[OTHER][0], summary.device_latencies[OTHER][0]
    assert (host.boundary, device.boundary) == ("host-to-host", "device")
    assert device.samples == f"{OTHER}{DEVICE}@b1"
    assert device.p50_s.value == pytest.approx(0.6e-4, rel=0.02)
    assert device.n_samples == device.n_blocks
    assert [device.p90_s, device.p95_s, device.p99_s, device.p999_s] == [None] * 4
    assert device.ratio is None  # the reference tells no device time, and a host time is no measure of it
    assert host.ratio is not None
    assert host.ratio.value == pytest.approx(0.1, rel=0.05)


def test_device_times_are_held_against_the_references_own() -> None:
    clock = Clock()
    reference = FakeOnDevice(clock, REFERENCE, 1e-3)
    _, summary = measured(reference, FakeOnDevice(clock, twin_of(REFERENCE), 1e-3), FakeOnDevice(clock, OTHER, 1e-4))
    assert set(summary.device_latencies) == {REFERENCE, OTHER}
    ratio = summary.device_latencies[OTHER][0].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(0.1, rel=0.05)
