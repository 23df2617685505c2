"""The network in Keras 3, whatever runs beneath it. Imported only in a process that has chosen Keras's backend."""

from __future__ import annotations

import importlib
import io
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploycnn.errors import TrainingError, Unavailable
from deploycnn.models._sizes import mnist_cnn_sizes
from deploycnn.train.frameworks._contract import ADAM_EPSILON, Task, Training
from deploycnn.types import Progress, ProgressCallback

PREDICT_BATCH = 500
_TELL_EVERY = 10  # batches


def import_keras(backend: str) -> Any:
    """Keras over that backend, which it takes from the environment when it is imported and never changes."""
    os.environ["KERAS_BACKEND"] = backend
    keras: Any = importlib.import_module("keras")
    if keras.config.backend() != backend:
        raise Unavailable(
            f"Keras is to run on {backend}",
            found=f"this process has imported it on {keras.config.backend()}",
            remedy="use a process of its own for each",
        )
    return keras


class KerasTraining(Training):
    """`model.fit` on images in NHWC, as Keras has them by default; one call for each epoch, in the order that is given."""

    def __init__(self, keras: Any, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> None:
        self._keras = keras
        # One batch after another lies in memory as it is trained on: Keras cuts arrays, it does not gather.
        self._images_NHWC = np.ascontiguousarray(images_NCHW.transpose(0, 2, 3, 1))
        self._labels_N = np.asarray(labels_N, dtype=np.int64)
        keras.utils.set_random_seed(task.seed)
        keras.config.set_dtype_policy("mixed_bfloat16" if task.mode == "mixed" else "float32")
        self._model = _network(keras, task)
        self._flattened_HWC = tuple(int(side) for side in self._model.get_layer("conv3").output.shape[1:])
        self._model.compile(
            optimizer=keras.optimizers.Adam(learning_rate=task.lr, epsilon=ADAM_EPSILON),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=task.mode == "compiled",
        )
        self._model.optimizer.build(self._model.trainable_variables)

    def epoch(self, order_N: NDArray[np.int64], sizes: Sequence[int], progress: ProgressCallback) -> float:
        images_NHWC, labels_N = self._images_NHWC[order_N], self._labels_N[order_N]
        total, start = 0.0, 0
        for batch, n in _runs(sizes):
            part = slice(start, start + n)
            fitted = self._model.fit(
                images_NHWC[part],
                labels_N[part],
                batch_size=batch,
                epochs=1,
                shuffle=False,
                verbose=0,
                callbacks=[_teller(self._keras, progress, start, batch, len(order_N))],
            )
            total += n * float(fitted.history["loss"][-1])
            start += n
        return total / len(order_N)

    def logits(self, images_NCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        images_NHWC = np.ascontiguousarray(images_NCHW.transpose(0, 2, 3, 1))
        answer = self._model.predict(images_NHWC, batch_size=PREDICT_BATCH, verbose=0)
        return np.asarray(answer, dtype=np.float32)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        found = {variable.path: self._numpy(variable) for variable in self._model.trainable_variables}
        return twin_weights(found, self._flattened_HWC)

    def state(self) -> bytes:
        arrays = {f"v{i}": self._numpy(variable) for i, variable in enumerate(self._variables())}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        variables = self._variables()
        try:
            with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
                if len(arrays.files) != len(variables):
                    raise ValueError(f"{len(arrays.files)} arrays for {len(variables)} variables")
                for i, variable in enumerate(variables):
                    variable.assign(arrays[f"v{i}"])
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            found = " ".join(str(error).split())[:200]
            raise TrainingError("the saved state is not of this training", found=found, remedy="train from the start") from error

    def device_peak_bytes(self) -> int | None:
        if self._keras.config.backend() == "torch":
            torch = sys.modules["torch"]
            return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None
        tf = sys.modules["tensorflow"]
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if tf.config.get_visible_devices("GPU") else None

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._model.optimizer.variables]

    def _numpy(self, variable: Any) -> NDArray[Any]:
        array: NDArray[Any] = self._keras.ops.convert_to_numpy(variable)
        return array


def _network(keras: Any, task: Task) -> Any:
    """`mnist_cnn`, normalisation inside: uint8 pixels (N, H, W, C) to float32 logits (N, K)."""
    c1, c2, c3, d1 = mnist_cnn_sizes(task.width)
    channels, height, width = task.shape_CHW
    scale = [1 / (255 * std) for std in task.preprocessing.std]
    offset = [-mean / std for mean, std in zip(task.preprocessing.mean, task.preprocessing.std, strict=True)]
    layers = keras.layers
    begin = {"kernel_initializer": "glorot_uniform", "bias_initializer": "zeros"}

    def convolution(filters: int, name: str) -> Any:
        return layers.Conv2D(filters, 3, activation="relu", data_format="channels_last", name=name, **begin)

    def pooling() -> Any:
        return layers.MaxPooling2D(2, data_format="channels_last")

    return keras.Sequential(
        [
            keras.Input((height, width, channels), dtype="uint8"),
            layers.Rescaling(scale if channels > 1 else scale[0], offset if channels > 1 else offset[0]),
            convolution(c1, "conv1"),
            pooling(),
            convolution(c2, "conv2"),
            pooling(),
            convolution(c3, "conv3"),
            layers.Flatten(data_format="channels_last"),
            layers.Dense(d1, activation="relu", name="dense1", **begin),
            layers.Dense(task.n_classes, name="dense2", dtype="float32", **begin),
        ]
    )


def twin_weights(found: Mapping[str, NDArray[Any]], flattened_HWC: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    """Keras's parameters by path (`.../conv1/kernel`) as the PyTorch twin names and lays them out.

    Keras keeps convolutions as HWIO and dense layers as (in, out), PyTorch as OIHW and (out, in). Keras flattens (H, W, C),
    PyTorch (C, H, W): the inputs of the first dense layer change their order too.

    Args:
        flattened_HWC: shape of what the first dense layer gets, before it is flattened.
    """
    by_layer = {tuple(path.split("/")[-2:]): np.asarray(array, dtype=np.float32) for path, array in found.items()}
    dense_IO = by_layer["dense1", "kernel"]
    dense_OCHW = dense_IO.reshape(*flattened_HWC, -1).transpose(3, 2, 0, 1)
    moved = {
        "features.0.weight": by_layer["conv1", "kernel"].transpose(3, 2, 0, 1),
        "features.0.bias": by_layer["conv1", "bias"],
        "features.3.weight": by_layer["conv2", "kernel"].transpose(3, 2, 0, 1),
        "features.3.bias": by_layer["conv2", "bias"],
        "features.6.weight": by_layer["conv3", "kernel"].transpose(3, 2, 0, 1),
        "features.6.bias": by_layer["conv3", "bias"],
        "classifier.0.weight": dense_OCHW.reshape(len(dense_OCHW), -1),
        "classifier.0.bias": by_layer["dense1", "bias"],
        "classifier.2.weight": by_layer["dense2", "kernel"].T,
        "classifier.2.bias": by_layer["dense2", "bias"],
    }
    return {name: np.ascontiguousarray(array) for name, array in moved.items()}


def _runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(batch size, images) of the calls of `fit` that give just these batches: all alike, then a last one of another size.

    A last batch that is smaller is what `fit` makes by itself; a larger one takes a call of its own.
    """
    *most, last = sizes
    if not most or last <= most[0]:
        return [(sizes[0], sum(sizes))]
    return [(most[0], sum(most)), (last, last)]


def _teller(keras: Any, progress: ProgressCallback, start: int, batch: int, total: int) -> Any:
    class Teller(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch_index: int, logs: object = None) -> None:
            if batch_index % _TELL_EVERY == 0:
                progress(Progress(done=min(total, start + (batch_index + 1) * batch), total=total, unit="images"))

    return Teller()
