"""What keeps a worker in its place: threads, cores, and an end with its parent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import threading
from pathlib import Path

import psutil

MARK = "DEPLOYCNN_WORKER"  # environment variable by which every descendant of a worker is found, whatever its session

# Read by numeric libraries when they are loaded, so they are set before the child starts.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TVM_NUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold the usual numeric libraries to so many threads."""
    limits = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    # TVM would move its threads to cores of its own choice, out of those that the worker was given.
    return {**limits, "TVM_BIND_THREADS": "0"}


def pick_cores(threads: int, root: Path = Path("/")) -> tuple[int, ...]:
    """The cores that a worker with so many threads is pinned to; () where the system cannot pin.

    One hardware thread of each physical core is taken before any second one, and the highest numbers first: the
    lowest core serves most interrupts. All workers get the same cores, for only one of them runs at a time.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    allowed = sorted(os.sched_getaffinity(0))
    seconds = {core for core in allowed if _first_sibling(core, allowed, root) != core}
    by_preference = [c for c in reversed(allowed) if c not in seconds] + [c for c in reversed(allowed) if c in seconds]
    return tuple(sorted(by_preference[:threads]))


def _first_sibling(core: int, allowed: list[int], root: Path) -> int:
    """The lowest allowed core that shares a physical core with this one."""
    path = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    try:
        text = path.read_text()
    except OSError:
        return core
    siblings: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        siblings.update(range(int(low), int(high or low) + 1))
    return min((c for c in allowed if c in siblings), default=core)


def settle(cores: tuple[int, ...]) -> None:
    """Called first in the child: pins it, keeps Ctrl-C for the parent, and leaves no core files."""
    if cores:
        os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def end_with_parent(lifeline_fd: int) -> None:
    """Called in the child: when the parent's end of this pipe closes, for whatever reason, the whole process group dies.

    The kernel sends the signal (fcntl F_SETSIG), so it reaches a child that hangs in C code with the interpreter
    locked, and unlike prctl's PR_SET_PDEATHSIG it does not depend on the thread that started the child. Where the
    system has no such call, a thread waits for the pipe's end.
    """
    os.set_inheritable(lifeline_fd, False)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([lifeline_fd], [], [], 0)[0]:  # the parent went before the line above
            os.killpg(os.getpgrp(), signal.SIGKILL)
        return

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def descendants(mark: str) -> list[psutil.Process]:
    """Every living process that carries this worker's mark in its environment, the worker itself included."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its children; pages that a fork shares are counted once for each sharer."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def proportional_bytes(pid: int) -> int:
    """Like `resident_bytes`, with shared pages divided among their sharers. Slower by far."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += getattr(process.memory_full_info(), "pss", process.memory_info().rss)
    return total


def kill_everything(pid: int, mark: str) -> None:
    """Kills the worker's process group and every descendant, also those that moved to a group of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for _ in range(10):  # a process may fork while it is being looked for; one that the kernel cannot end is left
        survivors = descendants(mark)
        if not survivors:
            return
        for process in survivors:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(survivors, timeout=0.5)
