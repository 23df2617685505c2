"""CASES P7: two graphs on which top-1 agreement looks perfect and the logits are wrong, run and judged as artifacts are.

One always answers the same class on noise, so any broken copy agrees; one is scaled, so that every answer stays and no number does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploycnn.data import DataSet
from deploycnn.graph import Runner
from deploycnn.recipe import ValidateOptions
from deploycnn.record import Accuracy
from deploycnn.validate.accuracy import judge

TOLERANCE = ValidateOptions().logit_tolerance


def toy(folder: Path, name: str, kernel: np.ndarray, dense: np.ndarray, bias: np.ndarray) -> Path:
    """pixels, Cast, Conv (kernel), ReLU, average pool, dense: 3x32x32 to 10 logits."""
    constants = {"kernel": kernel, "dense": dense, "bias": bias}
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["pixels"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "dense", "bias"], ["logits"], transB=1),
        ],
        name,
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(values.astype(np.float32), key) for key, values in constants.items()],
    )
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def logits(path: Path, x_NCHW: np.ndarray) -> np.ndarray:
    with Runner(path, "a toy") as runner:
        return runner.logits(x_NCHW, 50)


def judged(mine: Path, reference: Path, x_NCHW: np.ndarray, labels_N: np.ndarray, tolerance: float | None = TOLERANCE) -> Accuracy:
    classes = tuple("abcdefghij")
    return judge(
        logits(mine, x_NCHW), logits(reference, x_NCHW), labels_N, classes, ValidateOptions(max_drop_pp=100), logit_tolerance=tolerance
    )


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"kernel": rng.normal(0, 0.1, (16, 3, 3, 3)), "dense": rng.normal(0, 1, (10, 16)), "bias": np.zeros(10)}


@pytest.mark.parametrize("tolerance", [TOLERANCE, None])
def test_one_answer_to_noise_agrees_with_every_broken_copy(tmp_path: Path, weights: dict[str, np.ndarray], tolerance: float | None) -> None:
    """Average pooling makes all noise images the same, so one class wins always; the broken copy has other kernels altogether."""
    rng = np.random.default_rng(5)
    noise_NCHW, labels_N = rng.integers(0, 256, (500, 3, 32, 32), dtype=np.uint8), np.arange(500) % 10
    right = toy(tmp_path, "right", **weights)
    winner = int(logits(right, noise_NCHW)[0].argmax())
    broken_kernel = rng.normal(0, 0.1, (16, 3, 3, 3))
    lift = np.zeros(10)
    lift[winner] = 1000
    broken = toy(tmp_path, "broken", broken_kernel, weights["dense"], lift)
    found = judged(broken, right, noise_NCHW, labels_N, tolerance)
    assert found.agreement == 1.0
    assert found.relative_logit_error > 0.5
    assert found.verdict.state != "pass"
    assert found.verdict.remedy


@pytest.mark.parametrize("kind", ["scaled", "shifted"])
def test_every_answer_stays_on_real_images_and_no_logit_does(
    kind: str, tmp_path: Path, weights: dict[str, np.ndarray], small_dataset: DataSet
) -> None:
    """A forgotten scale or offset in the last layer changes no top-1; class-diverse images alone do not show it, logits do."""
    test = small_dataset.test
    x_NCHW = np.ascontiguousarray(test.images_NCHW)
    values = logits(toy(tmp_path, "first", **weights), x_NCHW)
    weights["bias"] = -values.mean(axis=0)  # answers of several classes
    right = toy(tmp_path, "right", **weights)
    assert len(np.unique(logits(right, x_NCHW).argmax(axis=1))) > 2
    scaled = {**weights, "dense": 3 * weights["dense"], "bias": 3 * weights["bias"]}
    changed = {"scaled": scaled, "shifted": {**weights, "bias": weights["bias"] + 50}}[kind]
    found = judged(toy(tmp_path, kind, **changed), right, x_NCHW, test.labels_N)
    assert found.agreement == 1.0
    assert not found.right_to_wrong
    assert found.verdict.state == "fail"
    assert "logit error" in found.verdict.reason
    same = judged(toy(tmp_path, "same", **weights), right, x_NCHW, test.labels_N)
    assert same.relative_logit_error == 0
    assert "logit error" not in same.verdict.reason
