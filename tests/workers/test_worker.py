"""Worker processes with the null backend: what they do, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from deploycnn.errors import BackendError, EvidenceError, RecipeError, StoreError, Unsupported, WorkerError
from deploycnn.types import Artifact, CompileRequest, TensorSpec, Variant
from deploycnn.workers import Worker, bench, confine

IMAGES_NCHW = np.random.default_rng(0).integers(0, 256, (23, 3, 30, 26), dtype=np.uint8)


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., CompileRequest]:
    """A request for the null backend, which reads nothing of a variant but its digest and sizes."""

    def make(fixed_batch: int | None = None) -> CompileRequest:
        variant = Variant(
            precision="fp32",
            onnx_path=tmp_path / "graph.onnx",
            sha256="0" * 64,
            input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 30, 26)),
            output_name="logits",
            classes=("a", "b", "c"),
            fixed_batch=fixed_batch,
        )
        folder = tmp_path / "artifact"
        folder.mkdir(exist_ok=True)
        return CompileRequest(variant=variant, target="cpu", batches=(1,), folder=folder, cache_folder=tmp_path / "cache")

    return make


@pytest.fixture
def worker_of(tmp_path: Path) -> Callable[..., Worker]:
    return lambda **options: Worker("null/fp32/cpu", log_path=tmp_path / "logs" / "null.txt", **options)


@pytest.fixture
def artifact(request_of, worker_of) -> Artifact:
    with worker_of() as worker:
        return worker.compile("null", {}, request_of(), timeout_s=30)


def expected(artifact: Artifact, folder: Path, images_NCHW: np.ndarray) -> np.ndarray:
    """The same network in this process."""
    from deploycnn.backends import create

    with create("null", {}).load(artifact, folder, 1) as session:
        session.bind(images_NCHW)
        session.run()
        return session.fetch()


def alive_with(mark: str) -> list[psutil.Process]:
    return confine.descendants(mark)


# --- what it does -----------------------------------------------------------------------------


def test_compiling_writes_an_artifact_that_says_everything(artifact, tmp_path):
    folder = tmp_path / "artifact"
    assert Artifact.model_validate_json((folder / "artifact.json").read_text()) == artifact
    assert [entry.name for entry in artifact.files] == ["null.json"]
    assert artifact.size_bytes == (folder / "null.json").stat().st_size
    assert artifact.build_s > 0
    assert artifact.options == {"spin_s": 0.0, "fault": "", "fault_at": "compile"}
    assert sorted(path.name for path in folder.iterdir()) == ["artifact.json", "null.json"]


def test_loading_tells_what_the_first_answer_costs(worker_of, artifact, tmp_path):
    with worker_of() as worker:
        facts = worker.load("null", {"spin_s": 0.02}, artifact, tmp_path / "artifact", timeout_s=30)
        assert facts.load_s > 0
        assert facts.first_run_s >= 0.02
        assert 1e7 < facts.memory.resident_bytes <= facts.memory.peak_bytes < 1e9
        assert facts.memory.device_bytes is None
        with pytest.raises(WorkerError, match="loaded an artifact already"):
            worker.load("null", {}, artifact, tmp_path / "artifact", timeout_s=30)


def test_a_workers_peak_memory_is_not_that_of_the_process_that_started_it(worker_of, artifact, tmp_path):
    ballast = np.ones(150_000_000)  # 1.2 GB, touched
    with worker_of() as worker:
        peak_bytes = worker.load("null", {}, artifact, tmp_path / "artifact", timeout_s=30).memory.peak_bytes
    assert peak_bytes < ballast.nbytes / 2


@pytest.mark.parametrize("batch", [1, 5, 23, 100])
def test_predicting_answers_every_image_in_order(worker_of, artifact, tmp_path, batch):
    folder = tmp_path / "artifact"
    np.save(tmp_path / "images.npy", IMAGES_NCHW)
    seen = []
    with worker_of() as worker:
        worker.load("null", {}, artifact, folder, timeout_s=30)
        logits_NK = worker.predict(IMAGES_NCHW, batch=batch, timeout_s=30, progress=seen.append)
        mapped_NK = worker.predict(tmp_path / "images.npy", batch=batch, timeout_s=30)
        chosen_N = np.array([7, 0, 22, 7])
        chosen_NK = worker.predict(tmp_path / "images.npy", indices_N=chosen_N, batch=batch, timeout_s=30)
        again_NK = worker.predict(np.load(tmp_path / "images.npy", mmap_mode="r"), indices_N=chosen_N, batch=batch, timeout_s=30)
    np.testing.assert_allclose(logits_NK, expected(artifact, folder, IMAGES_NCHW), rtol=1e-5)
    np.testing.assert_array_equal(mapped_NK, logits_NK)
    np.testing.assert_allclose(chosen_NK, logits_NK[chosen_N], rtol=1e-5)
    np.testing.assert_array_equal(again_NK, chosen_NK)
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (23, 23, "images")


@pytest.mark.parametrize("sizes", [(1,), (4,), (2, 8), (32,)])
def test_an_artifact_of_fixed_sizes_answers_every_image(worker_of, artifact, tmp_path, sizes):
    fixed = artifact.model_copy(update={"batches": sizes})
    with worker_of() as worker:
        facts = worker.load("null", {}, fixed, tmp_path / "artifact", timeout_s=30)
        assert facts.first_batch == min(sizes)
        logits_NK = worker.predict(IMAGES_NCHW, batch=10, timeout_s=30)
        with pytest.raises(Unsupported, match="batches of"):
            worker.set_batch(IMAGES_NCHW[:3], timeout_s=30)
    np.testing.assert_allclose(logits_NK, expected(artifact, tmp_path / "artifact", IMAGES_NCHW), rtol=1e-5)


@pytest.mark.parametrize(
    ("n", "batch", "allowed"), [(10, 4, None), (10, 4, (3,)), (10, 4, (1, 2)), (1, 64, (8,)), (9, 8, (1, 8)), (3, 2, (4, 8))]
)
def test_batches_hold_every_image_once_and_run_allowed_sizes_only(n, batch, allowed):
    batches = list(bench._batches(n, batch, allowed))
    assert [place for places in batches for place in dict.fromkeys(places.tolist())] == list(range(n))
    assert all(len(places) <= batch if allowed is None else len(places) in allowed for places in batches)


def test_images_of_another_shape_or_type_never_reach_a_backend(worker_of, artifact, tmp_path):
    with worker_of() as worker:
        worker.load("null", {}, artifact, tmp_path / "artifact", timeout_s=30)
        for x_NCHW in (IMAGES_NCHW[:, :, :-1], IMAGES_NCHW[:, :1], IMAGES_NCHW.astype(np.float32), IMAGES_NCHW[:0]):
            with pytest.raises(Unsupported, match="uint8 batches of 3x30x26"):
                worker.set_batch(x_NCHW, timeout_s=30)


def test_blocks_are_as_long_as_asked_and_hold_every_run(worker_of, artifact, tmp_path):
    with worker_of() as worker:
        worker.load("null", {"spin_s": 1e-3}, artifact, tmp_path / "artifact", timeout_s=30)
        worker.set_batch(IMAGES_NCHW[:2], timeout_s=30)
        warm = worker.warm_up(timeout_s=30, limit_s=0.5)
        samples_ns = worker.block(0.02, timeout_s=30)
        assert worker.evidence(IMAGES_NCHW[:1], timeout_s=30).provider == "numpy"
    assert warm.n_runs >= 3
    assert samples_ns.dtype == np.int64
    assert samples_ns.min() >= 1_000_000
    assert samples_ns.sum() >= 20_000_000
    assert 2 <= samples_ns.size <= 21


def test_a_worker_is_held_to_its_threads_and_cores(worker_of):
    with worker_of(threads=1) as worker:
        process = psutil.Process(worker.pid)
        assert tuple(process.cpu_affinity()) == confine.pick_cores(1)
        variables = process.environ()
        assert variables["OMP_NUM_THREADS"] == variables["TVM_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "1"
        assert os.getsid(worker.pid) == worker.pid


# --- how it ends ------------------------------------------------------------------------------


@pytest.fixture
def leaves_nothing():
    """No process that carries a worker's mark outlives the test."""
    yield
    marks = {p.pid for p in psutil.process_iter() if _marked(p) and p.ppid() == os.getpid()}
    assert not marks


def _marked(process: psutil.Process) -> bool:
    try:
        return confine.MARK in process.environ()
    except (psutil.Error, OSError):
        return False


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("at", ["compile", "run"])
@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("segfault", WorkerError, "killed by SIGSEGV .*; its last output: the null backend was asked for the fault segfault"),
        ("garbage", WorkerError, r"exit code 3; its last output: [^\0]*the last line"),
        ("hang", WorkerError, "stopped after its limit of"),
        ("eat-memory", WorkerError, "stopped at .* of memory, its limit is 500 MB"),
        ("untranslated", BackendError, "ArithmeticError: the null backend was asked for an error"),
        ("error", BackendError, "asked to fail"),
    ],
)
def test_a_fault_is_this_workers_error_and_leaves_nothing(worker_of, artifact, request_of, tmp_path, fault, kind, says, at):
    options = {"fault": fault, "fault_at": at}
    timeout_s = 1.0 if fault == "hang" else 30.0
    with worker_of(memory_bytes=500_000_000) as worker:
        pid = worker.pid
        calls = {
            "compile": lambda: worker.compile("null", options, request_of(), timeout_s=timeout_s),
            "run": lambda: worker.load("null", options, artifact, tmp_path / "artifact", timeout_s=timeout_s),
        }
        with pytest.raises(kind, match=says) as caught:
            calls[at]()
        if kind is WorkerError:
            assert "its last output:" in caught.value.found
            with pytest.raises(WorkerError, match="its worker has ended"):
                worker.memory()
    assert caught.value.remedy
    assert "Traceback" not in str(caught.value)
    assert "Fatal Python error" not in str(caught.value)
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
    assert not psutil.pid_exists(pid)


def test_the_log_keeps_what_messages_leave_out(worker_of, request_of, tmp_path):
    with worker_of() as worker, pytest.raises(BackendError):
        worker.compile("null", {"fault": "untranslated"}, request_of(), timeout_s=30)
    with worker_of() as worker, pytest.raises(WorkerError):
        worker.compile("null", {"fault": "segfault"}, request_of(), timeout_s=30)
    log = (tmp_path / "logs" / "null.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "Fatal Python error: Segmentation fault" in log


def test_an_error_of_the_backend_does_not_end_the_worker(worker_of, artifact, request_of, tmp_path):
    with worker_of() as worker:
        with pytest.raises(BackendError, match="asked to fail"):
            worker.compile("null", {"fault": "error"}, request_of(), timeout_s=30)
        with pytest.raises(RecipeError, match=r"backends\.null\.spin") as caught:
            worker.compile("null", {"spin": 1}, request_of(), timeout_s=30)
        assert "spin_s" in caught.value.remedy
        with pytest.raises(EvidenceError):
            worker.load("null", {"fault": "fallback"}, artifact, tmp_path / "artifact", timeout_s=30)
        with pytest.raises(WorkerError, match="loaded nothing"):
            worker.block(0.01, timeout_s=30)
        assert worker.compile("null", {}, request_of(), timeout_s=30).backend == "null"


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes()[::-1])]
)
def test_files_are_compared_with_their_digests_before_a_runtime_sees_them(worker_of, artifact, tmp_path, damage):
    damage(tmp_path / "artifact" / "null.json")
    with worker_of() as worker, pytest.raises(BackendError, match="is to be loaded") as caught:
        worker.load("null", {}, artifact, tmp_path / "artifact", timeout_s=30)
    assert "null.json" in str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_named(worker_of, request_of, tmp_path):
    request = request_of()
    request.folder.rmdir()
    request.folder.write_text("a file where a folder should be")
    with worker_of() as worker, pytest.raises(StoreError, match="artifact"):
        worker.compile("null", {}, request, timeout_s=30)


def test_interrupted_calls_end_the_worker(worker_of, artifact, tmp_path):
    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    worker = worker_of()

    def use() -> None:
        with worker:
            pids.append(worker.pid)
            worker.load("null", {}, artifact, tmp_path / "artifact", timeout_s=30)
            worker.predict(IMAGES_NCHW, batch=1, timeout_s=30, progress=interrupt)

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        use()
    assert not psutil.pid_exists(pids[0])


def test_an_interrupted_worker_answers_no_other_call(worker_of, artifact, tmp_path):
    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    with worker_of() as worker:
        worker.load("null", {}, artifact, tmp_path / "artifact", timeout_s=30)
        with pytest.raises(KeyboardInterrupt):
            worker.predict(IMAGES_NCHW, batch=1, timeout_s=30, progress=interrupt)
        with pytest.raises(WorkerError, match="its worker has ended"):
            worker.memory()


def test_ctrl_c_in_the_terminal_does_not_reach_the_child(worker_of):
    with worker_of() as worker:
        os.killpg(worker.pid, signal.SIGINT)
        time.sleep(0.1)
        assert worker.memory().resident_bytes > 0


PARENT = """
import sys, time
from pathlib import Path
from deploycnn.types import CompileRequest
from deploycnn.workers import Worker

request = CompileRequest.model_validate_json(Path(sys.argv[1]).read_text())
with Worker("null/fp32/cpu", log_path=Path(sys.argv[2])) as worker:
    print(worker._mark, flush=True)
    {what}
"""


IN_A_CALL = 'worker.compile("null", {"fault": "hang"}, request, timeout_s=100)'
IDLE = "time.sleep(100)"


@pytest.mark.parametrize(
    ("how", "what"),
    [(signal.SIGKILL, IN_A_CALL), (signal.SIGINT, IN_A_CALL), (signal.SIGKILL, IDLE), (signal.SIGTERM, IDLE)],
    ids=["killed-in-a-call", "interrupted-in-a-call", "killed", "terminated"],
)
def test_nothing_is_left_when_the_parent_ends(request_of, tmp_path, how, what):
    (tmp_path / "request.json").write_text(request_of().model_dump_json())
    log = tmp_path / "log.txt"
    command = [sys.executable, "-c", PARENT.replace("{what}", what), str(tmp_path / "request.json"), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        mark = parent.stdout.readline().strip()
        deadline_s = time.monotonic() + 20
        while "hang" in what and "asked for the fault hang" not in log.read_text() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert alive_with(mark)
        parent.send_signal(how)
        parent.wait(20)
    while alive_with(mark) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not alive_with(mark)


GRANDCHILD = """
import os, subprocess, sys
subprocess.Popen(["sleep", "300"], start_new_session=bool(int(sys.argv[1])))
"""


@pytest.mark.parametrize("own_session", [0, 1])
def test_what_a_compiler_started_ends_with_its_worker(worker_of, own_session):
    """A process that a worker's child left behind, in the worker's session and in one of its own."""
    with worker_of() as worker:
        variables = {**os.environ, confine.MARK: worker._mark}
        subprocess.run([sys.executable, "-c", GRANDCHILD, str(own_session)], env=variables, check=True)
        assert len(alive_with(worker._mark)) == 2
        mark = worker._mark
    assert not alive_with(mark)


def test_a_child_that_cannot_start_says_why(worker_of):
    with pytest.raises(WorkerError, match="died during start") as caught, worker_of(variables={"PYTHONHOME": "/nowhere"}):
        pass
    assert "exit code 1" in caught.value.found
