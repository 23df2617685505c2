"""The parent's side of a worker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import site
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import deploycnn
from deploycnn.errors import DeployError, WorkerError
from deploycnn.measure.clock import WarmUp
from deploycnn.measure.mlperf import LoadOptions, LoadResult
from deploycnn.types import Artifact, CompileRequest, Evidence, ProgressCallback
from deploycnn.units import seconds, size
from deploycnn.workers import confine
from deploycnn.workers.protocol import CLOSE, LoadFacts, MemoryFacts

if TYPE_CHECKING:
    import numpy as np

_TICK_S = 0.2  # how often death, time and memory are looked at while a call runs; a look takes 3 ms
_START_LIMIT_S = 60.0
_CLOSE_LIMIT_S = 10.0


def _silent(_: Any) -> None:
    return


class Worker:
    """A child process that does one cell's work: a context manager, and afterwards nothing of it is left.

    Calls run one at a time. A call that fails with a DeployError of the child's raises it here and the worker goes on;
    one that crashes, hangs or outgrows its memory raises WorkerError, which names the signal and the last lines of
    output, and ends the worker.

    Args:
        name: of the cell, as messages name it: `onnxruntime/int8/cpu`.
        log_path: takes everything that the child prints, tracebacks included; created or appended to.
        threads: CPU threads that numeric libraries get, and cores that the child is pinned to.
        memory_bytes: resident memory, over the child and its children, at which it is killed; None: no limit.
        variables: more environment variables for the child.
    """

    child: ClassVar[str] = "deploycnn.workers.child"  # what the process runs

    def __init__(
        self,
        name: str,
        *,
        log_path: Path,
        threads: int = 1,
        memory_bytes: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.threads = threads
        self._memory_bytes = memory_bytes
        self._variables = dict(variables or {})
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._busy = False

    # --- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Raises WorkerError where the child does not start."""
        self._connection, theirs = Pipe()
        lifeline_read, self._lifeline_fd = os.pipe()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        cores = confine.pick_cores(self.threads)
        command = [sys.executable, "-P", "-m", self.child, str(theirs.fileno()), str(lifeline_read), json.dumps(cores)]
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                pass_fds=(theirs.fileno(), lifeline_read),
                start_new_session=True,
            )
        theirs.close()
        os.close(lifeline_read)
        try:
            self._answer("start", _START_LIMIT_S, "", _silent)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def close(self) -> None:
        """Lets the child free what it holds and waits for its end; kills it where that takes too long. Harmless twice."""
        if self._process is not None and not self._busy:
            # What was asked for is done: a runtime that crashes while it is taken down spoils nothing.
            with contextlib.suppress(WorkerError, DeployError):
                self._call(CLOSE, _CLOSE_LIMIT_S, "")
                self._process.wait(_CLOSE_LIMIT_S)
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        confine.kill_everything(process.pid, self._mark)
        process.wait()
        self._connection.close()
        os.close(self._lifeline_fd)

    @property
    def pid(self) -> int | None:
        """Of the child while it lives."""
        return None if self._process is None else self._process.pid

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that the child printed, unprintable characters replaced, Python's own crash dump left out."""
        with self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, log.tell() - 16384))
            text = log.read().decode("utf-8", errors="replace")
        text = text.partition("Fatal Python error:")[0].partition("Traceback (most recent call last):")[0]
        printable = re.sub(r"[^\x20-\x7e\xa0-\ufffc\n]+", "?", text.replace("\r", "\n").replace("\t", " "))
        kept = [line.rstrip()[:300] for line in printable.splitlines() if line.strip()]
        return "\n".join(kept[-lines:])

    # --- calls --------------------------------------------------------------------------------

    def compile(
        self, backend: str, options: Mapping[str, Any], request: CompileRequest, *, timeout_s: float, progress: ProgressCallback = _silent
    ) -> Artifact:
        """Compiles into `request.folder` and writes `artifact.json` there.

        Raises:
            BackendError: what the backend raises, or an error of its that nobody translated.
            WorkerError: it crashed, hung or outgrew its memory.
        """
        return cast(
            Artifact, self._call("compile", timeout_s, "limits.compile_s", progress, backend=backend, options=options, request=request)
        )

    def load(self, backend: str, options: Mapping[str, Any], artifact: Artifact, folder: Path, *, timeout_s: float) -> LoadFacts:
        """Loads the artifact, with this worker's threads, and runs it once. Once in a worker's life.

        Raises:
            EvidenceError: it loaded, but elsewhere than asked for.
            BackendError: its files are damaged (digests are compared first), or what the backend raises.
            WorkerError: it crashed, hung or outgrew its memory.
        """
        arguments = {"backend": backend, "options": options, "artifact": artifact, "folder": folder, "threads": self.threads}
        return cast(LoadFacts, self._call("load", timeout_s, "limits.load_s", _silent, **arguments))

    def predict(
        self,
        images_NCHW: np.ndarray | Path,
        *,
        batch: int,
        timeout_s: float,
        indices_N: np.ndarray | None = None,
        progress: ProgressCallback = _silent,
    ) -> np.ndarray:
        """Logits of all the images, or of those at `indices_N` in that order.

        An artifact that cannot run `batch` images at once gets the nearest size that it can; a short last batch is
        filled up with copies of its last image, whose logits are dropped.

        Args:
            images_NCHW: uint8, or the path of an .npy file, which the child maps.

        Returns:
            float32, shape (N, K).
        """
        if not isinstance(images_NCHW, Path):  # only what is asked for crosses the border, and not as a map of a file
            images_NCHW = _plain(images_NCHW if indices_N is None else images_NCHW[indices_N])
            indices_N = None
        arguments = {"images_NCHW": images_NCHW, "indices_N": indices_N, "batch": batch}
        return cast("np.ndarray", self._call("predict", timeout_s, "limits.run_s", progress, **arguments))

    def evidence(self, x_NCHW: np.ndarray, *, timeout_s: float) -> Evidence:
        """What runs for that batch, by the backend's own word. The batch stays bound."""
        return cast(Evidence, self._call("evidence", timeout_s, "limits.run_s", x_NCHW=_plain(x_NCHW)))

    def set_batch(self, x_NCHW: np.ndarray, *, timeout_s: float) -> None:
        """Binds the batch that `warm_up` and `block` run. Raises Unsupported where the artifact cannot run its size."""
        self._call("set_batch", timeout_s, "limits.run_s", x_NCHW=_plain(x_NCHW))

    def warm_up(self, *, timeout_s: float, limit_s: float = 3.0) -> WarmUp:
        """Runs the bound batch until its times stand still (see measure.clock), for at most `limit_s`."""
        return cast(WarmUp, self._call("warm_up", timeout_s, "limits.run_s", limit_s=limit_s))

    def block(self, min_s: float, *, timeout_s: float) -> np.ndarray:
        """Runs of the bound batch back to back, at least `min_s` of them: int64 nanoseconds of each."""
        return cast("np.ndarray", self._call("block", timeout_s, "limits.run_s", min_s=min_s))

    def device_block(self, min_s: float, *, timeout_s: float) -> np.ndarray | None:
        """Device time of the bound batch over about `min_s` of runs: int64 nanoseconds of one, shape (1,); None where it tells none."""
        return cast("np.ndarray | None", self._call("device_block", timeout_s, "limits.run_s", min_s=min_s))

    def offer_load(self, images_NCHW: np.ndarray, load: LoadOptions, folder: Path, *, timeout_s: float) -> LoadResult:
        """One test of MLPerf's load generator over these images, its logs in `folder`. See measure.mlperf.

        Raises:
            Unavailable: mlcommons-loadgen is not installed.
            BackendError: what the session raised.
        """
        plain_NCHW = _plain(images_NCHW)
        return cast(LoadResult, self._call("offer_load", timeout_s, "limits.run_s", images_NCHW=plain_NCHW, load=load, folder=folder))

    def memory(self, *, timeout_s: float = 30.0) -> MemoryFacts:
        """Resident, peak and device memory of the child."""
        return cast(MemoryFacts, self._call("memory", timeout_s, "limits.run_s"))

    # --- the wire -----------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        variables = {**os.environ, **confine.thread_environment(self.threads), "PYTHONUNBUFFERED": "1", **self._variables}
        root = str(Path(deploycnn.__file__).resolve().parents[1])
        if root not in {str(Path(folder).resolve()) for folder in site.getsitepackages()}:  # a checkout: same code there as here
            variables["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [variables.get("PYTHONPATH")])])
        return {**variables, confine.MARK: self._mark}

    def _call(self, method: str, timeout_s: float, limit: str, progress: ProgressCallback = _silent, **arguments: Any) -> Any:
        if self._process is None or self._busy:
            self._end()
            raise WorkerError(f"{self.name}: its worker has ended, {method} cannot run", remedy="start another worker")
        self._busy = True  # stays so when the call is interrupted: what comes over the wire then is no answer to the next
        try:
            self._connection.send((method, arguments))
        except OSError as error:
            raise self._crashed(method) from error
        answer = self._answer(method, timeout_s, limit, progress)
        self._busy = False
        if isinstance(answer, DeployError):
            raise answer
        return answer

    def _answer(self, method: str, timeout_s: float, limit: str, progress: ProgressCallback) -> Any:
        assert self._process is not None
        now_s = time.monotonic()
        deadline_s, look_s = now_s + timeout_s, now_s + _TICK_S
        while True:
            try:
                if self._connection.poll(max(0.0, min(look_s, deadline_s) - time.monotonic())):
                    kind, value = self._connection.recv()
                    if kind != "progress":
                        return value
                    progress(value)
                elif self._process.poll() is not None and not self._connection.poll(0):  # a grandchild may hold the socket open
                    raise self._crashed(method)
            except (EOFError, OSError) as error:
                raise self._crashed(method) from error
            now_s = time.monotonic()
            if now_s >= deadline_s:
                raise self._killed(
                    f"{self.name}: {method} was stopped after its limit of {seconds(timeout_s)}",
                    remedy=f"raise {limit} in the recipe, or leave {self.name} out" if limit else "see the log",
                )
            if now_s >= look_s:
                self._check_memory(method)
                look_s = time.monotonic() + _TICK_S

    def _check_memory(self, method: str) -> None:
        assert self._process is not None
        if self._memory_bytes is None or confine.resident_bytes(self._process.pid) <= self._memory_bytes:
            return
        used_bytes = confine.proportional_bytes(self._process.pid)
        if used_bytes > self._memory_bytes:
            raise self._killed(
                f"{self.name}: {method} was stopped at {size(used_bytes)} of memory, its limit is {size(self._memory_bytes)}",
                remedy=f"raise limits.memory_mb in the recipe, or leave {self.name} out",
            )

    def _killed(self, asked: str, *, remedy: str) -> WorkerError:
        self._end()
        return WorkerError(asked, found=self._last_words(), remedy=remedy)

    def _crashed(self, method: str) -> WorkerError:
        """The error of a child that went by itself; waits for its end to learn how."""
        assert self._process is not None
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        how = _how_it_ended(process.returncode)
        self._end()
        found = "; ".join(part for part in (how, self._last_words()) if part)
        return WorkerError(
            f"{self.name}: its process died during {method}", found=found, remedy=f"see {self.log_path}, or leave {self.name} out"
        )

    def _last_words(self) -> str:
        tail = " | ".join(self.log_tail(3).splitlines())
        return f"its last output: {tail[-400:]}" if tail else "it printed nothing"


def _plain(x: np.ndarray) -> np.ndarray:
    """A C-contiguous array that is no map of a file, so that it crosses a border by value."""
    import numpy as np

    return np.ascontiguousarray(np.asarray(x).view(np.ndarray))


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None:
        return "it closed its connection and went on running"
    if returncode >= 0:
        return f"exit code {returncode}"
    name = signal.Signals(-returncode).name
    probably = {"SIGKILL": ", probably out of memory", "SIGSEGV": " (invalid memory access)", "SIGILL": " (an instruction this CPU lacks)"}
    return f"killed by {name}{probably.get(name, '')}"
