"""int8-qat: the network goes on training while it is rounded; the file has the form of any int8 and is no worse."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from deploycnn.errors import PrecisionError
from deploycnn.graph import describe_quantisation, graph_facts, load_graph
from deploycnn.pipeline.fine_tuning import fine_tuned
from deploycnn.recordfile import read_record
from deploycnn.types import Int8Form

SETTINGS = [
    "data.name=synthetic10",
    "data.train=4000",
    "data.test=1000",
    "data.validation=300",
    "data.calibration=100",
    "train.epochs=8",
    "train.lr=0.05",
    "qat.epochs=2",
    "backends=[torch, onnxruntime]",
    "precisions=[fp32, int8, int8-qat]",
    "targets=[cpu]",
    "measure.batches=[1]",
    "measure.budget_s=1",
    "measure.processes=1",
    "measure.min_rounds=2",
    "validate.max_drop_pp=20",
    "validate.calibration_seeds=0",
]
NOISE_PP = 3.0  # of the difference of two networks on 1,000 images


def int8_weights(path):
    tensors = [tensor for tensor in load_graph(path).graph.initializer if tensor.data_type == TensorProto.INT8 and len(tensor.dims) > 1]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def test_without_a_network_to_train_it_says_what_to_do(context_with, small_graph, small_images):
    with pytest.raises(PrecisionError, match="ONNX file") as caught:
        fine_tuned(context_with(), small_graph, small_images, Int8Form.CPU_U8S8)
    assert "int8-auto" in caught.value.remedy


def test_without_a_form_it_is_refused(context_with, small_graph, small_images, tmp_path):
    graph = type(small_graph)(variant=small_graph.variant, facts=small_graph.facts, reused=(), checkpoint=tmp_path / "x")
    with pytest.raises(PrecisionError, match="no int8 form"):
        fine_tuned(context_with(), graph, small_images, None)


@pytest.mark.slow
def test_from_a_recipe_to_an_artifact_that_is_no_worse_than_plain_int8(tmp_path):
    cache, out = tmp_path / "cache", tmp_path / "run"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "deploycnn.pipeline", "run", *settings, "--out", str(out)]
    environment = {**os.environ, "DEPLOYCNN_CACHE": str(cache), "COLUMNS": "80"}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert said.returncode == 0, said.stderr
    assert "fine-tuned while rounded" in said.stderr
    record = read_record(out)
    plain, tuned = (record.cell(f"onnxruntime/{precision}/cpu") for precision in ("int8", "int8-qat"))
    assert (plain.outcome.state, tuned.outcome.state) == ("done", "done")
    assert tuned.evidence.state == "pass"
    assert {layer.precision for layer in tuned.ran.layers} == {"int8"}
    assert plain.accuracy.top1.value > 0.3, "it has learnt something that can be lost"
    print(f"synthetic10, 1,000 test images: int8 {plain.accuracy.top1.value:.2%}, int8-qat {tuned.accuracy.top1.value:.2%}")
    assert tuned.accuracy.top1.value >= plain.accuracy.top1.value - NOISE_PP / 100

    files = {cell.precision: next((out / cell.folder).glob("*.onnx")) for cell in (plain, tuned)}
    facts = {precision: graph_facts(path) for precision, path in files.items()}
    assert facts["int8-qat"].quantised_macs_share == 1.0
    kinds = [sorted(node.op_type for node in load_graph(path).graph.node) for path in files.values()]
    assert kinds[0] == kinds[1], "the same Q/DQ form"
    forms = [[(tensor.dtype, tensor.symmetric, tensor.per_channel) for tensor in describe_quantisation(path)] for path in files.values()]
    assert forms[0] == forms[1]
    weights = [int8_weights(path) for path in files.values()]
    assert weights[0].keys() == weights[1].keys()
    assert any(not np.array_equal(weights[0][name], weights[1][name]) for name in weights[0]), "the weights were trained"
