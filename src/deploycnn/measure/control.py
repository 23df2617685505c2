"""The control: work that is the same in every run, measured along with the artifacts.

Two runs happen at different times, and a machine can be a different machine an hour later. Whatever slows the control
slowed the machine, not an artifact: `compare` takes it out. The work is a small matrix product, a ReLU and a copy in
numpy, about what one layer of a small network costs; with another numpy it is other work, and compare does not use it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import deploycnn
from deploycnn.errors import WorkerError
from deploycnn.measure.schedule import CONTROL

START_LIMIT_S = 60.0
BLOCK_LIMIT_S = 60.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class ControlContender:
    """See schedule.Contender. A child process of numpy alone.

    Args:
        batches: sizes beside which it is measured; the work does not depend on them.
        threads: of the matrix product.
        block_s: shortest block.
        cores: that the child is pinned to, as artifacts are; () where the system cannot pin.
    """

    key = CONTROL

    def __init__(self, batches: Sequence[int], *, threads: int, block_s: float, cores: Sequence[int] = ()) -> None:
        self.batches = tuple(batches)
        self._threads = threads
        self._block_s = block_s
        self._cores = tuple(cores)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, process: int) -> None:
        """Raises WorkerError where the child does not come up."""
        root = str(Path(deploycnn.__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self._threads))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deploycnn.measure.control_child", *map(str, self._cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent, which then stops it
        )
        self._asked(0.0, START_LIMIT_S)

    def ready(self, batch: int) -> bool:
        """Warms up; this work has nothing to compile, so a few blocks are enough."""
        for _ in range(3):
            self._asked(self._block_s, BLOCK_LIMIT_S)
        return True

    def block(self) -> NDArray[np.int64]:
        """Nanoseconds of each run of a block."""
        return self._asked(self._block_s, BLOCK_LIMIT_S)

    def stop(self) -> None:
        """Ends the child. Harmless when none runs."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it holds nothing that needs an orderly end
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _asked(self, block_s: float, limit_s: float) -> NDArray[np.int64]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise self._failed("it is not running")
        try:
            process.stdin.write(f"{block_s}\n".encode())
            process.stdin.flush()
        except OSError as error:
            raise self._failed("its process has ended") from error
        ready, _, _ = select.select([process.stdout], [], [], limit_s)
        if not ready:
            raise self._failed(f"no answer within {limit_s:g} s")
        header = process.stdout.read(8)
        n_bytes = int.from_bytes(header, "little") if len(header) == 8 else -1
        data = process.stdout.read(n_bytes) if n_bytes >= 0 else b""
        if n_bytes < 0 or len(data) != n_bytes:
            raise self._failed("its process has ended")
        return np.frombuffer(data, dtype=np.int64).copy()

    def _failed(self, found: str) -> WorkerError:
        return WorkerError(
            "the control work cannot be measured", found=found, remedy="measure again; ratios inside this run do not need it"
        )
