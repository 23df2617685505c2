"""The child's side of a worker: `python -m deploycnn.workers.child CONNECTION_FD LIFELINE_FD CORES`."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol

from deploycnn.errors import BackendError, DeployError
from deploycnn.types import Progress, ProgressCallback
from deploycnn.workers import confine
from deploycnn.workers.protocol import CLOSE, Answer

_PROGRESS_EVERY_S = 0.1


class Served(Protocol):
    """What a child answers with: every other method of it is a call."""

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


def main(arguments: list[str], make: Callable[[ProgressCallback], Served]) -> None:
    """Serves calls of what `make` makes until the parent says so or is gone."""
    connection_fd, lifeline_fd, cores = int(arguments[0]), int(arguments[1]), tuple(json.loads(arguments[2]))
    os.set_inheritable(connection_fd, False)
    confine.settle(cores)
    confine.end_with_parent(lifeline_fd)
    faulthandler.enable()
    connection: Connection[Answer, tuple[str, dict[str, object]]] = Connection(connection_fd)

    def last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An error that nobody translated ends the worker: what state its compiler is in, nobody knows."""
        traceback.print_exception(kind, error, trace)
        connection.send(("error", _untranslated(error)))

    sys.excepthook = last_words
    serve(connection, make)


def serve(connection: Connection[Answer, tuple[str, dict[str, object]]], make: Callable[[ProgressCallback], Served]) -> None:
    """Answers calls one at a time. DeployErrors are answers too."""
    bench = make(_reporter(connection))
    connection.send(("ready", None))
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:  # the parent is gone
            return
        if method == CLOSE:
            bench.close()
            connection.send(("result", None))
            sys.stdout.flush()
            os._exit(0)  # taking an interpreter with torch in it down takes seconds, and frees what the kernel frees anyway
        try:
            value = getattr(bench, method)(**arguments)
        except DeployError as error:
            connection.send(("error", error))
        else:
            connection.send(("result", value))


def _reporter(connection: Connection[Answer, tuple[str, dict[str, object]]]) -> ProgressCallback:
    """A callback that sends progress to the parent, not more often than a person can see."""
    from time import monotonic

    next_s = 0.0

    def report(progress: Progress) -> None:
        nonlocal next_s
        if monotonic() >= next_s or progress.done == progress.total:
            next_s = monotonic() + _PROGRESS_EVERY_S
            connection.send(("progress", progress))

    return report


def _untranslated(error: BaseException) -> BackendError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return BackendError(
        "the compiler or runtime raised an error that deploycnn does not know",
        found=f"{type(error).__name__}: {' '.join(lines)[:600]}" if lines else type(error).__name__,
        remedy="its traceback is in the worker's log; leave this backend out, or report the error with that log",
    )


def _bench(progress: ProgressCallback) -> Served:
    from deploycnn.workers.bench import Bench  # numpy and the backends: not before the process is confined

    return Bench(progress)


if __name__ == "__main__":
    main(sys.argv[1:], _bench)
