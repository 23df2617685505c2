"""Fetching data sets: addresses and checksums are torchvision's, the files appear whole or not at all.

A machine without a network must find that out in seconds, and importing torchvision alone takes some. So the publisher's
host is asked first, in a thread that can be given up: name servers and proxies that never answer cannot be interrupted.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploycnn.data._contract import DataMissing
from deploycnn.data._files import corrupt
from deploycnn.errors import DataError
from deploycnn.store import disk_errors, lock
from deploycnn.types import Progress, ProgressCallback

REACH_S = 6.0  # for the first answer of the host, through name servers, proxies and encryption
STALL_S = 30.0  # for the next bytes of a download
LOCK_WAIT_S = 3600.0
_CHUNK_BYTES = 2**18
_NETWORK_ERRORS = (OSError, http.client.HTTPException)  # URLError, HTTPError and TimeoutError are OSErrors
_REMEDY = "connect to a network (a proxy is taken from HTTPS_PROXY), or copy the files there, or set data.root"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One file to fetch: tried at each address in turn."""

    urls: tuple[str, ...]
    name: str
    md5: str


def fetch_resources(
    dataset: str,
    site: str,
    resources: Callable[[], Sequence[Resource]],
    root: Path,
    place: str,
    progress: ProgressCallback,
    warn: Callable[[str], None],
) -> None:
    """Downloads files into the folder `root / place`. Of several processes one downloads and the others wait for it.

    A single file appears by one rename, several together with their folder, which must not hold anything yet.

    Args:
        dataset: its name, for messages and the lock in `root`.
        site: an address at the publisher's, asked before `resources` is called.
        resources: gives what to fetch; may import torchvision.

    Raises:
        DataMissing: no network, or nobody there has a file.
        DataError: what came does not match its checksum, or broke off.
        StoreError: the folder cannot be written to.
    """
    folder = root / place
    if reason := unreachable(site):
        raise _missing(dataset, folder, reason)
    with lock(root / f".{dataset}.lock", f"downloading {dataset}", LOCK_WAIT_S, warn):
        try:
            wanted = resources()
        except ImportError as error:
            raise _missing(dataset, folder, f"torchvision cannot be imported: {error}") from error
        if all((folder / resource.name).exists() for resource in wanted):
            return
        with disk_errors(folder):
            parts = Path(tempfile.mkdtemp(prefix=f".{dataset}.", suffix=".part", dir=root))
        try:
            for resource in wanted:
                _fetch(dataset, resource, parts / resource.name, progress)
            with disk_errors(folder):
                _place(parts, folder, wanted)
        finally:
            shutil.rmtree(parts, ignore_errors=True)


def unreachable(site: str) -> str:
    """Why `site` gives no answer within REACH_S, "" where it answers, be it with an error."""
    reason = [f"no answer from {_host(site)} within {REACH_S:.0f} s"]

    def ask() -> None:
        try:
            _open(site, "HEAD", REACH_S).close()
            reason[0] = ""
        except urllib.error.HTTPError as error:
            error.close()
            # What a proxy says when it does not reach the site or does not know us.
            reason[0] = f"{_host(site)}: {_said(error)}" if error.code in (407, 502, 503, 504) else ""
        except _NETWORK_ERRORS as error:
            reason[0] = f"{_host(site)} cannot be reached: {_said(error)}"

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(REACH_S)
    return reason[0]


def _open(url: str, method: str, timeout_s: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "deploycnn"}, method=method)
    # Not urlopen: it keeps the proxies of its first call.
    response: http.client.HTTPResponse = urllib.request.build_opener().open(request, timeout=timeout_s)
    return response


def _said(error: Exception) -> str:
    """An error without the wrapping that urllib puts around it."""
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return str(error.reason)
    return str(error)


def _fetch(dataset: str, resource: Resource, target: Path, progress: ProgressCallback) -> None:
    reasons = []
    for url in resource.urls:
        try:
            response = _open(url, "GET", STALL_S)
        except _NETWORK_ERRORS as error:
            reasons.append(f"{_host(url)}: {_said(error)}")
            continue
        with response:
            _save(response, resource, target, progress)
        return
    raise _missing(dataset, target, "; ".join(reasons))


def _save(response: http.client.HTTPResponse, resource: Resource, target: Path, progress: ProgressCallback) -> None:
    total = int(response.headers.get("Content-Length") or 0)
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    with disk_errors(target), target.open("wb") as file:
        while chunk := _chunk(response, resource.name, done, total):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(Progress(done=done, total=total, unit="bytes", note=resource.name))
    if done < total:
        raise _broken_off(resource.name, done, total, "the connection was closed")
    if digest.hexdigest() != resource.md5:
        raise corrupt(
            Path(resource.name),
            expected=f"MD5 {resource.md5}",
            found=f"the download has {done:,} bytes and MD5 {digest.hexdigest()}",
            remedy="run again to download it again; if that does not help, fetch the file by hand",
        )


def _chunk(response: http.client.HTTPResponse, name: str, done: int, total: int) -> bytes:
    try:
        return response.read(_CHUNK_BYTES)
    except _NETWORK_ERRORS as error:
        raise _broken_off(name, done, total, str(error)) from error


def _place(parts: Path, folder: Path, wanted: Sequence[Resource]) -> None:
    if len(wanted) == 1:
        folder.mkdir(parents=True, exist_ok=True)
        (parts / wanted[0].name).replace(folder / wanted[0].name)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        parts.chmod(0o755)
        parts.replace(folder)


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url


def _broken_off(name: str, done: int, total: int, reason: str) -> DataError:
    of = f" of {total:,}" if total else ""
    return DataError(f"the download of {name} broke off", found=f"{done:,}{of} bytes, then: {reason}", remedy="run again")


def _missing(dataset: str, folder: Path, reason: str) -> DataMissing:
    return DataMissing(f"{dataset} is not on disk and cannot be downloaded", found=f"nothing under {folder}, and {reason}", remedy=_REMEDY)
