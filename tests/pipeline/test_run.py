"""Whole runs: small images, few epochs, real backends and the null backend's faults; in processes as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import jsonschema
import pytest

from deploycnn.recordfile import read_record, record_schema

SMALL = [
    "data.name=synthetic10",
    "data.train=1500",
    "data.test=400",
    "data.validation=200",
    "data.calibration=100",
    "train.epochs=2",
    "targets=[cpu]",
    "measure.budget_s=4",
    "measure.batches=[1, 8]",
    "measure.processes=1",
    "measure.min_rounds=4",
    "validate.max_drop_pp=20",
    "validate.calibration_seeds=2",
]


def settings(*values: str) -> list[str]:
    return [part for value in (*SMALL, *values) for part in ("--set", value)]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for all runs of this file: training happens once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache, tmp_path):
    def call(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DEPLOYCNN_CACHE": str(cache), "COLUMNS": "80"}
        command = [sys.executable, "-m", "deploycnn.pipeline", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=timeout)

    return call


@pytest.fixture(scope="session")
def whole(cache, tmp_path_factory):
    """One whole run over torch and onnxruntime; (finished process, folder)."""
    out = tmp_path_factory.mktemp("whole") / "run"
    environment = {**os.environ, "DEPLOYCNN_CACHE": str(cache), "COLUMNS": "80"}
    command = [sys.executable, "-m", "deploycnn.pipeline", "run", *settings("backends=[torch, onnxruntime]"), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300), out


@pytest.mark.slow
def test_a_run_leaves_a_record_reports_and_artifacts(whole):
    said, out = whole
    assert said.returncode == 0, said.stderr
    record = read_record(out)
    states = {cell.name: cell.outcome.state for cell in record.cells}
    assert states["torch/fp32/cpu"] == "done"
    assert states["onnxruntime/fp32/cpu"] == "done"
    assert states["onnxruntime/int8/cpu"] == "done"
    assert states["torch/int8/cpu"] == "skipped"
    fp32 = record.cell("onnxruntime/fp32/cpu")
    assert fp32.accuracy.verdict.state == "pass"
    assert fp32.evidence.state == "pass"
    assert fp32.accuracy.agreement > 0.99
    assert {latency.batch for latency in fp32.latencies} == {1, 8}
    assert fp32.latency(1).ratio.value < 1.5
    assert record.cell("onnxruntime/fp16/cpu").evidence.state == "fail"  # the CPU provider computes fp16 in float32
    assert (out / fp32.folder / "artifact.json").is_file()
    assert "synthetic10" in (out / "report.md").read_text()
    assert (out / "latency.csv").read_text().count("\n") > 6
    assert "Ship " in said.stdout
    assert "Traceback" not in said.stdout + said.stderr


@pytest.mark.slow
def test_the_record_is_valid_under_its_schema_and_holds_no_path_of_this_machine(whole):
    _, out = whole
    document = json.loads((out / "record.json").read_text())
    jsonschema.validate(document, record_schema())
    assert document["data"]["name"] == "synthetic10"


@pytest.mark.slow
def test_an_identical_run_recomputes_nothing_and_says_so(run, whole, tmp_path):
    _, first_out = whole
    said = run("run", *settings("backends=[torch, onnxruntime]"), "--out", str(tmp_path / "again"))
    assert said.returncode == 0, said.stderr
    first, again = read_record(first_out), read_record(tmp_path / "again")
    for before, after in zip(first.cells, again.cells, strict=True):
        assert before.latencies == after.latencies
        assert before.accuracy == after.accuracy
        if after.outcome.state == "done":
            assert set(after.reused) == {"compile", "validate", "measure"}
    assert said.stderr.count("reused") >= 5


@pytest.mark.slow
def test_report_prints_the_same_again_from_the_record_alone(run, whole):
    said, out = whole
    again = run("report", str(out))
    assert again.returncode == 0, again.stderr
    verdict = next(line for line in said.stdout.splitlines() if line.startswith("Ship "))
    assert verdict in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "state", "stage", "words"),
    [
        ("fault: unavailable", "skipped", "", "unavailable"),
        ("fault: error", "failed", "compile", "asked to fail"),
        ("fault: segfault", "failed", "compile", "killed by SIG"),
        ("fault: garbage, fault_at: load", "failed", "validate", "exit code"),
        ("fault: fallback", "failed", "validate", "somewhere else"),
    ],
)
def test_one_backends_fault_is_its_cells_and_the_rest_goes_on(run, tmp_path, fault, state, stage, words):
    faulty = f"backends={{torch: {{}}, onnxruntime: {{}}, 'null': {{{fault}}}}}"
    said = run("run", *settings(faulty, "precisions=[fp32]"), "--out", str(tmp_path / "run"))
    assert "Traceback" not in said.stderr
    record = read_record(tmp_path / "run")
    cell = record.cell("null/fp32/cpu")
    assert cell.outcome.state == state
    assert getattr(cell.outcome, "stage", "") == stage
    assert words in json.dumps(cell.model_dump(mode="json"))
    assert record.cell("onnxruntime/fp32/cpu").outcome.state == "done"
    assert said.returncode == 0, said.stderr


@pytest.mark.slow
def test_a_limit_that_nothing_meets_is_exit_code_1_and_names_the_nearest(run, tmp_path):
    said = run("run", *settings("backends=[torch, onnxruntime]", "recommend.size_mb=0.000001"), "--out", str(tmp_path / "run"))
    assert said.returncode == 1, said.stderr
    assert "Ship nothing" in said.stdout
    assert "nearest" in said.stdout


@pytest.mark.slow
def test_ctrl_c_while_training_leaves_a_state_that_resume_goes_on_from(cache, tmp_path):
    environment = {**os.environ, "DEPLOYCNN_CACHE": str(cache), "COLUMNS": "80"}
    own = settings("backends=[torch]", "precisions=[fp32]", "train.epochs=60", "train.seed=7", "measure.batches=[1]")
    command = [sys.executable, "-m", "deploycnn.pipeline", "run", *own, "--out", str(tmp_path / "run")]
    earlier = set(cache.glob("shared/training/*/last.pt"))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    deadline_s = time.monotonic() + 120
    while set(cache.glob("shared/training/*/last.pt")) <= earlier and time.monotonic() < deadline_s:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "--resume" in stderr
    resumed = subprocess.run(
        [*command, "--resume", "--set", "measure.budget_s=1"], capture_output=True, text=True, env=environment, timeout=300
    )
    assert resumed.returncode == 0, resumed.stderr
    assert read_record(tmp_path / "run").model.training["epochs"] == 60


@pytest.mark.slow
def test_two_runs_at_once_on_one_folder_do_not_mix(cache, tmp_path):
    environment = {**os.environ, "DEPLOYCNN_CACHE": str(cache), "COLUMNS": "80"}
    own = settings("backends=[torch, onnxruntime]", "precisions=[fp32]")
    command = [sys.executable, "-m", "deploycnn.pipeline", "run", *own, "--out", str(tmp_path / "run")]
    pair = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in pair]
    assert {code for _, code in ends} <= {0, 6}
    assert any(code == 0 for _, code in ends)
    for stderr, code in ends:
        assert "Traceback" not in stderr
        if code == 6:
            assert "is in use" in stderr
    assert read_record(tmp_path / "run").cell("onnxruntime/fp32/cpu").outcome.state == "done"
