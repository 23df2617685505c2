"""Keras 3 on its PyTorch backend, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deploycnn.train.frameworks._contract import Framework, FrameworkFacts, Task, Training, versions
from deploycnn.train.frameworks._torch_devices import prepare_torch, seen_by_torch


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

        prepare_torch(task)
        os.environ["KERAS_TORCH_DEVICE"] = task.device  # Keras takes a GPU where there is one, unless told
        from deploycnn.train.frameworks._keras_network import KerasTraining, import_keras

        return KerasTraining(import_keras("torch"), task, images_NCHW, labels_N)
