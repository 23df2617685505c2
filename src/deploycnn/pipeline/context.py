"""What every stage of a run is handed, and how its cache keys are made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import deploycnn
from deploycnn.disk import file_sha256
from deploycnn.environment import Environment, package_version
from deploycnn.pipeline.console import Talk
from deploycnn.recipe import Recipe
from deploycnn.store import Key, Store

PACKAGE = Path(deploycnn.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run's surroundings."""

    recipe: Recipe
    store: Store
    talk: Talk
    environment: Environment
    out: Path
    memory_bytes: int  # resident memory at which a worker is killed
    resume: bool = False  # go on with a training that was stopped
    remeasure: bool = False  # do not take latencies from the cache


def key(stage: str, *, code: Iterable[str], packages: Iterable[str] = (), **parts: Any) -> Key:
    """A stage's cache key: its inputs and options, the sources that do it, the versions of the tools it used.

    Args:
        stage: name of the stage.
        code: files or folders of this package whose text takes part in the result, `train` or `models`.
        packages: distributions whose versions take part.
        parts: inputs (as digests) and options, JSON values.
    """
    versions = {name: package_version(name) for name in sorted(packages)}
    return Key(stage=stage, parts={**parts, "code": code_sha256(*code), "versions": versions})


@cache
def code_sha256(*places: str) -> str:
    """Digest over the Python files of these places, so that a changed stage never takes an old result."""
    files = sorted(file for place in places for file in _python_files(PACKAGE / place))
    return hashlib.sha256("".join(f"{file.relative_to(PACKAGE).as_posix()} {file_sha256(file)}\n" for file in files).encode()).hexdigest()


def _python_files(place: Path) -> list[Path]:
    return [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
