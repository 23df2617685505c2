"""Keras 3 on its PyTorch backend, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deploycnn.train.frameworks._contract import Framework, FrameworkFacts, Task, Training, versions
from deploycnn.train.frameworks._torch_devices import prepare_torch, seen_by_torch


class _NoTensorFlow:
    """Finder and loader before all others: importing TensorFlow fails. Keras imports it wherever it finds it, on any backend:
    memory and threads of a library that does not train here. Whoever only looks whether it is installed (torch does) is
    told so; None in sys.modules would not do, for Keras takes the name there for the module.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "tensorflow" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        raise ModuleNotFoundError("TensorFlow is kept out of this process, which trains on PyTorch", name=spec.name)

    def exec_module(self, module: object) -> None:
        raise AssertionError("no such module is ever created")


class KerasOnTorch(Framework):
    """On a GPU: TF32 as in the others; `mixed` is Keras's mixed_bfloat16, `compiled` is torch.compile."""

    name: ClassVar[str] = "keras"
    title: ClassVar[str] = "Keras on PyTorch"
    modules: ClassVar[Mapping[str, str]] = {"keras": "keras", "torch": "torch"}
    extra: ClassVar[str | None] = "keras"

    def version(self) -> str:
        return versions({"Keras": "keras", "PyTorch": "torch"})

    def facts(self) -> FrameworkFacts:
        return seen_by_torch(self.name, self.version())

    def begin(self, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Training:
        import os
        import sys

        prepare_torch(task)
        sys.meta_path.insert(0, _NoTensorFlow())
        os.environ["KERAS_TORCH_DEVICE"] = task.device  # Keras takes a GPU where there is one, unless told
        from deploycnn.train.frameworks._keras_network import KerasTraining, import_keras

        return KerasTraining(import_keras("torch"), task, images_NCHW, labels_N)
