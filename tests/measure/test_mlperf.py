"""MLPerf's load generator over pretended and real sessions."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest

from deploycnn.errors import BackendError, Unavailable, WorkerError
from deploycnn.measure.mlperf import LoadOptions, LoadResult, find_rate, run_load

loadgen = pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed (extra mlperf)")
IMAGES_NCHW = np.zeros((50, 3, 8, 8), dtype=np.uint8)


class Spinning:
    """A session whose run takes so long, and that breaks at a given run."""

    def __init__(self, run_s: float, breaks_at: int = -1) -> None:
        self.run_s, self.breaks_at = run_s, breaks_at
        self.batches: list[int] = []

    def bind(self, x_NCHW: np.ndarray) -> None:
        self.batches.append(len(x_NCHW))

    def run(self) -> None:
        if len(self.batches) == self.breaks_at:
            raise BackendError("it broke", remedy="mend it")
        until_s = time.perf_counter() + self.run_s
        while time.perf_counter() < until_s:
            pass

    def synchronise(self) -> None:
        return


def test_single_stream_reports_the_latency_of_a_query(tmp_path: Path) -> None:
    session = Spinning(2e-4)
    found = run_load(session, IMAGES_NCHW, LoadOptions(scenario="single-stream", queries=100, seconds=0.1), tmp_path)
    assert found.valid
    assert found.queries >= 100
    assert found.p50_s is not None
    assert 2e-4 <= found.p50_s < 2e-3
    assert set(session.batches) == {1}
    assert "unofficial" in found.label
    assert (tmp_path / "mlperf_log_detail.txt").is_file()


def test_offline_runs_whole_batches(tmp_path: Path) -> None:
    session = Spinning(1e-3)
    found = run_load(session, IMAGES_NCHW, LoadOptions(scenario="offline", queries=100, seconds=0.005, batch=16), tmp_path)
    assert set(session.batches) == {16}
    assert found.p50_s is None
    assert 1000 < found.images_per_s <= 16_500


@pytest.mark.parametrize(("bound_s", "valid"), [(1.0, True), (1e-5, False)])
def test_server_is_valid_under_its_bound_only(tmp_path: Path, bound_s: float, valid: bool) -> None:
    options = LoadOptions(scenario="server", queries=500, seconds=0.1, rate=2000, bound_s=bound_s)
    found = run_load(Spinning(5e-5), IMAGES_NCHW, options, tmp_path)
    assert found.valid == valid
    assert found.rate == 2000


def test_server_needs_a_rate_and_a_bound(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="rate and a bound"):
        run_load(Spinning(1e-4), IMAGES_NCHW, LoadOptions(scenario="server"), tmp_path)


@pytest.mark.parametrize("scenario", ["single-stream", "server", "offline"])
def test_an_error_in_the_middle_ends_the_test_and_is_raised(tmp_path: Path, scenario: str) -> None:
    options = LoadOptions.model_validate({"scenario": scenario, "queries": 64, "seconds": 0.05, "rate": 500, "bound_s": 1.0, "batch": 8})
    with pytest.raises(BackendError, match="it broke"):
        run_load(Spinning(1e-5, breaks_at=4), IMAGES_NCHW, options, tmp_path)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlperf_loadgen", None)
    with pytest.raises(Unavailable, match="pip install mlcommons-loadgen"):
        run_load(Spinning(1e-4), IMAGES_NCHW, LoadOptions(scenario="offline"), tmp_path)


@pytest.mark.parametrize("limit", [0.3, 7.0, 1000.0, 123_456.0])
@pytest.mark.parametrize("first", [1.0, 500.0])
def test_the_highest_rate_that_holds_is_found(limit: float, first: float) -> None:
    def try_rate(rate: float) -> LoadResult:
        return LoadResult(
            scenario="server", valid=rate <= limit, queries=1, images_per_s=rate, p50_s=None, p90_s=None, p99_s=None, rate=rate
        )

    found, tests = find_rate(try_rate, first)
    if len(tests) < 14:
        assert limit / 1.06 <= found <= limit
    assert found <= limit
    assert len({math.log(test.rate or 0) for test in tests}) == len(tests)


def test_a_rate_that_nothing_holds_is_none() -> None:
    broken = LoadResult(scenario="server", valid=False, queries=1, images_per_s=1.0, p50_s=None, p90_s=None, p99_s=None)
    found, tests = find_rate(lambda rate: broken, 100.0)
    assert found == 0.0
    assert len(tests) == 14
