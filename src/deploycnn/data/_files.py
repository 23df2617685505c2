"""Facts of source files without reading them, and reading them with messages a person can act on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from deploycnn.errors import DataError


def fingerprint(paths: Iterable[Path]) -> str:
    """Digest over absolute path, size and times of change: differs whenever a file may have changed.

    The time of the inode's change is among them: unlike the modification time, `cp -p` and `touch` cannot set it back.

    Raises:
        DataError: a file cannot be looked at.
    """
    lines = []
    for path in paths:
        try:
            facts = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        lines.append(fingerprint_line(str(path.absolute()), facts))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fingerprint_line(name: str, facts: os.stat_result) -> str:
    """One file's part of a fingerprint."""
    return f"{name!r} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"


def unreadable(path: Path, error: OSError) -> DataError:
    """What to raise when the system does not let a file be read."""
    reason = error.strerror or str(error)
    return DataError(f"{path} cannot be read", found=reason, remedy="check the file and its permissions")


def corrupt(path: Path, *, expected: str, found: str, remedy: str) -> DataError:
    """What to raise when a file does not hold what it should."""
    return DataError(f"{path} is incomplete or corrupt", found=f"{found}; expected {expected}", remedy=remedy)
