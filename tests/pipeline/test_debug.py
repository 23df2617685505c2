"""`debug`: node by node, in processes as a user runs it; what cannot be looked at says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from deploycnn.data import DataSet
from deploycnn.graph import Runner, common_tensors, exposing, graph_facts, load_graph, parted
from deploycnn.recordfile import read_record
from deploycnn.types import Variant
from deploycnn.validate.nodes import figures

SETTINGS = [
    "data.name=synthetic10",
    "data.train=1500",
    "data.test=400",
    "data.validation=200",
    "data.calibration=100",
    "train.epochs=1",
    "backends={torch: {}, onnxruntime: {}, tvm: {minutes: 0.15, precisions: [fp32]}, 'null': {}}",
    "precisions=[fp32, fp16, int8]",
    "targets=[cpu, 'cuda:sm89']",
    "measure.batches=[1]",
    "measure.budget_s=1",
    "measure.processes=1",
    "measure.min_rounds=2",
    "validate.max_drop_pp=20",
    "validate.calibration_seeds=0",
]


def called(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEPLOYCNN_CACHE": str(cache), "COLUMNS": "80"}
    command = [sys.executable, "-m", "deploycnn.pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(folder of a run, its cache)."""
    cache, out = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("run") / "run"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    said = called(cache, "run", *settings, "--out", str(out))
    assert said.returncode == 0, said.stderr
    return out, cache


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime/fp32/cpu", "onnxruntime/fp16/cpu", "onnxruntime/int8/cpu", "tvm/fp32/cpu"])
def test_every_node_is_in_a_table_of_80_columns_and_a_chart(run: tuple[Path, Path], name: str) -> None:
    out, cache = run
    said = called(cache, "debug", str(out), "--artifact", name)
    assert said.returncode == 0, said.stderr
    assert "No node is beyond the tolerance" in said.stdout
    table = (out / "debug" / f"{name.replace('/', '-')}.txt").read_text()
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("Gemm") == (1 if "int8" in name else 3), "an int8 file has ReLU folded into the layer before it"
    assert "as built, everything fused: relative logit error" in " ".join(table.split())
    assert (out / "debug" / f"{name.replace('/', '-')}.svg").read_text().startswith("<svg")
    gemm = next(line.split() for line in table.splitlines() if " Gemm " in line)
    assert "-" not in gemm[3:5], "both the file and the artifact are known"


@pytest.mark.slow
def test_a_tighter_tolerance_names_the_first_node_beyond_it(run: tuple[Path, Path]) -> None:
    out, cache = run
    said = called(cache, "debug", str(out), "--artifact", "onnxruntime/int8/cpu", "--tolerance", "0.0001")
    assert said.returncode == 0, said.stderr
    marked = [line for line in said.stdout.splitlines() if line.startswith("> ")]
    assert marked
    words = " ".join(said.stdout.split())
    assert "The first node beyond a relative error of 0.0001 is" in words


@pytest.mark.slow
def test_a_backend_that_shows_no_tensors_says_so_and_its_logits_are_compared(run: tuple[Path, Path]) -> None:
    out, cache = run
    said = called(cache, "debug", str(out), "--artifact", "torch/fp32/cpu")
    assert said.returncode == 0, said.stderr
    words = " ".join(said.stdout.split())
    assert "shows no tensors of its own" in words
    assert "as built, everything fused" in words


@pytest.mark.slow
def test_a_deferred_cell_shows_its_file_and_what_it_waits_for(run: tuple[Path, Path]) -> None:
    out, cache = run
    said = called(cache, "debug", str(out), "--artifact", "null/int8/cuda:sm89")
    assert said.returncode == 6, said.stderr
    assert "it cannot run here" in " ".join(said.stdout.split())
    assert "Gemm" in said.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("onnxruntime/int9/cpu", ("has no artifact 'onnxruntime/int9/cpu'", "did you mean onnxruntime/int8/cpu?")),
        ("torch/int8/cpu", ("was never built", "skipped: ")),
    ],
)
def test_what_is_no_artifact_is_one_readable_error(run: tuple[Path, Path], name: str, words: tuple[str, ...]) -> None:
    out, cache = run
    said = called(cache, "debug", str(out), "--artifact", name)
    assert said.returncode == 5
    assert "Traceback" not in said.stderr
    assert all(word in said.stderr for word in words), said.stderr


@pytest.mark.slow
def test_a_pruned_cache_is_named_and_files_of_the_run_itself_are_enough(run: tuple[Path, Path], tmp_path: Path) -> None:
    out, _ = run
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    (lonely / "record.json").write_bytes((out / "record.json").read_bytes())
    said = called(tmp_path / "empty", "debug", str(lonely), "--artifact", "onnxruntime/int8/cpu")
    assert said.returncode == 5
    assert "no file with digest" in said.stderr
    assert read_record(out).model.graph_sha256[:12] in said.stderr
    said = called(tmp_path / "empty", "debug", str(out), "--artifact", "onnxruntime/int8/cpu")
    assert said.returncode == 0, said.stderr


def test_a_folder_that_is_no_run_is_said_so(tmp_path: Path) -> None:
    said = called(tmp_path / "cache", "debug", str(tmp_path), "--artifact", "onnxruntime/int8/cpu")
    assert said.returncode == 5
    assert "holds no record.json" in said.stderr


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_a_fault_planted_in_any_layer_is_found_there(lenet_graph: Variant, small_dataset: DataSet, place: int) -> None:
    model, broken = load_graph(lenet_graph.onnx_path), load_graph(lenet_graph.onnx_path)
    layer = graph_facts(model).weighted_ops[place].name
    node = next(node for node in broken.graph.node if node.name == layer)
    weight = next(tensor for tensor in broken.graph.initializer if tensor.name == node.input[1])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.1), weight.name))
    tensors = common_tensors(model, broken)
    x_NCHW = np.ascontiguousarray(small_dataset.test.images_NCHW[:16])
    sides = []
    for graph in (model, broken):
        with Runner(exposing(graph, tensors), "exposing") as runner:
            sides.append(parted(runner.logits(x_NCHW, 16), tensors))
    rows = [
        figures((one.node, one.op, one.tensor), reference, found, None, "fp32", None)
        for one, reference, found in zip(tensors, *sides, strict=True)
    ]
    assert next(row.node for row in rows if row.error > 1e-3) == layer
