"""What trains a network: PyTorch, TensorFlow or Keras on PyTorch, one file each, found by scanning this folder.

A module here that defines exactly one public subclass of `Framework` is a framework; its `name` is what `model.framework`
says. Nothing but its own file knows it: the trained weights come out as numpy arrays with the names and the layout of the
PyTorch twin in `models/`, so everything after training is the same for all of them.

Why weights and not each framework's own ONNX export: TensorFlow's would go through tf2onnx (opset 15, NHWC with transposes, no
torch.export program), and a difference between two artifacts could then be the exporter's. Moved weights keep one graph, one
set of compilers, and PyTorch itself as the reference. That the twin computes what the framework computes is proved for every
training, on real images, against the framework's own logits.

Each framework runs in a process of its own (see `workers.training`): two tensor libraries in one process share threads and
memory, and Keras chooses its backend once, when it is imported.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from functools import cache

from deploycnn.errors import RecipeError
from deploycnn.train.frameworks._contract import MODES, Device, Framework, FrameworkFacts, Mode, Task, Training, check_options

__all__ = [
    "MODES",
    "Device",
    "Framework",
    "FrameworkFacts",
    "Mode",
    "Task",
    "Training",
    "check_options",
    "framework_class",
    "framework_classes",
]


@cache
def framework_classes() -> dict[str, type[Framework]]:
    """Every framework of this folder by name, in alphabetical order. Imports none of them."""
    found: dict[str, type[Framework]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, Framework) and member.__module__ == module.__name__ and not inspect.isabstract(member):
                found[member.name] = member
    return found


def framework_class(name: str) -> type[Framework]:
    """The framework of that name. Raises RecipeError with the nearest right name."""
    classes = framework_classes()
    if name in classes:
        return classes[name]
    near = difflib.get_close_matches(name, classes, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise RecipeError(f"there is no framework '{name}'", remedy=f"{hint}frameworks here: {', '.join(classes)}")
