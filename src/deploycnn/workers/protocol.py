"""What parent and child say to one another, over a socket that is neither's standard output.

The parent sends `(method, arguments)`; the child answers any number of `("progress", Progress)` and then exactly one
`("result", value)` or `("error", DeployError)`. Before the first call the child says `("ready", None)`.
"""

from __future__ import annotations

from typing import Any, Literal

from deploycnn.types import Value

Answer = tuple[Literal["ready", "progress", "result", "error"], Any]

CLOSE = "close"  # the last call; the child answers and exits


class MemoryFacts(Value):
    """Memory of the worker process, interpreter and runtime included. Device memory is None where there is no device."""

    resident_bytes: int
    peak_bytes: int  # highest resident size since the process started
    device_bytes: int | None = None  # as the driver lists it for this process, when asked
    device_peak_bytes: int | None = None  # highest of the answers so far


class LoadFacts(Value):
    """What it costs before the first answer, in a process that has loaded nothing yet."""

    load_s: float  # of `Backend.load`, import of the runtime included
    first_run_s: float  # of the first run, on a batch of black images
    first_batch: int  # that batch's size: 1, or the smallest that the artifact can run
    memory: MemoryFacts  # after that run


class EpochFacts(Value):
    """One pass over the training images."""

    loss: float  # mean over the images
    train_s: float  # until the device was done
