"""The control's process: answers, ends, and its death is an error that can be read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from deploycnn.errors import WorkerError
from deploycnn.measure.control import ControlContender


@pytest.fixture
def control() -> Iterator[ControlContender]:
    contender = ControlContender((1, 32), threads=1, block_s=0.002)
    yield contender
    contender.stop()


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "control_child" in " ".join(p.cmdline())]


def test_blocks_are_nanoseconds_of_runs_and_nothing_is_left_behind(control: ControlContender) -> None:
    for process in range(2):
        control.start(process)
        assert control.ready(1)
        block = control.block()
        assert block.dtype == np.int64
        assert block.min() > 0
        assert block.sum() >= 2_000_000
        assert len(children()) == 1
        control.stop()
        assert children() == []
    control.stop()  # harmless


def test_a_child_that_dies_is_said(control: ControlContender) -> None:
    control.start(0)
    (child,) = children()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    with pytest.raises(WorkerError, match="control"):
        control.block()
    with pytest.raises(WorkerError, match="control"):
        control.block()


def test_asked_before_it_runs_it_says_so() -> None:
    with pytest.raises(WorkerError, match="not running"):
        ControlContender((1,), threads=1, block_s=0.01).block()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin")
def test_the_child_is_pinned() -> None:
    core = max(os.sched_getaffinity(0))
    contender = ControlContender((1,), threads=1, block_s=0.001, cores=(core,))
    contender.start(0)
    (child,) = children()
    assert child.cpu_affinity() == [core]
    contender.stop()
