"""What holds a worker in its place, piece by piece."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploycnn.workers import confine


def machine(root: Path, siblings: dict[int, str]) -> Path:
    for core, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


HYPERTHREADED = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
PAIRED = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}


@pytest.mark.parametrize(
    ("siblings", "allowed", "threads", "cores"),
    [
        ({}, {0, 1}, 1, (1,)),
        ({}, {0, 1}, 2, (0, 1)),
        ({}, {0, 1}, 8, (0, 1)),
        ({}, {5}, 1, (5,)),
        (HYPERTHREADED, set(range(8)), 1, (3,)),
        (HYPERTHREADED, set(range(8)), 2, (2, 3)),
        (HYPERTHREADED, set(range(8)), 5, (0, 1, 2, 3, 7)),
        (HYPERTHREADED, {4, 5, 1}, 2, (1, 4)),
        (PAIRED, set(range(4)), 2, (0, 2)),
    ],
)
def test_cores_are_physical_ones_first_and_from_the_top(tmp_path, monkeypatch, siblings, allowed, threads, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert confine.pick_cores(threads, machine(tmp_path, siblings)) == cores


def test_nothing_is_pinned_where_the_system_cannot(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert confine.pick_cores(4) == ()


CHILD = """
import fcntl, os, sys, time
if {without_signal}:
    del fcntl.F_SETSIG
from deploycnn.workers import confine
confine.end_with_parent(int(sys.argv[1]))
os.posix_spawn("/bin/sleep", ["sleep", "300"], os.environ)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("without_signal", [False, True], ids=["by-signal", "by-thread"])
def test_the_group_ends_when_the_lifeline_closes(without_signal):
    read_fd, write_fd = os.pipe()
    mark = f"test-{os.getpid()}-{without_signal}"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD.format(without_signal=without_signal), str(read_fd)],
        stdout=subprocess.PIPE,
        pass_fds=[read_fd],
        start_new_session=True,
        env={**os.environ, confine.MARK: mark},
    ) as child:
        os.close(read_fd)
        assert child.stdout.readline() == b"ready\n"
        assert len(confine.descendants(mark)) == 2
        os.close(write_fd)
        assert child.wait(10) == -signal.SIGKILL
    deadline_s = time.monotonic() + 10
    while confine.descendants(mark) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not confine.descendants(mark)


def test_memory_shared_by_forks_is_counted_once_where_it_matters():
    code = "import os, time; hoard = bytearray(os.urandom(2**27)); os.fork() and print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout.readline() == b"ready\n"
        resident_bytes, proportional_bytes = confine.resident_bytes(child.pid), confine.proportional_bytes(child.pid)
        os.killpg(child.pid, signal.SIGKILL)
    assert resident_bytes > 2 * 2**27
    assert 2**27 < proportional_bytes < 1.5 * 2**27


def test_a_process_that_is_gone_uses_no_memory():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert confine.resident_bytes(gone.pid) == confine.proportional_bytes(gone.pid) == 0
