"""Load as MLPerf Inference makes it, with its own load generator (mlcommons-loadgen). Unofficial: no rule of a submission is checked.

single-stream   one query after another; latency of each
offline         everything at once; samples per second, in batches
server          queries arrive as a Poisson process; one thread answers them in order

A query is one image: copying it in (`bind`) counts, as it does for MLPerf. Runs inside the worker that holds the session.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from deploycnn.errors import DeployError, Unavailable, WorkerError
from deploycnn.measure.clock import timed_block
from deploycnn.types import Value

Scenario = Literal["single-stream", "offline", "server"]
_NAMES: dict[Scenario, str] = {"single-stream": "SingleStream", "offline": "Offline", "server": "Server"}
PRECISION = 0.05  # of the rate that `find_rate` gives, as a share
MOST_TRIALS = 14


class Loadable(Protocol):
    """What a load needs of a session."""

    def bind(self, x_NCHW: np.ndarray) -> None: ...

    def run(self) -> None: ...

    def synchronise(self) -> None: ...


class LoadOptions(Value):
    """One test."""

    scenario: Scenario
    queries: int = 1000  # fewest, a server needs 459 for its p99 to be judged; offline: images of the one query
    seconds: float = 2.0  # shortest
    batch: int = 32  # offline only: images per run
    rate: float | None = None  # server only: queries per second
    bound_s: float | None = None  # server only: the p99 that makes the result valid
    seed: int = 0


class LoadResult(Value):
    """What loadgen says, from mlperf_log_detail.txt."""

    scenario: Scenario
    valid: bool  # by loadgen's own criteria; for a server: the p99 stayed under the bound
    queries: int
    images_per_s: float
    p50_s: float | None  # None offline: there is one query
    p90_s: float | None
    p99_s: float | None
    rate: float | None = None  # asked for
    label: str = "unofficial, by mlcommons-loadgen"


def run_load(session: Loadable, images_NCHW: np.ndarray, options: LoadOptions, folder: Path) -> LoadResult:
    """Runs one test; loadgen's logs stay in `folder`.

    Raises:
        Unavailable: mlcommons-loadgen is not installed.
        DeployError: what the session raised, after the test was wound up.
    """
    try:
        import mlperf_loadgen as loadgen
    except ImportError as error:
        raise Unavailable("MLPerf's load generator is not installed", remedy="pip install mlcommons-loadgen") from error
    folder.mkdir(parents=True, exist_ok=True)
    system = _System(session, images_NCHW, loadgen, batch=options.batch if options.scenario == "offline" else 1)
    outputs = loadgen.LogOutputSettings()
    outputs.outdir = str(folder)
    logs = loadgen.LogSettings()
    logs.log_output = outputs
    logs.enable_trace = False
    run_s = system.warm()
    with system.answering(in_a_thread=options.scenario == "server"):
        sut = loadgen.ConstructSUT(system.take, lambda: None)
        qsl = loadgen.ConstructQSL(len(images_NCHW), len(images_NCHW), lambda indices: None, lambda indices: None)
        try:
            loadgen.StartTestWithLogSettings(sut, qsl, _settings(loadgen, options, run_s), logs, "")
        finally:
            loadgen.DestroyQSL(qsl)
            loadgen.DestroySUT(sut)
    if system.error is not None:
        raise system.error
    return _result(folder / "mlperf_log_detail.txt", options)


def find_rate(try_rate: Callable[[float], LoadResult], first_rate: float) -> tuple[float, list[LoadResult]]:
    """(the highest rate found whose test was valid, every test made); 0 where none was.

    Doubles or halves from `first_rate` until one rate holds and a higher one does not, then halves the gap, as logarithms.
    """
    tests: list[LoadResult] = []
    holds, breaks, rate = 0.0, float("inf"), first_rate
    while len(tests) < MOST_TRIALS and breaks > holds * (1 + PRECISION):
        tests.append(try_rate(rate))
        if tests[-1].valid:
            holds = rate
        else:
            breaks = rate
        middle = (holds * breaks) ** 0.5 if holds else breaks / 2
        rate = 2 * holds if breaks == float("inf") else middle
    return holds, tests


class _System:
    """The system under test: answers queries, at once or from a thread of its own."""

    def __init__(self, session: Loadable, images_NCHW: np.ndarray, loadgen: Any, *, batch: int) -> None:
        self._session = session
        self._images_NCHW = images_NCHW
        self._loadgen = loadgen
        self._batch = batch
        self._queue: queue.SimpleQueue[Sequence[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.error: DeployError | None = None

    def answering(self, *, in_a_thread: bool) -> _System:
        """A context in which queries are answered."""
        self._thread = threading.Thread(target=self._serve, daemon=True) if in_a_thread else None
        return self

    def warm(self) -> float:
        """Seconds of a run, after a few."""
        self._run([0] * self._batch)
        return float(np.median(timed_block(self._session, 20))) / 1e9

    def __enter__(self) -> _System:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def take(self, samples: Sequence[Any]) -> None:
        """Called by loadgen."""
        if self._thread is not None:
            self._queue.put(samples)
        else:
            self._answer(samples)

    def _serve(self) -> None:
        while (samples := self._queue.get()) is not None:
            self._answer(samples)

    def _answer(self, samples: Sequence[Any]) -> None:
        """Every sample is completed even after an error: loadgen waits for them, and an exception here would end the process."""
        for start in range(0, len(samples), self._batch):
            chunk = samples[start : start + self._batch]
            if self.error is None:
                try:
                    self._run([sample.index for sample in chunk])
                except DeployError as error:
                    self.error = error
            self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in chunk])

    def _run(self, indices: list[int]) -> None:
        padded = indices + indices[-1:] * (self._batch - len(indices))  # a session keeps its batch size
        first = padded[0]
        is_slice = len(padded) == 1
        self._session.bind(self._images_NCHW[first : first + 1] if is_slice else self._images_NCHW[padded])
        self._session.run()
        self._session.synchronise()


def _settings(loadgen: Any, options: LoadOptions, run_s: float) -> Any:
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, _NAMES[options.scenario])
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(1000 * options.seconds)
    settings.min_query_count = options.queries if options.scenario != "offline" else 1
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = options.seed + 1
    if options.scenario == "offline":
        # One query of rate x time x 1.1 images: the rate is a guess that only sets how many.
        settings.offline_expected_qps = options.queries / max(options.seconds, 1e-3) / 1.1
    if options.scenario == "single-stream":
        # Queries are drawn before the test, as many as this says; half of what was seen leaves room for a faster stretch.
        settings.single_stream_expected_latency_ns = max(1, round(0.5e9 * run_s))
    if options.scenario == "server":
        if options.rate is None or options.bound_s is None:
            raise WorkerError("a server test needs a rate and a bound", remedy="give queries per second and the p99 allowed")
        settings.server_target_qps = options.rate
        settings.server_target_latency_ns = round(1e9 * options.bound_s)
        settings.server_target_latency_percentile = 0.99
    return settings


def _result(detail: Path, options: LoadOptions) -> LoadResult:
    facts: dict[str, Any] = {}
    for line in detail.read_text(encoding="utf-8", errors="replace").splitlines():
        _, mark, text = line.partition(":::MLLOG ")
        if mark:
            entry = json.loads(text)
            facts[entry["key"]] = entry["value"]
    rates = ("result_samples_per_second", "result_completed_samples_per_sec", "result_qps_with_loadgen_overhead")
    rate = next((float(facts[key]) for key in rates if key in facts), None)
    if rate is None or "result_validity" not in facts:
        raise WorkerError("the load test left no result", found=f"{detail} ends early", remedy="see the log beside it")

    def percentile_s(name: str) -> float | None:
        value = facts.get(f"result_{name}_percentile_latency_ns")
        return None if value is None or options.scenario == "offline" else float(value) / 1e9

    return LoadResult(
        scenario=options.scenario,
        valid=facts["result_validity"] == "VALID",
        queries=int(facts.get("result_query_count", 0)),
        images_per_s=rate,
        p50_s=percentile_s("50.00"),
        p90_s=percentile_s("90.00"),
        p99_s=percentile_s("99.00"),
        rate=options.rate,
    )
