"""TensorFlow, by Keras 3 on its TensorFlow backend. PyTorch is not imported."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from deploycnn.environment import environment
from deploycnn.errors import Unavailable
from deploycnn.train.frameworks._contract import Device, Framework, FrameworkFacts, Task, Training, versions


class TensorFlow(Framework):
    """On a GPU: TF32 as TensorFlow has it by default; `mixed` is Keras's mixed_bfloat16, `compiled` is XLA."""

    name: ClassVar[str] = "tensorflow"
    title: ClassVar[str] = "TensorFlow"
    modules: ClassVar[Mapping[str, str]] = {"tensorflow": "tensorflow", "keras": "keras"}
    extra: ClassVar[str | None] = "tensorflow"

    def version(self) -> str:
        tensorflow = versions({"TensorFlow": "tensorflow"}) or versions({"TensorFlow": "tensorflow-cpu"})
        return ", ".join(filter(None, [tensorflow, versions({"Keras": "keras"})]))

    def facts(self) -> FrameworkFacts:
        tf = _imported()
        gpus = [Device(kind="cuda", name=_gpu_name(tf, gpu)) for gpu in tf.config.list_physical_devices("GPU")]
        reason = ""
        if not gpus and not tf.test.is_built_with_cuda():
            reason = "this TensorFlow is built without CUDA (tensorflow-cpu); install tensorflow[and-cuda] instead"
        elif not gpus:
            reason = environment().gpu_reason or "TensorFlow finds no CUDA libraries that it can use (tensorflow[and-cuda] brings them)"
        cpu = Device(kind="cpu", name=environment().cpu.model)
        return FrameworkFacts(name=self.name, version=self.version(), devices=(cpu, *gpus), gpu_reason=reason)

    def begin(self, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Training:
        from deploycnn.train.frameworks._keras_network import KerasTraining, import_keras

        tf = _imported()
        tf.config.threading.set_intra_op_parallelism_threads(task.threads)
        tf.config.threading.set_inter_op_parallelism_threads(task.threads)
        gpus = tf.config.list_physical_devices("GPU")
        if task.device == "cuda" and not gpus:
            raise Unavailable("TensorFlow is to train on a GPU", found=self.facts().gpu_reason, remedy="train on the CPU")
        if task.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        for gpu in gpus if task.device == "cuda" else ():
            tf.config.experimental.set_memory_growth(gpu, True)  # others train on the same card
        return KerasTraining(import_keras("tensorflow"), task, images_NCHW, labels_N)


def _imported() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return importlib.import_module("tensorflow")


def _gpu_name(tf: Any, gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name") or gpu.name)
