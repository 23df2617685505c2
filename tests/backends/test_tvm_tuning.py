"""Tuning: which workload is next and when it is enough (without TVM), processes that crash and hang, and a real run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploycnn.backends.tvm import TVMBackend, TVMOptions, _tuning
from deploycnn.backends.tvm._pool import Pool
from deploycnn.backends.tvm._records import History, Measured
from deploycnn.backends.tvm._search import Task
from deploycnn.backends.tvm._tuning import Budget, Tuner
from deploycnn.errors import BackendError, Unavailable
from deploycnn.types import CompileRequest, Target

# --- the order of the search ----------------------------------------------------------------


class ImaginarySearch:
    """Candidates get faster by a law of each task; a second passes for each."""

    def __init__(self, laws: dict[str, Callable[[int], float | None]], clock: list[float]) -> None:
        self.laws = laws
        self.clock = clock
        self.errors = dict.fromkeys(laws, "made to fail")
        self.rounds: list[str] = []
        self.known: dict[str, History] = {}

    def recall(self, task: Task) -> None:
        task.history = self.known.get(task.name, History())
        task.trials = len(task.history.measured)
        task.best_s = task.history.best.seconds if task.history.best else None

    def replay(self, task: Task, traces: Sequence[Any]) -> None:
        self.rounds.append(f"replay {task.name}")
        task.learn([Measured(seconds=trace[0], trace=trace) for trace in traces])

    def explore(self, task: Task, count: int) -> None:
        self.rounds.append(task.name)
        self.clock[0] += count
        task.learn([Measured(seconds=self.laws[task.name](task.trials + n)) for n in range(count)])


@pytest.fixture
def tuner_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Tuner, ImaginarySearch]]:
    clock = [0.0]
    monkeypatch.setattr(_tuning.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        _tuning, "tasks_of", lambda module, target: [(Task(name=n, digest=n, module=None, flops=f), w) for n, f, w in module]
    )

    def make(
        plans: dict[str, list[tuple[str, float, int]]],
        laws: dict[str, Callable[[int], float | None]],
        shipped: dict[str, list[Any]] | None = None,
        known: dict[str, History] | None = None,
    ) -> tuple[Tuner, ImaginarySearch]:
        search = ImaginarySearch(laws, clock)
        search.known = known or {}
        return Tuner(plans, None, search, shipped or {}), search  # type: ignore[arg-type]

    return make


def silent(tuner: Tuner, task: Task) -> None:
    return


def test_every_function_gets_a_schedule_first_even_beyond_the_budget(tuner_of) -> None:
    plan = [("small", 1e3, 1), ("large", 1e6, 1), ("middle", 1e5, 1)]
    tuner, search = tuner_of({"NHWC": plan}, {name: lambda n: 1e-5 for name, _, _ in plan})
    tuner.tune(Budget(trials=1, seconds=0.1), silent)
    assert search.rounds == ["large", "middle", "small"]
    assert tuner.best.time_s(tuner.tasks) == pytest.approx(3e-5)


def test_the_function_that_holds_the_network_up_gets_most_of_the_candidates(tuner_of) -> None:
    plan = [("fast", 1e6, 1), ("slow", 1e6, 1), ("tiny", 1e3, 1)]
    laws = {"fast": lambda n: 1e-5, "slow": lambda n: 1e-4 / (1 + n / 20), "tiny": lambda n: 1e-7}
    tuner, _ = tuner_of({"NHWC": plan}, laws)
    tuner.tune(Budget(trials=600, seconds=1e4), silent)
    trials = {name: task.trials for name, task in tuner.tasks.items()}
    assert trials["slow"] > 2 * trials["fast"] > 2 * trials["tiny"]


def test_it_stops_when_nothing_gets_faster(tuner_of) -> None:
    plan = [("a", 1e6, 1), ("b", 1e6, 2)]
    tuner, _ = tuner_of({"NHWC": plan}, {"a": lambda n: 1e-5, "b": lambda n: 2e-5})
    tuner.tune(Budget(trials=100_000, seconds=1e6), silent)
    assert tuner.trials < 1000


@pytest.mark.parametrize("budget", [Budget(trials=100, seconds=1e6), Budget(trials=10**6, seconds=100.0)])
def test_earlier_runs_count_and_a_spent_budget_is_not_spent_again(tuner_of, budget: Budget) -> None:
    known = History(measured=tuple(Measured(seconds=1e-5 / (1 + n), trace=[n]) for n in range(100)), spent_s=100.0)
    tuner, search = tuner_of({"NHWC": [("a", 1e6, 1)]}, {"a": lambda n: 1e-9 / (1 + n)}, known={"a": known})
    assert tuner.tune(budget, silent) == 0.0
    assert search.rounds == []
    assert tuner.best.time_s(tuner.tasks) == pytest.approx(1e-7)


def test_schedules_that_ship_are_timed_before_anything_is_searched(tuner_of) -> None:
    tuner, search = tuner_of({"NHWC": [("a", 1e6, 1), ("b", 1e5, 1)]}, {"a": lambda n: 1e-5, "b": lambda n: 1e-5}, {"a": [[3e-6], [2e-6]]})
    tuner.tune(Budget(trials=1, seconds=0.0), silent)
    assert search.rounds == ["replay a", "b"]
    assert tuner.tasks["a"].best_s == 2e-6


def test_the_faster_layout_wins_and_the_slower_one_stops_costing(tuner_of) -> None:
    laws = {"nhwc": lambda n: 4e-5, "nchw": lambda n: 1e-5, "shared": lambda n: 1e-6}
    tuner, search = tuner_of({"NHWC": [("nhwc", 1e6, 1), ("shared", 1e4, 1)], "NCHW": [("nchw", 1e6, 1), ("shared", 1e4, 1)]}, laws)
    tuner.tune(Budget(trials=400, seconds=1e5), silent)
    assert tuner.best.layout == "NCHW"
    assert search.rounds.count("nhwc") == 1
    assert search.rounds.count("nchw") > 3


def test_a_layout_without_a_working_schedule_is_left_out_and_the_last_one_is_an_error(tuner_of) -> None:
    def fails(n: int) -> None:
        return None

    tuner, _ = tuner_of({"NHWC": [("bad", 1e6, 1)], "NCHW": [("good", 1e6, 1)]}, {"bad": fails, "good": lambda n: 1e-5})
    tuner.tune(Budget(trials=50, seconds=1e5), silent)
    assert [plan.layout for plan in tuner.plans] == ["NCHW"]
    tuner, _ = tuner_of({"NCHW": [("bad", 1e6, 1)]}, {"bad": fails})
    with pytest.raises(BackendError, match="no schedule for bad"):
        tuner.tune(Budget(trials=50, seconds=1e5), silent)


# --- processes ------------------------------------------------------------------------------

FAULTS = {
    "abort": "__attribute__((constructor)) void f() { __builtin_trap(); }",
    "spin": "__attribute__((constructor)) void f() { for (volatile long i = 0;; ++i); }",
    "exit": "#include <unistd.h>\n__attribute__((constructor)) void f() { _exit(7); }",
}


@pytest.mark.parametrize(("fault", "words"), [("abort", "crashed"), ("spin", "took too long"), ("exit", "crashed, exit code 7")])
def test_a_candidate_that_brings_its_process_down_is_one_failure_and_the_next_is_served(tmp_path: Path, fault: str, words: str) -> None:
    (tmp_path / "bad.c").write_text(FAULTS[fault])
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", tmp_path / "bad.so", tmp_path / "bad.c"], check=True)
    job = {"op": "kernel", "library": str(tmp_path / "bad.so"), "arguments": [], "best_s": 1.0, "block_s": 1e-3, "blocks": 2}
    with Pool(0, 1, tmp_path) as pool:
        assert words in pool.time({**job, "limit_cpu_s": 0.5})["error"]
        answer = pool.time({**job, "library": str(tmp_path / "missing.so"), "limit_cpu_s": 5.0})
        assert "missing.so" in answer["error"]


def test_children_end_with_the_tuner_even_when_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from deploycnn.backends.tvm._pool import Pool\n"
        f"pool = Pool(1, 1, Path({str(tmp_path)!r}))\n"
        "print(*[child._process.pid for child in (*pool._builders, pool._timer)], flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as tuner:
        assert tuner.stdout is not None
        children = [int(pid) for pid in tuner.stdout.readline().split()]
        assert len(children) == 2
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/stat").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in children if Path(f"/proc/{pid}/stat").exists()] == []


# --- for real -------------------------------------------------------------------------------


@pytest.mark.slow
def test_tuned_libraries_are_right_covered_and_not_tuned_again(small_graph, build, small_pixels, expected, tmp_path: Path) -> None:
    variant, sizes = small_graph(), (1, 2)
    backend = TVMBackend(TVMOptions(trials=24, minutes=0.2))
    artifact, compiled, folder = build(backend, variant, batches=sizes)
    found = {n: compiled.details[f"batch {n}"] for n in sizes}
    for facts in found.values():
        assert facts["functions"] == facts["functions_tuned"] > 0
        assert facts["new_trials"] == facts["trials"] > 0
        assert facts["evaluator_tuned_s"] > 0
        assert facts["evaluator_untuned_s"] > 0
    with backend.load(artifact, folder, threads=1) as session:
        for n in sizes:
            session.bind(small_pixels(n))
            session.run()
            assert np.allclose(session.fetch(), expected(variant, small_pixels(n)), rtol=1e-4, atol=1e-4)
        assert [(layer.op, layer.precision) for layer in session.evidence().layers] == [("Conv", "float32"), ("MatMul", "float32")]
    _, again, _ = build(backend, variant, batches=sizes)
    assert [again.details[f"batch {n}"]["new_trials"] for n in sizes] == [0, 0]
    assert [again.details[f"batch {n}"]["trials"] for n in sizes] == [found[n]["trials"] for n in sizes]
    for records in (tmp_path / "cache").rglob("*.jsonl"):  # killed in the middle of a line: what the round cost is lost, not more
        records.write_bytes(records.read_bytes()[:-7])
    _, mended, _ = build(backend, variant, batches=sizes)
    for n in sizes:
        facts = mended.details[f"batch {n}"]
        assert facts["trials"] - facts["new_trials"] == found[n]["trials"]


@pytest.mark.slow
def test_a_tuner_killed_in_the_middle_leaves_what_it_found_to_the_next_run(small_graph, build, tmp_path: Path) -> None:
    variant, folder, cache = small_graph(), tmp_path / "killed", tmp_path / "cache"
    folder.mkdir()
    request = CompileRequest(variant=variant, target=Target(device="cpu"), batches=(1,), folder=folder, cache_folder=cache)
    code = (
        "import sys; from deploycnn.backends.tvm import TVMBackend; from deploycnn.types import CompileRequest\n"
        "TVMBackend().compile(CompileRequest.model_validate_json(sys.argv[1]), lambda progress: None)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, request.model_dump_json()], env=environment, stderr=subprocess.DEVNULL) as tuner:
        deadline = time.monotonic() + 300
        while len(list(cache.rglob("*.jsonl"))) < 2 and tuner.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        tuner.send_signal(signal.SIGKILL)
    before = sum(text.count('{"s"') for text in (path.read_text() for path in cache.rglob("*.jsonl")))
    assert before > 0
    _, compiled, _ = build(TVMBackend(TVMOptions(trials=before, minutes=5)), variant, batches=(1,))
    facts = compiled.details["batch 1"]
    assert facts["trials"] - facts["new_trials"] == before
    assert facts["functions"] == facts["functions_tuned"]


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


@pytest.mark.slow
def test_candidates_are_timed_on_the_device_of_an_rpc_tracker(small_graph, build, tmp_path: Path) -> None:
    for package in ("tornado", "cloudpickle"):
        pytest.importorskip(package, reason="TVM's RPC tracker and server need it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tracker = ["tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    server = ["tvm.exec.rpc_server", "--host", "127.0.0.1", "--tracker", f"127.0.0.1:{port}", "--key", "box"]
    with contextlib.ExitStack() as stack, (tmp_path / "rpc.log").open("wb") as log:
        for command in (tracker, server):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log, cwd=tmp_path, start_new_session=True)
            )
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while not _answers(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        backend = TVMBackend(TVMOptions(trials=1, minutes=0.01, remote=f"127.0.0.1:{port}/box"))
        _, compiled, _ = build(backend, small_graph(), batches=(1,))
    facts = compiled.details["batch 1"]
    assert facts["functions"] == facts["functions_tuned"]
    assert facts["evaluator_tuned_s"] > 0
    assert [path for path in (tmp_path / "cache").rglob("*-box-1t") if path.is_dir()]


def test_a_tracker_that_is_not_there_is_said_at_once(small_graph, build) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="RPC tracker"):
            build(TVMBackend(TVMOptions(remote=f"127.0.0.1:{taken.getsockname()[1]}/box")), small_graph(), batches=(1,))


def test_a_tracker_is_named_as_host_port_and_key() -> None:
    with pytest.raises(ValueError, match="remote"):
        TVMOptions(remote="box")
