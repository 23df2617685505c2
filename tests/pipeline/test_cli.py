"""The command line as a user meets it: real processes, exit codes, one readable message."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from deploycnn import __version__
from deploycnn.errors import EXIT_USAGE


@pytest.fixture
def deploycnn(tmp_path):
    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DEPLOYCNN_CACHE": str(tmp_path / "cache"), "COLUMNS": "80", "NO_COLOR": "1", **variables}
        command = [sys.executable, "-m", "deploycnn.pipeline", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)

    return call


def test_help_names_the_commands_and_the_exit_codes(deploycnn):
    said = deploycnn("--help")
    assert said.returncode == 0
    for word in ("run", "doctor", "report", "Exit codes", "130"):
        assert word in said.stdout


def test_version(deploycnn):
    said = deploycnn("--version")
    assert said.stdout.strip() == f"deploycnn {__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "quikstart"], ["quikstart", "quickstart"]),
        (["run", "--set", "train.epoch=3"], ["train.epoch", "train.epochs"]),
        (["run", "--set", "train.epochs=many"], ["train.epochs", "many"]),
        (["run", "--set", "train.epochs"], ["train.epochs", "key=value"]),
        (["run", "--set", "backends=[torhc]"], ["torhc", "torch"]),
        (["run", "--set", "backends.onnxruntime.thread=3"], ["onnxruntime", "thread"]),
        (["run", "--set", "targets=[cuda:89]"], ["cuda:89", "cuda:sm89"]),
        (["run", "--set", "precisions=[fp8x]"], ["fp8x", "fp16"]),
        (["run", "--set", "measure.batches=[0]"], ["measure.batches", "1 or more"]),
        (["run", "nowhere.yaml"], ["nowhere.yaml"]),
        (["run", "--epochs", "3"], ["--epochs"]),
        (["runn"], ["runn"]),
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_2(deploycnn, tmp_path, arguments, words):
    said = deploycnn(*arguments)
    assert said.returncode == EXIT_USAGE, said.stderr
    assert "Traceback" not in said.stderr
    for word in words:
        assert word in said.stderr
    assert not (tmp_path / "runs").exists()


def test_a_report_of_nothing_says_what_is_missing(deploycnn, tmp_path):
    said = deploycnn("report", "no-such-run")
    assert said.returncode not in (0, 1)
    assert "Traceback" not in said.stderr
    assert "no-such-run" in said.stderr


def test_doctor_says_why_each_backend_is_not_ready(deploycnn):
    said = deploycnn("doctor")
    assert said.returncode == 0, said.stderr
    assert re.search(r"onnxruntime +cpu +ready", said.stdout)
    assert re.search(r"tensorrt +cpu +unavailable +\S+", said.stdout)
    assert max(len(line) for line in said.stdout.splitlines()) <= 80


def test_doctor_as_json_is_json(deploycnn):
    import json

    said = deploycnn("doctor", "--json")
    document = json.loads(said.stdout)
    assert document["environment"]["cpu"]["usable_cores"] >= 1
    assert {row["backend"] for row in document["backends"]} >= {"torch", "onnxruntime", "tvm", "tensorrt"}
    assert all(row["reason"] for row in document["backends"] if row["state"] != "ready")
