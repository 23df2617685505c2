"""Networks, one file each, found by scanning this folder; and the user's own classes.

A module here that defines exactly one public subclass of `torch.nn.Module` is a network; its file's name is what recipes
say. Its class is called with `shape_CHW`, `n_classes`, and `width` and `depth` where it has such parameters.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploycnn.errors import ModelError
from deploycnn.recipe import ModelOptions

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build_model", "is_own", "network_classes"]

# What importing or constructing a user's class is known to raise. Anything else ends the run as a fault of the program.
_USER_CODE = (
    ImportError,
    SyntaxError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NameError,
    ArithmeticError,
    OSError,
)


@cache
def network_classes() -> dict[str, type[nn.Module]]:
    """Every network of this folder by name, in alphabetical order. Imports torch."""
    from torch import nn

    found: dict[str, type[nn.Module]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, nn.Module) and member.__module__ == module.__name__ and not name.startswith("_"):
                found[info.name] = member
    return found


def is_own(name: str) -> bool:
    """Whether a model's name means a user's class or function (`package.module:Name`) and not a network of this folder."""
    return ":" in name


def build_model(options: ModelOptions, shape_CHW: tuple[int, int, int], n_classes: int, seed: int = 0) -> nn.Module:
    """A network with fresh weights, the same ones for the same seed, in train mode on the CPU.

    Args:
        options: `name` is a network of this folder, or `package.module:ClassOrFunction`, which is called with `arguments`
            only; the folder that the program was started in is searched too.
        shape_CHW: of one image.
        n_classes: how many logits.

    Raises:
        ModelError: no such network, module or class; arguments it does not take; images it cannot take.
    """
    import torch

    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return _own(options) if is_own(options.name) else _network(options, shape_CHW, n_classes)


def _network(options: ModelOptions, shape_CHW: tuple[int, int, int], n_classes: int) -> nn.Module:
    classes = network_classes()
    if options.name not in classes:
        near = difflib.get_close_matches(options.name, classes, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ModelError(
            f"there is no network '{options.name}'",
            remedy=f"{hint}networks here: {', '.join(classes)}; your own class is named package.module:Class",
        )
    if options.arguments:
        raise ModelError(
            f"model.arguments are for your own classes, and {options.name} is not one",
            found=f"arguments: {', '.join(options.arguments)}",
            remedy="leave them out; model.width and model.depth change the size",
        )
    chosen = classes[options.name]
    taken = inspect.signature(chosen).parameters
    sizes: dict[str, Any] = {}
    for key, value, default in (("width", options.width, 1.0), ("depth", options.depth, 1)):
        if key in taken:
            sizes[key] = value
        elif value != default:
            raise ModelError(f"model.{key} means nothing for {options.name}", found=f"{key} {value}", remedy=f"leave out model.{key}")
    return chosen(shape_CHW=shape_CHW, n_classes=n_classes, **sizes)


def _own(options: ModelOptions) -> nn.Module:
    """The user's module. Import and call are the user's code: what they raise is told, not shown as a traceback."""
    from torch import nn

    if options.width != 1.0 or options.depth != 1:
        raise ModelError(
            f"model.width and model.depth mean nothing for {options.name}",
            found=f"width {options.width:g}, depth {options.depth}",
            remedy="leave them out; give your class its sizes through model.arguments",
        )
    maker = _imported(options.name)
    try:
        module = maker(**options.arguments)
    except _USER_CODE as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.arguments.items())
        raise ModelError(
            f"{options.name}({given}) failed",
            found=_said(error),
            remedy="set model.arguments to what it takes: a mapping of keyword arguments",
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{options.name} made no network",
            found=f"a {type(module).__name__}",
            remedy="name a torch.nn.Module or a function that returns one",
        )
    return module


def _imported(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # the console script does not have it, `python -m` does; last, so that it hides nothing
    remedy = "name it as package.module:Class, importable from the folder that the program is started in, or installed"
    try:
        module = importlib.import_module(module_name)
    except _USER_CODE as error:
        raise ModelError(f"the module '{module_name}' of model.name cannot be imported", found=_said(error), remedy=remedy) from error
    if not callable(maker := getattr(module, attribute, None)):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(attribute, public, n=1)
        found = f"it has no class or function '{attribute}'" + (f"; the nearest name is {near[0]}" if near else "")
        raise ModelError(f"{name} is not there", found=found, remedy=remedy)
    return maker


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
