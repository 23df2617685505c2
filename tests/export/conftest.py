from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploycnn.types import Preprocessing

SHAPE_CHW = (3, 16, 16)
CLASSES = ("ant", "bee", "cat", "dog", "emu")
PREPROCESSING = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))


def pictures(count: int, shape_CHW: tuple[int, int, int] = SHAPE_CHW, seed: int = 0) -> np.ndarray:
    """Smooth blobs of different colours on different backgrounds, uint8: more like photographs than noise is."""
    rng = np.random.default_rng(seed)
    channels, height, width = shape_CHW
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    images = np.empty((count, *shape_CHW))
    for image in images:
        image[:] = rng.uniform(0, 255, (channels, 1, 1))
        for _ in range(3):
            blob = np.exp(-((x - rng.uniform()) ** 2 + (y - rng.uniform()) ** 2) / rng.uniform(0.005, 0.1))
            image += blob * (rng.uniform(0, 255, (channels, 1, 1)) - image)
    return np.clip(images + rng.normal(0, 4, images.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def sample_NCHW() -> np.ndarray:
    return pictures(65)


def normalised(x_NCHW: np.ndarray) -> np.ndarray:
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in (PREPROCESSING.mean, PREPROCESSING.std))
    return ((x_NCHW / 255 - mean) / std).astype(np.float32)


MakeGraph = Callable[..., onnx.ModelProto]


@pytest.fixture
def make_graph() -> MakeGraph:
    return user_graph


def user_graph(
    *,
    batch: int | str = "N",
    layout: str = "NCHW",
    dtype: int = TensorProto.FLOAT,
    tail: str = "",
    opset: int = 17,
    ir_version: int = 8,
    n_classes: int = 5,
    flatten: str = "Flatten",
    names: tuple[str, str] = ("input", "output"),
    size: int = 16,
) -> onnx.ModelProto:
    """A classifier as users bring it: conv 8 (3x3, padded), ReLU, 2x2 max pool, flatten, dense.

    `flatten` is Flatten, or a Reshape to constant sizes: "reshape-batch" ([batch, D]) or "reshape-copy" ([0, D]).
    `tail` is "", Softmax, LogSoftmax, ArgMax or 4d (logits of shape (N, K, 1, 1)).
    """
    rng = np.random.default_rng(1)
    features = 8 * (size // 2) ** 2
    constants = {
        "w1": rng.normal(0, 0.3, (8, 3, 3, 3)),
        "b1": rng.normal(0, 0.3, 8),
        "w2": rng.normal(0, 1 / np.sqrt(features), (features, n_classes)),
        "b2": rng.normal(0, 0.3, n_classes),
    }
    initializers = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items()]
    first, last = names
    nodes = []
    x = first
    if dtype == TensorProto.UINT8:
        nodes.append(helper.make_node("Cast", [x], ["float"], to=TensorProto.FLOAT))
        initializers.append(numpy_helper.from_array(np.array(1 / 255, np.float32), "scale"))
        nodes.append(helper.make_node("Mul", ["float", "scale"], ["scaled"]))
        x = "scaled"
    if layout == "NHWC":
        nodes.append(helper.make_node("Transpose", [x], ["nchw"], perm=[0, 3, 1, 2]))
        x = "nchw"
    nodes.append(helper.make_node("Conv", [x, "w1", "b1"], ["conv"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", ["conv"], ["relu"]))
    nodes.append(helper.make_node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]))
    if flatten == "Flatten":
        nodes.append(helper.make_node("Flatten", ["pool"], ["flat"], axis=1))
    else:
        sizes = [4 if batch == "N" else batch, -1] if flatten == "reshape-batch" else [0, features]
        initializers.append(numpy_helper.from_array(np.array(sizes, np.int64), "sizes"))
        nodes.append(helper.make_node("Reshape", ["pool", "sizes"], ["flat"]))
    nodes.append(helper.make_node("Gemm", ["flat", "w2", "b2"], ["gemm"]))
    out_type, out_shape = TensorProto.FLOAT, [batch, n_classes]
    if tail == "ArgMax":
        nodes.append(helper.make_node("ArgMax", ["gemm"], [last], axis=1, keepdims=0))
        out_type, out_shape = TensorProto.INT64, [batch]
    elif tail == "4d":
        initializers.append(numpy_helper.from_array(np.array([-1, n_classes, 1, 1], np.int64), "sizes4"))
        nodes.append(helper.make_node("Reshape", ["gemm", "sizes4"], [last]))
        out_shape = [batch, n_classes, 1, 1]
    elif tail:
        nodes.append(helper.make_node(tail, ["gemm"], [last], axis=1))
    else:
        nodes[-1].output[0] = last
    in_shape = [batch, 3, size, size] if layout == "NCHW" else [batch, size, size, 3]
    graph = helper.make_graph(
        nodes,
        "user",
        [helper.make_tensor_value_info(first, dtype, in_shape)],
        [helper.make_tensor_value_info(last, out_type, out_shape)],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    """Writes a model to a file of its own."""

    def save(model: onnx.ModelProto, name: str = "user.onnx") -> Path:
        path = tmp_path / "given" / name
        path.parent.mkdir(exist_ok=True)
        onnx.save(model, str(path))
        return path

    return save
