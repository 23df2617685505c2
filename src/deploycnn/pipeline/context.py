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
    out: Path  # folder of the run
    memory_bytes: int  # resident memory at which a worker is killed
    session: Path = Path()  # where this command's own files go, relative to `out`; another folder when a run is resumed
    resume: bool = False  # go on with a training that was stopped
    remeasure: bool = False  # do not take latencies from the cache

    @property
    def folder(self) -> Path:
        """Where this command writes: samples, what it compiles, logs."""
        return self.out / self.session

    def log(self, name: str, stage: str) -> Path:
        """Where the workers of a cell write what they print in a stage."""
        return self.folder / "logs" / f"{plain_name(name)}-{stage}.txt"


def plain_name(cell: str) -> str:
    """A cell's name as a file's: `onnxruntime-int8-cpu`."""
    return cell.replace("/", "-").replace(":", "-")


def memory_limit(recipe: Recipe, machine: Environment) -> int:
    """Resident memory that one worker may use: the recipe's limit, or three quarters of the machine's."""
    if recipe.limits.memory_mb is not None:
        return int(recipe.limits.memory_mb * 1e6)
    memory = machine.memory
    return int(0.75 * min(memory.total_bytes, memory.limit_bytes or memory.total_bytes))


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
