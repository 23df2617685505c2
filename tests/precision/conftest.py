from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploycnn.data import DataSet
from deploycnn.types import TensorSpec, Variant

CLASSES = ("ant", "bee", "cat", "dog", "emu")


@pytest.fixture(scope="session")
def calibration_NCHW(small_dataset: DataSet) -> np.ndarray:
    """64 images of 3x32x32."""
    return np.ascontiguousarray(small_dataset.train.images_NCHW[:64])


Middle = list[tuple[str, dict[str, object], dict[str, np.ndarray]]]
MakeVariant = Callable[..., Variant]


@pytest.fixture
def variant_with(tmp_path: Path) -> MakeVariant:
    """Makes an fp32 variant of a small network, with nodes of the test's choice between convolution and ReLU.

    pixels, Cast, Sub, Conv 8 (3x3, stride 2), `middle`, ReLU, GlobalAveragePool, Flatten, Gemm: 3x32x32 to 5 logits.
    `middle` is a list of (operator, attributes, further inputs by name).
    """

    def make(middle: Middle = (), *, weight_std: float = 0.005, batch: int | str = "batch") -> Variant:  # type: ignore[assignment]
        rng = np.random.default_rng(4)
        constants = {
            "shift": np.full((1, 3, 1, 1), 120.0),
            "w1": rng.normal(0, weight_std, (8, 3, 3, 3)),
            "b1": rng.normal(0, 0.3, 8),
            "w2": rng.normal(0, 0.5, (5, 8)),
            "b2": rng.normal(0, 0.3, 5),
        }
        nodes = [
            helper.make_node("Cast", ["pixels"], ["float"], name="to_float", to=TensorProto.FLOAT),
            helper.make_node("Sub", ["float", "shift"], ["shifted"], name="shift_pixels"),
            helper.make_node("Conv", ["shifted", "w1", "b1"], ["conv_out"], name="conv", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        ]
        x = "conv_out"
        for index, (op, attributes, inputs) in enumerate(middle):
            constants |= inputs
            nodes.append(helper.make_node(op, [x, *inputs], [f"middle{index}"], name=f"{op.lower()}_{index}", **attributes))
            x = f"middle{index}"
        nodes += [
            helper.make_node("Relu", [x], ["relu_out"], name="relu"),
            helper.make_node("GlobalAveragePool", ["relu_out"], ["pooled"], name="pool"),
            helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
            helper.make_node("Gemm", ["flat", "w2", "b2"], ["logits"], name="dense", transB=1),
        ]
        initializers = [
            numpy_helper.from_array(values if values.dtype.kind == "i" else values.astype(np.float32), name)
            for name, values in constants.items()
        ]
        graph = helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("pixels", TensorProto.UINT8, [batch, 3, 32, 32])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 5])],
            initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        onnx.checker.check_model(model, full_check=True)
        path = tmp_path / "graph.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        return Variant(
            precision="fp32",
            onnx_path=path,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 32, 32)),
            output_name="logits",
            classes=CLASSES,
            fixed_batch=batch if isinstance(batch, int) else None,
        )

    return make
