"""`recommend` as a user calls it: from a record alone, quickly, with an exit code that a script can use."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deploycnn.environment import environment
from deploycnn.errors import EXIT_BAD_INPUT, EXIT_NOTHING_TO_SHIP, EXIT_OK, EXIT_USAGE
from deploycnn.record import Accuracy, Cell, ClassAccuracy, DataFacts, Latency, ModelFacts, Record
from deploycnn.recordfile import write_record
from deploycnn.types import Deferred, Done, Interval, Skipped, Target, Verdict

PASS = Verdict(state="pass", reason="as asked")


def interval(value):
    return Interval(value=value, low=value * 0.99, high=value * 1.01)


def cell(backend, precision, p50_s, loss, **changes):
    latency = Latency(
        batch=1,
        threads=1,
        samples="none",
        n_samples=4000,
        n_blocks=40,
        n_rounds=20,
        n_processes=2,
        p50_s=interval(p50_s),
        p90_s=interval(p50_s * 1.1),
        p95_s=interval(p50_s * 1.2),
        p99_s=interval(p50_s * 2),
        p999_s=None,
        mean_s=p50_s,
        min_s=p50_s,
        max_s=p50_s * 3,
        images_per_s=interval(1 / p50_s),
        outliers=0,
        noisy=False,
    )
    accuracy = Accuracy(
        n_images=10000,
        top1=interval(0.7),
        reference_top1=0.7,
        drop=Interval(value=loss, low=loss - 0.001, high=loss + 0.001, confidence=0.9),
        agreement=0.99,
        right_to_wrong=(1,) if loss else (),
        wrong_to_right=(),
        per_class=(ClassAccuracy(name="cat", n_images=10000, top1=0.7, reference_top1=0.7),),
        relative_logit_error=0.0,
        max_logit_error=0.0,
        nonfinite_images=0,
        mean_confidence=0.8,
        reference_mean_confidence=0.8,
        ece=0.05,
        reference_ece=0.05,
        verdict=PASS,
    )
    values = {"outcome": Done(), "evidence": PASS, "accuracy": accuracy, "latencies": (latency,), "target": Target(device="cpu")}
    return Cell(backend=backend, precision=precision, **(values | changes))


@pytest.fixture
def run_folder(tmp_path):
    sizes = {"n_train": 1, "n_validation": 1, "n_calibration": 1, "n_test": 10000}
    images = {"name": "cifar10", "asked": "cifar10", "source": "disk", "official": True, "sha256": "2" * 64}
    gpu = {"target": Target.parse("cuda:sm89"), "latencies": (), "accuracy": None}
    cells = (
        cell("torch", "fp32", 1e-3, 0.0),
        cell("onnxruntime", "int8", 1e-4, 0.004),
        cell("tensorrt", "int8", 1e-5, 0.0, outcome=Deferred(waits_for="an sm89 GPU"), **gpu),
        cell("openvino", "int8", 1e-5, 0.0, outcome=Skipped(reason="no CUDA device"), **gpu),
    )
    record = Record(
        deploycnn_version="0.1.0",
        created="2026-11-30T12:00:00+00:00",
        command="deploycnn run",
        recipe={"validate": {"max_drop_pp": 1.0}, "recommend": {"objective": "latency"}},
        data=DataFacts(**images, classes=("cat",), shape_CHW=(3, 32, 32), **sizes),
        model=ModelFacts(name="lenet", parameters=1, source="trained", checkpoint_sha256=None, graph_sha256="1" * 64),
        environments={environment().id: environment()},
        reference="torch/fp32/cpu",
        cells=cells,
    )
    write_record(tmp_path, record)
    return tmp_path


def call(*arguments):
    variables = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "deploycnn.pipeline", "recommend", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        ((), EXIT_OK, "Ship onnxruntime/int8/cpu"),
        (("--max-drop-pp", "0.4"), EXIT_OK, "Ship torch/fp32/cpu"),
        (("--p99-ms", "0.15"), EXIT_NOTHING_TO_SHIP, "the nearest is onnxruntime/int8/cpu"),
        (("--p99-ms", "1.5", "--max-drop-pp", "0.1"), EXIT_NOTHING_TO_SHIP, "the nearest is torch/fp32/cpu"),
        (("--memory-mb", "5000"), EXIT_NOTHING_TO_SHIP, "memory is not known"),
    ],
)
def test_limits_decide_again(run_folder, limits, code, said):
    answer = call(run_folder, *limits)
    assert answer.returncode == code, answer.stderr
    assert said in " ".join(answer.stdout.split())
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "an sm89 GPU" in answer.stdout
    assert "Traceback" not in answer.stderr


def test_json_is_the_decision(run_folder):
    answer = call(run_folder / "record.json", "--json", "--objective", "throughput")
    document = json.loads(answer.stdout)
    assert (document["ship"], document["objective"], document["batch"]) == ("onnxruntime/int8/cpu", "throughput", 1)
    assert [candidate["cell"] for candidate in document["candidates"]][:2] == ["onnxruntime/int8/cpu", "torch/fp32/cpu"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--batch", "7"), EXIT_USAGE, ("batch 7", "measured: 1")),
        (("--p99-ms", "-1"), EXIT_USAGE, ("--p99-ms", "greater than 0")),
        (("--objective", "speed"), EXIT_USAGE, ("--objective", "latency")),
        (("--max-drop-pp", "-3"), EXIT_USAGE, ("--max-drop-pp", "percentage points")),
        (("--p99", "3"), EXIT_USAGE, ("--p99",)),
    ],
)
def test_what_cannot_be_meant_is_one_message(run_folder, arguments, code, words):
    answer = call(run_folder, *arguments)
    assert answer.returncode == code
    assert "Traceback" not in answer.stderr
    for word in words:
        assert word in answer.stderr


def test_no_record_is_bad_input(tmp_path):
    answer = call(tmp_path)
    assert answer.returncode == EXIT_BAD_INPUT
    assert "record.json" in answer.stderr


def test_no_tensor_library_is_loaded(run_folder):
    code = (
        "import sys; sys.argv = ['deploycnn', 'recommend', sys.argv[1]]\n"
        "from deploycnn.pipeline.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'tvm', 'scipy', 'PIL'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(run_folder)], capture_output=True, text=True, timeout=120)
    assert answer.stdout.splitlines()[-1] == "[]", answer.stderr
