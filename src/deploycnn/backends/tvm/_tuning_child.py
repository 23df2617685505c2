"""A process that builds or times candidates for the tuner: `python -P _tuning_child.py`, jobs on stdin, answers on stdout.

TVM's own builder starts new processes for each batch of candidates, and each imports half a minute of intrinsics. This
one imports TVM once, without torch and those. A candidate that crashes it, hangs it or makes it grow costs the tuner
a new process, 1.5 s, and nothing else. The file imports nothing of deploycnn, so that nothing is loaded twice.

Messages are pickled plain values after their length in 8 bytes. A job has `op`: `build`, `reach`, `kernel` or
`network`; the answer is `{"value": ...}` or `{"error": text}`, with `resident_bytes`, the most memory that the process has held.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import sys
import types
from pathlib import Path
from typing import Any

_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, OSError, MemoryError)
_SESSIONS: dict[tuple[str, int, str], Any] = {}  # open RPC sessions, by tracker and key
_QUICK_LOOK = 3.0  # a candidate this many times slower than the best one is not timed further


def main() -> None:
    """Serves jobs until the tuner closes the pipe."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints, prints to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tuner decides when to stop
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM imports it for a faster DLPack only
    sys.modules["tvm.s_tir.tensor_intrin"] = types.ModuleType("tvm.s_tir.tensor_intrin")
    import tvm

    send(answers, {"value": tvm.__version__})
    while (job := receive(0)) is not None:
        send(answers, answer(job))


def receive(source: int) -> Any:
    """The next message from a file descriptor, None at its end."""
    head = read(source, 8)
    if head is None:
        return None
    body = read(source, struct.unpack("<Q", head)[0])
    return None if body is None else pickle.loads(body)


def read(source: int, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = os.read(source, length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def send(sink: Any, value: object) -> None:
    body = pickle.dumps(value)
    sink.write(struct.pack("<Q", len(body)) + body)


def die_with_parent() -> None:
    """A candidate that hangs does not outlive the tuner, even one that was killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Does a job; says how much memory the process has come to hold."""
    outcome: dict[str, Any]
    # Processor time, for a machine with other things to do. Nothing catches the signal: it ends the process, even in LLVM.
    signal.setitimer(signal.ITIMER_PROF, job["limit_cpu_s"])
    try:
        outcome = {"value": {"build": build, "reach": reach, "kernel": time_kernel, "network": time_network}[job["op"]](job)}
    except _ERRORS as error:
        outcome = {"error": f"{type(error).__name__}: {str(error).strip()[-300:]}"}
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {**outcome, "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def build(job: dict[str, Any]) -> str:
    """Builds a scheduled module (TVM JSON) for a target into the shared library `out`; gives its path."""
    import tvm

    module = tvm.ir.load_json(job["module"])
    module = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    tvm.driver.build(module, target=tvm.target.Target(job["target"])).export_library(job["out"])
    return str(job["out"])


def time_kernel(job: dict[str, Any]) -> float:
    """Seconds that a call of a library's one function takes. A job has

    library: its path;  arguments: (dtype, shape) of each;  block_s, blocks: how long and how often to time;
    best_s: what is to be beaten, one that is nowhere near is looked at only once;
    remote: (host, port, key) of a TVM RPC tracker whose device runs it, None for this machine.
    """
    library, device, function = opened(job)
    return least(library, device, function, job)


def time_network(job: dict[str, Any]) -> float:
    """Seconds that a run of a whole network takes; the job as for a kernel."""
    from tvm import relax

    library, device, function = opened(job)
    return least(relax.VirtualMachine(library, device), device, function, job)


def opened(job: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The library where it is to run, the device there, and the way to functions of TVM's runtime there."""
    import tvm

    if job.get("remote") is None:
        return tvm.runtime.load_module(job["library"]), tvm.cpu(0), tvm.get_global_func
    session = session_of(job["remote"])
    session.upload(job["library"])
    return session.load_module(Path(job["library"]).name), session.cpu(0), session.get_function


def reach(job: dict[str, Any]) -> str:
    """Opens a session on the device of a tracker, before anything depends on it."""
    session_of(job["remote"])
    return str(job["remote"])


def session_of(remote: tuple[str, int, str]) -> Any:
    """The session on the device that a tracker (host, port) knows by a key; opened once."""
    from tvm import rpc

    if remote not in _SESSIONS:
        host, port, key = remote
        _SESSIONS[remote] = rpc.connect_tracker(host, port).request(key, session_timeout=3600)
    return _SESSIONS[remote]


def least(runner: Any, device: Any, function: Any, job: dict[str, Any]) -> float:
    """The least of several averages, so that other load on the machine hardly counts, by TVM's evaluator."""
    import tvm

    fill = function("tvm.contrib.random.random_fill_for_measure")
    arguments = [tvm.runtime.empty(shape, dtype, device) for dtype, shape in job["arguments"]]
    for argument in arguments:
        fill(argument)
    first = min(runner.time_evaluator("main", device, number=1, repeat=3)(*arguments).results)
    if first > _QUICK_LOOK * job["best_s"]:
        return float(first)
    number = max(1, round(job["block_s"] / max(first, 1e-7)))
    return float(min(runner.time_evaluator("main", device, number=number, repeat=job["blocks"])(*arguments).results))


if __name__ == "__main__":
    main()
