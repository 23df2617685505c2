"""The clock around `run()`: what it counts, what it leaves out, when it stops. Time is pretended but for two tests."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from deploycnn.measure import clock


class Pretend:
    """A session whose runs take so long, in turn, by the clock of the test; the last time stays."""

    now_ns = 0

    def __init__(self, *times_s: float) -> None:
        self.times_s = list(times_s)
        self.calls: list[str] = []
        self.collecting: set[bool] = set()

    def run(self) -> None:
        self.calls.append("run")
        self.collecting.add(gc.isenabled())
        Pretend.now_ns += round(1e9 * (self.times_s.pop(0) if len(self.times_s) > 1 else self.times_s[0]))

    def synchronise(self) -> None:
        self.calls.append("synchronise")
        Pretend.now_ns += 1000


@pytest.fixture
def _pretended_time(monkeypatch):
    monkeypatch.setattr(clock, "perf_counter_ns", lambda: Pretend.now_ns)


pretended = pytest.mark.usefixtures("_pretended_time")


@pretended
def test_a_block_times_every_run_with_its_synchronisation():
    session = Pretend(0.001, 0.002, 0.003)
    samples_ns = clock.timed_block(session, 4)
    assert samples_ns.dtype == np.int64
    assert samples_ns.tolist() == [1_001_000, 2_001_000, 3_001_000, 3_001_000]
    assert session.calls == ["run", "synchronise"] * 4


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_within_a_block_and_the_setting_is_kept(enabled):
    session = Pretend(0)
    (gc.enable if enabled else gc.disable)()
    try:
        clock.timed_block(session, 3)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert session.collecting == {False}


def test_the_setting_is_kept_when_a_run_fails():
    class Broken(Pretend):
        def run(self) -> None:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        clock.timed_block(Broken(0), 3)
    assert gc.isenabled()


@pretended
@pytest.mark.parametrize("expected_run_s", [0.0005, 0.001, 0.01, 5.0])
def test_a_block_is_as_long_as_asked_whatever_was_expected(expected_run_s):
    samples_ns = clock.timed_for(Pretend(0.001), 0.01, expected_run_s)
    assert samples_ns.sum() >= 10_000_000
    assert samples_ns.size in (10, 20)


@pretended
@pytest.mark.parametrize(("run_s", "untimed"), [(0.0001, 3), (0.0006, 1), (0.002, 0), (0.05, 0)])
def test_the_cold_first_runs_of_a_block_are_not_timed_where_a_few_runs_are_short(run_s, untimed):
    session = Pretend(*[run_s * 4] * untimed, run_s)
    samples_ns = clock.timed_for(session, 0.01, run_s)
    assert session.calls.count("run") == samples_ns.size + untimed
    assert samples_ns.max() <= run_s * 1e9 + 1000


@pretended
def test_one_run_is_a_block_where_it_is_long_enough():
    assert clock.timed_for(Pretend(0.02), 0.01, 1.0).size == 1


@pretended
def test_warming_up_ends_when_times_stand_still():
    warm = clock.warm_up(Pretend(0.05, 0.04, *np.linspace(0.003, 0.001, 100), 0.001), window_s=0.01, limit_s=5)
    assert warm.steady
    assert warm.n_runs > 80
    assert warm.run_s == pytest.approx(0.001, rel=0.1)


@pretended
def test_warming_up_gives_up_at_its_limit_and_says_so():
    warm = clock.warm_up(Pretend(*(0.02 * 0.9**i for i in range(60))), window_s=0.001, limit_s=0.1)
    assert not warm.steady


@pretended
def test_warming_up_a_slow_artifact_takes_few_runs():
    warm = clock.warm_up(Pretend(0.05), window_s=0.01, limit_s=0.01)
    assert warm.n_runs == 5
    assert not warm.steady


def test_a_call_is_timed_and_answers():
    value, wall_s = clock.timed_call(lambda: (time.sleep(0.01), "answer")[1])
    assert value == "answer"
    assert 0.01 <= wall_s < 1


def test_the_clock_itself_costs_next_to_nothing():
    """A median run of nothing: under a microsecond, of which most is the call of the two methods."""

    class Nothing:
        def run(self) -> None:
            return

        def synchronise(self) -> None:
            return

    assert np.median(clock.timed_block(Nothing(), 20_000)) < 1000
