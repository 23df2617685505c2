"""Compilers and runtimes, one file (or folder) each, found by scanning this folder.

A module here that defines exactly one public subclass of `Backend` is a backend; its `name` is what recipes say.
Importing a backend's module never imports its compiler: that happens inside its methods.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from deploycnn.backends._contract import Backend, Options, Session, check_input
from deploycnn.errors import RecipeError

__all__ = ["Backend", "Options", "Session", "backend_class", "backend_classes", "check_input", "create"]


@cache
def backend_classes() -> dict[str, type[Backend]]:
    """Every backend of this folder by name, in alphabetical order."""
    found: dict[str, type[Backend]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, Backend) and member.__module__.startswith(module.__name__) and not inspect.isabstract(member):
                found[member.name] = member
    return found


def backend_class(name: str) -> type[Backend]:
    """The backend of that name. Raises RecipeError with the nearest right name."""
    classes = backend_classes()
    if name in classes:
        return classes[name]
    near = difflib.get_close_matches(name, classes, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise RecipeError(f"there is no backend '{name}'", remedy=f"{hint}backends here: {', '.join(classes)}")


def create(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of that name with the recipe's options. Raises RecipeError, naming the key and the nearest right one."""
    kind = backend_class(name)
    try:
        return kind(kind.Options.model_validate(dict(options)))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["backends", name, *(str(part) for part in first["loc"])])
        known = list(kind.Options.model_fields)
        if first["type"] != "extra_forbidden":
            message = first["msg"].removeprefix("Value error, ")
            raise RecipeError(f"{key} has a wrong value", found=f"{first['input']!r}: {message}", remedy=f"correct {key}") from error
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known there: {', '.join(known) or 'no options'}"
        raise RecipeError(f"there is no key '{key}'", remedy=hint) from error
