"""What was already made: a content-addressed cache that any number of processes share.

    ROOT/entries/STAGE/DIGEST/manifest.json   what was made from what, and the digest of every file
    ROOT/entries/STAGE/DIGEST/files/          what was made
    ROOT/shared/NAME/                         what outlives entries: tuning databases, timing caches
    ROOT/temp/, ROOT/locks/                   half-made entries, and who makes them

An entry appears by one rename, so it is whole or absent. It is checked whenever it is used: a damaged one is dropped
with one line, and made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ValidationError

from deploycnn.disk import Warn, disk_errors, file_sha256, lock, make_folder, write_atomic
from deploycnn.errors import StoreError
from deploycnn.types import FileEntry, Value

# Files up to this size are hashed at every use; larger ones when their size or time of change is not what it was.
ALWAYS_HASHED_BYTES = 4_000_000

_LOGGER = logging.getLogger(__name__)

__all__ = ["Built", "EntryFacts", "Key", "Store", "Warn", "cache_root", "disk_errors", "file_sha256", "lock", "write_atomic"]


class Key(Value):
    """What an entry was made from.

    `parts` holds JSON values: the digests of the inputs' bytes, the options, and the versions of the tools used (for
    compiled artifacts the device too).
    """

    stage: str
    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 over canonical JSON. Raises TypeError or ValueError where `parts` is not plain JSON."""
        document = {"stage": self.stage, "parts": self.parts}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Built(Value):
    """An entry that is there."""

    path: Path  # folder of its files; read only
    reused: bool  # it was there before


class EntryFacts(Value):
    """One entry, for listing and pruning."""

    stage: str
    digest: str
    size_bytes: int
    last_used_s: float  # seconds since the epoch
    path: Path


class _ManifestFile(FileEntry):
    mtime_ns: int


class _Manifest(Value):
    key: Key
    files: tuple[_ManifestFile, ...]


def cache_root() -> Path:
    """DEPLOYCNN_CACHE, else the user's cache folder."""
    given = os.environ.get("DEPLOYCNN_CACHE")
    return Path(given).expanduser().absolute() if given else platformdirs.user_cache_path("deploycnn", appauthor=False)


class Store:
    """The cache under `root`. Any number of processes may use one at once.

    Args:
        root: made when first written to.
        warn: gets one line for each damaged entry, and when another process is waited for.
        wait_s: how long `build` waits for another process that makes the same entry.
    """

    def __init__(self, root: Path, warn: Warn = _LOGGER.warning, wait_s: float = 3600.0) -> None:
        self.root = root
        self._warn = warn
        self._wait_s = wait_s

    def get(self, key: Key) -> Path | None:
        """Folder of the entry's files, checked; None where there is none, or only a damaged one, which is dropped.

        Raises:
            StoreError: the damaged entry cannot be removed, or another process holds it.
        """
        entry = self._entry(key)
        with disk_errors(entry):
            if not entry.exists():
                return None
        if _fault(entry) is None:
            with suppress(OSError):  # a cache that cannot be written to can still be read
                os.utime(entry / "manifest.json")
            return entry / "files"
        with self._locked(key.digest, f"checking {key.stage}"):
            self._drop_if_damaged(key)
        return None

    def build(self, key: Key, make: Callable[[Path], None]) -> Built:
        """The entry of `key`: reused, or made by `make` in an empty folder on the cache's file system.

        Whatever `make` raises goes through, and nothing is left of the attempt.

        Raises:
            StoreError: disk full, not writable, or another process held the entry for too long.
        """
        entry = self._entry(key)
        if (found := self.get(key)) is not None:
            return Built(path=found, reused=True)
        with self._locked(key.digest, f"making {key.stage}"):
            self._drop_if_damaged(key)
            if entry.exists():  # the process that was waited for has made it
                return Built(path=entry / "files", reused=True)
            self._sweep(key.digest)
            half = self._temp / f"{key.digest}-{uuid.uuid4().hex}"
            try:
                with disk_errors(self.root):  # inside, so that it looks at the disk before the attempt is removed
                    entry.parent.mkdir(parents=True, exist_ok=True)
                    files = half / "files"
                    files.mkdir(parents=True)
                    make(files)
                    _write_manifest(half, key)
                    half.rename(entry)
            finally:
                shutil.rmtree(half, ignore_errors=True)
        return Built(path=entry / "files", reused=False)

    def shared(self, name: str) -> Path:
        """A folder that outlives entries. The caller keeps it consistent, for instance under `lock`."""
        folder = self.root / "shared" / name
        make_folder(folder)
        return folder

    def entries(self) -> list[EntryFacts]:
        """Every entry, the longest unused first."""
        found = []
        for manifest in (self.root / "entries").glob("*/*/manifest.json"):
            entry = manifest.parent
            with suppress(FileNotFoundError):  # another process removes it just now
                facts = EntryFacts(
                    stage=entry.parent.name,
                    digest=entry.name,
                    size_bytes=sum(path.stat().st_size for path in entry.rglob("*") if path.is_file()),
                    last_used_s=manifest.stat().st_mtime,
                    path=entry,
                )
                found.append(facts)
        return sorted(found, key=lambda facts: facts.last_used_s)

    def remove(self, facts: EntryFacts) -> None:
        """Removes an entry. A process that has its files open keeps them."""
        with self._locked(facts.digest, f"removing {facts.stage}"):
            self._discard(facts.path)

    @property
    def _temp(self) -> Path:
        return self.root / "temp"

    def _entry(self, key: Key) -> Path:
        return self.root / "entries" / key.stage / key.digest

    def _locked(self, digest: str, purpose: str) -> AbstractContextManager[None]:
        return lock(self.root / "locks" / f"{digest}.lock", f"{purpose} {digest[:12]}", self._wait_s, self._warn)

    def _drop_if_damaged(self, key: Key) -> None:
        """Under the lock: another process may have dropped it, or made it again, since it was found damaged."""
        entry = self._entry(key)
        if entry.exists() and (fault := _fault(entry)):
            self._warn(f"the cache entry {key.stage} {key.digest[:12]} is damaged ({fault}); it is made again")
            self._discard(entry)

    def _discard(self, entry: Path) -> None:
        """Renames it away first, so that a crash in between leaves no entry with half of its files."""
        with disk_errors(entry), suppress(FileNotFoundError):
            self._temp.mkdir(parents=True, exist_ok=True)
            grave = self._temp / f"{entry.name}-{uuid.uuid4().hex}"
            entry.rename(grave)
            shutil.rmtree(grave)

    def _sweep(self, held_digest: str) -> None:
        """Removes what killed processes left half made: whatever nobody holds the lock of."""
        for half in self._temp.glob("*-*"):
            digest = half.name.partition("-")[0]
            if digest == held_digest:
                shutil.rmtree(half, ignore_errors=True)
                continue
            with suppress(StoreError), lock(self.root / "locks" / f"{digest}.lock", "tidying", wait_s=0.0):
                shutil.rmtree(half, ignore_errors=True)


def _write_manifest(half: Path, key: Key) -> None:
    files = half / "files"
    listed = []
    for path in sorted(path for path in files.rglob("*") if path.is_file()):
        facts = path.stat()
        name = path.relative_to(files).as_posix()
        listed.append(_ManifestFile(name=name, size_bytes=facts.st_size, sha256=file_sha256(path), mtime_ns=facts.st_mtime_ns))
    (half / "manifest.json").write_text(_Manifest(key=key, files=tuple(listed)).model_dump_json(indent=1), encoding="utf-8")


def _fault(entry: Path) -> str | None:
    """What is wrong with an entry, None where it is whole."""
    try:
        manifest = _Manifest.model_validate_json((entry / "manifest.json").read_bytes())
    except FileNotFoundError:
        return "its manifest is missing"
    except ValidationError:
        return "its manifest cannot be read"
    if manifest.key.digest != entry.name:
        return "its manifest belongs to another entry"
    for listed in manifest.files:
        path = entry / "files" / listed.name
        try:
            facts = path.stat()
            if facts.st_size != listed.size_bytes:
                return f"{listed.name} has {facts.st_size} bytes instead of {listed.size_bytes}"
            untouched = facts.st_mtime_ns == listed.mtime_ns and facts.st_size > ALWAYS_HASHED_BYTES
            if not untouched and file_sha256(path) != listed.sha256:
                return f"{listed.name} has other contents"
        except OSError as error:
            return f"{listed.name}: {error.strerror}"
    return None
