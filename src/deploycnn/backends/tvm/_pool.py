"""The tuner's side of its child processes: two or more that build candidates, one that times them."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deploycnn.errors import BackendError, Unavailable

_CHILD = Path(__file__).with_name("_tuning_child.py")
_START_S = 120.0  # for a child to import TVM, on a machine with other things to do
_LIMIT_S = 60.0  # wall time of any job: for what waits without using its processor time
_ENOUGH_BYTES = 1_500_000_000  # a child that has come to hold this much is replaced

Answer = Mapping[str, Any]  # {"value": ...} or {"error": text}


class Child:
    """One child process. It is started at once and greeted when it is first needed."""

    def __init__(self, threads: int, log: Path) -> None:
        self._environment = {**os.environ, "TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
        self._log = log
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._ready = False
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )

    def ask(self, job: Mapping[str, Any]) -> None:
        """Sends a job; `answer` waits for what comes of it.

        Raises:
            BackendError: the process does not come up.
        """
        if not self._ready:
            if self._receive(_START_S) is None:
                words = " ".join(self._log.read_text(errors="replace").split())[-300:]
                raise BackendError("TVM's tuning process does not start", found=words, remedy="see whether `import tvm` works")
            self._ready = True
        body = pickle.dumps(dict(job))
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: `answer` finds that
            self._process.stdin.write(struct.pack("<Q", len(body)) + body)
            self._process.stdin.flush()

    def answer(self) -> Answer:
        """What came of the last job. A child that has crashed or taken too long is replaced, and that candidate is lost."""
        answer: Answer | None = self._receive(_LIMIT_S)
        if answer is not None and answer["resident_bytes"] <= _ENOUGH_BYTES:
            return answer
        self.stop()
        code = self._process.returncode
        self._process = self._started()
        return answer or {"error": "took too long" if code in (-signal.SIGPROF, -signal.SIGKILL) else f"crashed, exit code {code}"}

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _receive(self, limit_s: float) -> Any:
        deadline = time.monotonic() + limit_s
        head = self._read(8, deadline)
        body = None if head is None else self._read(struct.unpack("<Q", head)[0], deadline)
        return None if body is None else pickle.loads(body)

    def _read(self, length: int, deadline: float) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            ready, _, _ = select.select([self.fileno()], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.fileno(), length - len(parts)) if ready else b""
            if not part:
                return None
            parts += part
        return bytes(parts)

    def stop(self) -> None:
        """Ends the process; one that has ended by itself keeps its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Pool:
    """Builders that work side by side, and a timer that works alone: nothing of ours runs while it times.

    Args:
        builders: how many.
        threads: that timed code runs with.
        folder: for libraries and logs.
        remote: host, port and key of a TVM RPC tracker whose device times, instead of this machine.
    """

    def __init__(self, builders: int, threads: int, folder: Path, remote: tuple[str, int, str] | None = None) -> None:
        self._folder = folder
        self._remote = remote
        self._builders = [Child(1, folder / f"builder{number}.log") for number in range(builders)]
        self._timer = Child(threads, folder / "timer.log")
        self._number = 0

    def reach(self) -> None:
        """Raises Unavailable where the remote device cannot be had. Nothing to do without one."""
        if self._remote is None:
            return
        host, port, key = self._remote
        try:
            socket.create_connection((host, port), timeout=10).close()
        except OSError as error:
            raise Unavailable(
                f"candidates are to be timed through the RPC tracker at {host}:{port}",
                found=str(error),
                remedy="start it there: python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190",
            ) from error
        answer = self.time({"op": "reach", "limit_cpu_s": 60.0})
        if "error" in answer:
            raise Unavailable(
                f"the RPC tracker at {host}:{port} gives no device '{key}'",
                found=str(answer["error"]),
                remedy=f"start one on the device: python -m tvm.exec.rpc_server --tracker {host}:{port} --key {key}",
            )

    def build(self, modules: Sequence[str], target: Mapping[str, Any], limit_cpu_s: float) -> list[Answer]:
        """Libraries' paths, or errors, of scheduled modules (TVM JSON), in their order."""
        jobs = iter(list(enumerate(modules)))
        answers: dict[int, Answer] = {}
        working: dict[Child, int] = {}

        def feed(child: Child) -> None:
            for index, module in jobs:
                self._number += 1
                out = self._folder / f"{self._number}.so"
                child.ask({"op": "build", "module": module, "target": dict(target), "out": str(out), "limit_cpu_s": limit_cpu_s})
                working[child] = index
                return

        for child in self._builders:
            feed(child)
        while working:
            ready, _, _ = select.select(list(working), [], [], _LIMIT_S)
            for child in ready or list(working):  # none has answered in that time: each is over its limit, or about to be
                answers[working.pop(child)] = child.answer()
                feed(child)
        return [answers[index] for index in range(len(modules))]

    def time(self, job: Mapping[str, Any]) -> Answer:
        """Seconds that one library takes, or an error."""
        self._timer.ask({**job, "remote": self._remote})
        return self._timer.answer()

    def close(self) -> None:
        for child in (*self._builders, self._timer):
            child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
