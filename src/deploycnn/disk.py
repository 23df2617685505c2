"""What disks and other processes do to files: writes that happen or do not, errors that people can read, locks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from deploycnn import units
from deploycnn.errors import StoreError

Warn = Callable[[str], None]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes | str) -> None:
    """Writes a whole file or leaves the old one: a temporary file beside it, flushed to disk, then renamed.

    Text is written as UTF-8 without translating line ends. Missing folders are made.

    Raises:
        StoreError: disk full, not writable; nothing is left beside the old file.
    """
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with disk_errors(path):
        make_folder(path.parent)
        try:
            with half.open("xb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)


_ELSEWHERE = "DEPLOYCNN_CACHE moves the cache, --out the run"
_MORE_SPACE = f"free some space, or use another disk: {_ELSEWHERE}"
_DISK_FAULTS = {
    errno.ENOSPC: ("the disk is full", _MORE_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _MORE_SPACE),
    errno.EROFS: ("the file system is read-only", f"choose a folder that can be written to: {_ELSEWHERE}"),
    errno.EACCES: ("no permission", f"change its permissions, or choose a folder of your own: {_ELSEWHERE}"),
    errno.EPERM: ("not permitted", f"change its permissions, or choose a folder of your own: {_ELSEWHERE}"),
    errno.ENOTDIR: ("a file stands where a folder should be", "remove that file, or choose another folder"),
    errno.EEXIST: ("a file stands where a folder should be", "remove that file, or choose another folder"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.ELOOP: ("its links go in a circle", "mend the links, or choose another folder"),
    errno.EFBIG: ("the file is larger than the file system or ulimit allows", _MORE_SPACE),
    errno.EIO: ("the disk reports an error", "check the disk, or choose another one"),
}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Translates what disks do to people (full, read-only, no permission) into StoreError; anything else goes through.

    Some libraries say nothing useful on a full disk: numpy raises an OSError without a number, torch.save a
    RuntimeError about positions. They are taken for a full disk where there is next to no space left.

    Args:
        path: what was being written, for errors that do not say.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (free := _free_bytes(path)) is not None and free < 100_000:
            number = errno.ENOSPC
        if number not in _DISK_FAULTS:
            raise
        found, remedy = _DISK_FAULTS[number]
        named = (error.filename2 or error.filename) if isinstance(error, OSError) else None
        raise StoreError(f"{named or path} cannot be written", found=f"{found}{_space(path)}", remedy=remedy) from error


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, where they are missing.

    Raises:
        StoreError: it cannot be made, and why.
    """
    with disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # parents are made, so: the kernel's own file systems, or a mount that went
            remedy = f"choose a folder that can be written to: {_ELSEWHERE}"
            raise StoreError(f"{path} cannot be written", found=f"no folder can be made at {error.filename}", remedy=remedy) from error


def _free_bytes(path: Path) -> int | None:
    for folder in (path, *path.parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


def _space(path: Path) -> str:
    free = _free_bytes(path)
    return "" if free is None else f" ({units.size(free)} free)"


# --- locks --------------------------------------------------------------------------------


@contextmanager
def lock(path: Path, purpose: str, wait_s: float, on_wait: Warn | None = None) -> Iterator[None]:
    """Holds the lock file `path`; the system releases it when the process dies. Beside it lies who holds it.

    Args:
        purpose: what for, shown to whoever waits.
        wait_s: how long to wait for another holder; 0 does not wait.
        on_wait: told once, after half a second, who is waited for.

    Raises:
        StoreError: it is still held after `wait_s`, says by whom; or the folder cannot be written to.
    """
    import filelock

    owner = path.with_name(f"{path.name}.owner")
    with disk_errors(path):
        make_folder(path.parent)
        held = filelock.FileLock(path)
        try:
            held.acquire(timeout=min(wait_s, 0.5), poll_interval=0.02)
        except filelock.Timeout:
            if on_wait and wait_s > 0.5:
                on_wait(f"waiting for another run: {_holder(owner)}")
            try:
                held.acquire(timeout=max(wait_s - 0.5, 0.0), poll_interval=0.1)
            except filelock.Timeout as error:
                raise StoreError(
                    f"{path.parent if path.name.startswith('.') else path} is in use",
                    found=_holder(owner),
                    remedy="wait for it to finish, end it, or choose another folder",
                ) from error
    try:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        write_atomic(owner, json.dumps({"pid": os.getpid(), "since": since, "purpose": purpose}))
        yield
    finally:
        owner.unlink(missing_ok=True)
        held.release()


def _holder(owner: Path) -> str:
    try:
        facts = json.loads(owner.read_text(encoding="utf-8"))
        return f"locked by pid {facts['pid']} since {facts['since']} ({facts['purpose']})"
    except (OSError, ValueError, KeyError, TypeError):  # half written, or not by us
        return "locked by another process"
