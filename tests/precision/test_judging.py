"""What a search remembers of its judgements: asked once, kept on disk, gone on with, asked again where the file is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploycnn.graph import load_graph
from deploycnn.precision._judging import MEMORY, Judge, Judgement, Memory
from deploycnn.recipe import ValidateOptions
from deploycnn.types import Variant
from deploycnn.validate.accuracy import judge

ANSWER = Judgement(drop=0.01, flips=0.02, agreement=0.98, relative_logit_error=0.03, int8_share=1)


class Asked:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, model: onnx.ModelProto) -> Judgement:
        self.times += 1
        return ANSWER


def other(model: onnx.ModelProto) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.node[-1].name = "another"
    return changed


@pytest.mark.parametrize("kept", [True, False])
def test_the_same_graph_is_judged_once(kept: bool, lenet_graph: Variant, tmp_path: Path) -> None:
    model, asked = load_graph(lenet_graph.onnx_path), Asked()
    memory = Memory(tmp_path if kept else None)
    assert [memory.ask(graph, asked) for graph in (model, model, other(model), model)] == [ANSWER] * 4
    assert (asked.times, len(memory)) == (2, 2)
    assert (tmp_path / MEMORY).exists() == kept


def test_a_search_that_was_stopped_goes_on_with_what_it_knew(lenet_graph: Variant, tmp_path: Path) -> None:
    model, asked = load_graph(lenet_graph.onnx_path), Asked()
    Memory(tmp_path).ask(model, asked)
    again = Memory(tmp_path)
    assert len(again) == 1
    assert again.ask(model, asked) == ANSWER
    assert asked.times == 1
    again.ask(other(model), asked)
    assert asked.times == 2
    assert len(Memory(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "list", "field", "bytes"])
def test_a_damaged_file_is_asked_again_and_replaced(damage: str, lenet_graph: Variant, tmp_path: Path) -> None:
    model, asked = load_graph(lenet_graph.onnx_path), Asked()
    Memory(tmp_path).ask(model, asked)
    path = tmp_path / MEMORY
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "empty": b"",
            "list": b"[1, 2]",
            "field": content.replace(b"flips", b"flops"),
            "bytes": b"\xff\xfe\x00",
        }[damage]
    )
    memory = Memory(tmp_path)
    assert len(memory) == 0
    assert memory.ask(model, asked) == ANSWER
    assert asked.times == 2
    assert len(Memory(tmp_path)) == 1


def test_with_labels_the_loss_is_counted_and_without_it_is_expected(lenet_graph: Variant, calibration_NCHW: np.ndarray) -> None:
    model = load_graph(lenet_graph.onnx_path)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in changed.graph.initializer}
    last = weights[changed.graph.node[-1].input[2]]
    values = onnx.numpy_helper.to_array(last).copy()
    values[4] += 100  # every image becomes class 4
    last.CopyFrom(onnx.numpy_helper.from_array(values, last.name))
    labels_N = np.full(len(calibration_NCHW), 4)
    labels_N[0] = 3
    classes = tuple("abcdefghij")

    judged = Judge(model, calibration_NCHW, None, lambda mine, ref: judge(mine, ref, labels_N, classes, ValidateOptions()))(changed)
    blind = Judge(model, calibration_NCHW, None)(changed)
    assert judged.drop < 0, "nearly all become right"
    assert judged.flips <= 1 / len(labels_N)
    assert blind.drop >= 0, "another class than the reference's is never expected to be better"
    assert blind.flips == pytest.approx(1 - blind.agreement)
    assert judged.agreement == blind.agreement
    assert Judge(model, calibration_NCHW, None)(model).within(0, 0)
