"""What travels with the package: recipes and trained checkpoints.

In an installed package they lie inside it (`_recipes`, `_checkpoints`, see pyproject.toml), in a clone at its top
(`pipeline/`, `models/`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from deploycnn.errors import DeployError, ModelError, RecipeError

_PACKAGE = Path(__file__).parent
_CLONE = _PACKAGE.parents[1]


def recipes() -> dict[str, Path]:
    """Recipes that ship, by name without `.yaml`."""
    return _found("_recipes", "pipeline", ".yaml")


def checkpoints() -> dict[str, Path]:
    """Checkpoints that ship, by name without `.safetensors`."""
    return _found("_checkpoints", "models", ".safetensors")


def tuning_records() -> dict[str, Path]:
    """Tuned TVM schedules that ship, by file name without its last suffix (`avx512.jsonl`)."""
    return _found("_checkpoints/tvm", "models/tvm", ".gz")


def recipe_path(name_or_path: str | Path) -> Path:
    """The file of a recipe given by path, or by the name of one that ships (`quickstart`, `quickstart.yaml`).

    Raises:
        RecipeError: there is neither; lists what there is.
    """
    return _chosen(name_or_path, recipes(), "recipe", ".yaml", RecipeError)


def checkpoint_path(name_or_path: str | Path) -> Path:
    """The file of a checkpoint given by path, or by the name of one that ships.

    Raises:
        ModelError: there is neither; lists what there is.
    """
    return _chosen(name_or_path, checkpoints(), "checkpoint", ".safetensors", ModelError)


def _found(inside: str, at_top: str, suffix: str) -> dict[str, Path]:
    folder = _PACKAGE / inside
    if not folder.is_dir():
        # Only a clone has a pyproject.toml above src/; beside site-packages a folder `models` would be somebody else's.
        folder = _CLONE / at_top
        if not (_CLONE / "pyproject.toml").is_file():
            return {}
    return {path.stem: path for path in sorted(folder.glob(f"*{suffix}"))}


def _chosen(name_or_path: str | Path, shipped: Mapping[str, Path], noun: str, suffix: str, error: type[DeployError]) -> Path:
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    name = str(name_or_path).removesuffix(suffix)
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    there = f"{noun}s that ship: {', '.join(shipped)}" if shipped else f"no {noun} ships with this copy"
    found = "a folder" if path.is_dir() else "no such file"
    raise error(f"there is no {noun} '{name_or_path}'", found=found, remedy=f"{hint}give the path of a {suffix} file; {there}")
