"""Which entries of the cache no kept run needs. What is cut here can be made again; what a kept run rests on is not cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from deploycnn.record import Record
from deploycnn.store import EntryFacts

IN_USE_S = 3600.0  # an entry used within it may belong to a run that goes on elsewhere
IMAGES = ("data-source", "data-arrays", "test-images")  # kept while any run is: they may be hard to get again
_SHA256 = re.compile(r"[0-9a-f]{64}")


def unneeded(entries: Iterable[EntryFacts], kept: Sequence[Record], *, unused_since_s: float, now_s: float) -> list[EntryFacts]:
    """Entries that may go.

    An entry is needed where a file of it, or anything that it was made from but the images, is named by digest in a kept record:
    checkpoint, graph, variants, artifacts, and the answers and latencies of those.

    Args:
        kept: records of the runs that stay.
        unused_since_s: entries used later belong to a newer run, whether it is known here or not.
        now_s: seconds since the epoch.
    """
    named = {digest for record in kept for digest in _SHA256.findall(record.model_dump_json())}
    of_images = {record.data.sha256 for record in kept}
    found = []
    for entry in entries:
        if entry.last_used_s >= min(unused_since_s, now_s - IN_USE_S):
            continue
        if kept and entry.stage in IMAGES:
            continue
        outputs, inputs = _digests(entry)
        if not (outputs & named or inputs & (named - of_images)):
            found.append(entry)
    return found


def _digests(entry: EntryFacts) -> tuple[set[str], set[str]]:
    """(of its files, in its key); empty for an entry that cannot be read, which is of no use to anyone."""
    try:
        manifest = json.loads((entry.path / "manifest.json").read_text(encoding="utf-8"))
        outputs = {file["sha256"] for file in manifest["files"]}
        parts = {name: value for name, value in manifest["key"]["parts"].items() if name != "code"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set(), set()
    return outputs, set(_texts(parts))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield from _SHA256.findall(value)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
