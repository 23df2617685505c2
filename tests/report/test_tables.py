"""The terminal, Markdown and CSV reports say what the record holds, at any width."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from deploycnn.recipe import RecommendOptions
from deploycnn.report import remarks
from deploycnn.report.latency_csv import latency_csv
from deploycnn.report.markdown import markdown
from deploycnn.report.recommend import recommend
from deploycnn.report.terminal import render
from deploycnn.types import Deferred, Doubt, Failed, Interval, Skipped, Verdict


@pytest.fixture
def record(make_record, make_cell, make_latency, make_accuracy):
    doubt = Doubt(kind="other-load", what="other processes used 40 % of the CPU", remedy="measure on an idle machine")
    noisy = make_latency(1, 4e-5, share=0.2, noisy=True, doubts=(doubt,), p99_s=None, ratio=Interval(value=0.2, low=0.19, high=0.22))
    return make_record(
        make_cell("torch", "fp32", 2e-4),
        make_cell("onnxruntime", "fp32", latencies=(noisy,)),
        make_cell("onnxruntime", "int8", 8e-5, accuracy=make_accuracy(0.6, "fail", "lost 10 pp, the limit is 1 pp")),
        make_cell("onnxruntime", "fp16", 9e-5, evidence=Verdict(state="fail", reason="Conv ran in float32", remedy="use a GPU")),
        make_cell("tensorrt", "int8", None, target="cuda:sm89", outcome=Deferred(waits_for="a GPU with sm89"), accuracy=None),
        make_cell("tvm", "int8", None, outcome=Failed(stage="compile", reason="not supported: Erf"), accuracy=None, artifact=None),
        make_cell("inductor", "int8", None, outcome=Skipped(reason="no Q/DQ form"), accuracy=None, artifact=None),
    )


def printed(record, width):
    stream = io.StringIO()
    render(record, recommend(record, RecommendOptions()), Console(file=stream, width=width, force_terminal=False, highlight=False))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_terminal_holds_its_width_and_every_fact(record, width):
    text = printed(record, width)
    assert max(len(line) for line in text.splitlines()) <= width
    flat = " ".join(text.split())
    for fact in (
        "Ship onnxruntime/fp32/cpu",
        "synthetic10 (NOT cifar10)",
        "40.0 µs",
        "noisy",
        "a GPU with sm89",
        "not supported: Erf",
        "60.00 %",
    ):
        assert fact in flat
    for fact in ("lost 10 pp", "Conv ran in float32", "no Q/DQ form", "measure on an idle machine"):
        assert fact in flat


def test_no_colour_codes_when_not_a_terminal(record):
    assert "\x1b" not in printed(record, 80)


def test_a_microsecond_is_never_printed_as_zero(record):
    assert "0.00 ms" not in printed(record, 200)
    assert "0.00 s" not in printed(record, 200)


def test_markdown_tables_are_whole(record):
    text = markdown(record, recommend(record, RecommendOptions()))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) > 10
    for block in text.split("\n\n"):
        widths = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1
    assert "**Ship `onnxruntime/fp32/cpu`**" in text
    assert "synthetic10 (NOT cifar10)" in text


def test_markdown_escapes_what_would_break_a_table(make_record, make_cell):
    record = make_record(make_cell("torch", "fp32", outcome=Failed(stage="a|b\nc", reason="x")))
    text = markdown(record, recommend(record, RecommendOptions()))
    assert "a\\|b c" in text


def test_csv_has_a_line_per_latency_unrounded(record):
    rows = list(csv.DictReader(io.StringIO(latency_csv(record))))
    assert len(rows) == 2 + 1 + 2 + 2 + 1 + 1 + 1
    first = rows[0]
    assert (first["backend"], first["data"], first["batch"]) == ("torch", "synthetic10", "1")
    assert float(first["p50_s"]) == 2e-4
    noisy = next(row for row in rows if row["backend"] == "onnxruntime" and row["precision"] == "fp32")
    assert noisy["p99_s"] == ""
    assert noisy["noisy"] == "True"


def test_a_record_without_any_latency_still_prints(make_record, make_cell):
    text = printed(make_record(make_cell("torch", "fp32", None)), 80)
    assert "Ship nothing" in text


@pytest.mark.parametrize("width", [80, 100])
def test_no_artifact_name_wraps(make_record, make_cell, make_latency, width):
    """The widest names of all, with the widest figures."""
    wide = make_latency(1, 3.21e-3, share=0.97, noisy=True, p99_s=Interval(value=5.12e-3, low=5e-3, high=6e-3))
    cells = [
        make_cell("torch", "fp32", 2e-4),
        make_cell("onnxruntime", "int8+fp16", target="cuda:sm89", latencies=(wide,)),
        make_cell("onnxruntime", "int8-auto", target="cuda:sm120", latencies=(wide,)),
    ]
    lines = printed(make_record(*cells), width).splitlines()
    for name in ("onnxruntime int8+fp16 cuda:sm89", "onnxruntime int8-auto cuda:sm120"):
        found = [line for line in lines if name in line]
        assert len(found) >= 2  # accuracy, latency
    latency_line = next(line for line in lines if "int8+fp16" in line and "noisy 97 %" in line)
    assert "3.21 ms" in latency_line
    assert "5.12 ms" in latency_line
    assert any("torch fp32" in line and line.rstrip().endswith("ref") for line in lines)


def test_reasons_are_said_once_and_in_their_place(make_record, make_cell):
    def skipped(backend, precision, target="cpu"):
        gone = {"accuracy": None, "artifact": None, "evidence": None}
        return make_cell(backend, precision, None, target=target, outcome=Skipped(reason="has no CUDA device", remedy="use cpu"), **gone)

    def deferred(backend, why):
        return make_cell(backend, "int8", None, target="cuda:sm89", outcome=Deferred(waits_for=why), accuracy=None)

    record = make_record(
        make_cell("torch", "fp32", 2e-4),
        *(skipped("openvino", precision, "cuda:sm89") for precision in ("fp32", "fp16", "int8")),
        skipped("other", "int8", "cuda:sm89"),
        deferred("tensorrt", "no sm89 GPU is here"),
        deferred("onnxruntime", "no sm89 GPU is here"),
    )
    flat = " ".join(printed(record, 80).split())
    assert flat.count("has no CUDA device") == 1
    assert "openvino cuda:sm89 (fp32, fp16, int8), other int8 cuda:sm89: has no CUDA device; use cpu" in flat
    assert flat.count("no sm89 GPU is here") == 1
    assert "cuda:sm89 waits: no sm89 GPU is here" in flat
    assert "Not recommended, because" not in flat


@pytest.mark.parametrize(
    ("reason", "plain"),
    [
        ('ran on {"kind":"llvm","keys":["cpu"],"mcpu":"znver3"} (loops)', "ran on llvm (znver3) (loops)"),
        ('5 on {"kind": "cuda", "arch": "sm_89"}', "5 on cuda (sm_89)"),
        ('ran on {"no": "kind"}', "ran on a device of its own description"),
        ("set {1, 2} stays", "set {1, 2} stays"),
        ("ran in float32: a, b, c and 2 more of 5 layers; so", "ran in float32: a and 4 more of 5 layers; so"),
        ("ran in float32: a, b of 5 layers", "ran in float32: a and 1 more of 5 layers"),
        ("ran in float32: a of 5 layers", "ran in float32: a of 5 layers"),
    ],
)
def test_compilers_prose_is_shortened(reason, plain):
    assert remarks.plain(reason) == plain
