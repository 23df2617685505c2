"""Variants of a graph, one file per precision, found by scanning this folder.

A module here that defines a public subclass of `Precision` is a precision; its `name` is what recipes say.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from functools import cache

from deploycnn.errors import RecipeError
from deploycnn.precision._calibration import CalibrationAudit, audit_calibration
from deploycnn.precision._contract import Jury, Precision
from deploycnn.precision._range import RangeFinding, check_fp16_range

__all__ = [
    "CalibrationAudit",
    "Jury",
    "Precision",
    "RangeFinding",
    "audit_calibration",
    "check_fp16_range",
    "precision_class",
    "precision_classes",
]


@cache
def precision_classes() -> dict[str, type[Precision]]:
    """Every precision of this folder by name, in alphabetical order of their files."""
    found: dict[str, type[Precision]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, Precision) and member.__module__ == module.__name__ and not inspect.isabstract(member):
                found[member.name] = member
    return found


def precision_class(name: str) -> type[Precision]:
    """The precision of that name. Raises RecipeError with the nearest right name."""
    classes = precision_classes()
    if name in classes:
        return classes[name]
    near = difflib.get_close_matches(name, classes, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise RecipeError(f"there is no precision '{name}'", remedy=f"{hint}precisions here: {', '.join(classes)}")
