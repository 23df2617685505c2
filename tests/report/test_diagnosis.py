"""What bounds an artifact, and the share of the call, are in every report."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deploycnn.recipe import RecommendOptions
from deploycnn.record import Peak, RooflinePoint
from deploycnn.report.diagnosis import bound_lines, bound_rows
from deploycnn.report.html.diagnosis import diagnoses
from deploycnn.report.markdown import markdown
from deploycnn.report.recommend import recommend
from deploycnn.report.terminal import render


def point(batch: int, bound: str, dispatch_s: float | None) -> RooflinePoint:
    return RooflinePoint(
        batch=batch, flops=1e6, bytes=1e5, floor_s=1e-5, share=0.1, bound=bound, sentence=f"{bound}-bound: because", dispatch_s=dispatch_s
    )


@pytest.fixture
def record(make_record, make_cell):
    peak = Peak(threads=1, flops_per_s=1e11, cache_bytes_per_s=1e11, memory_bytes_per_s=1e10)
    fast = make_cell("onnxruntime", "int8", 1e-4, rooflines=(point(1, "launch", 6e-5), point(32, "compute", 6e-5)))
    slow = make_cell("torch", "fp32", 2e-4, rooflines=(point(1, "memory", None),))
    record = make_record(slow, fast)
    return record.model_copy(update={"peaks": dict.fromkeys(record.environments, peak)})


def test_the_share_of_the_call_is_of_the_median(record):
    found = {(row.name, row.batch): (row.bound, row.call) for row in bound_rows(record)}
    assert found["onnxruntime int8", 1] == ("launch-bound", "60 %")
    assert found["onnxruntime int8", 32] == ("compute-bound", "3 %")
    assert found["torch fp32", 1][0] == "memory-bound"
    assert "%" not in found["torch fp32", 1][1]


def test_a_line_for_each_batch_and_bound(record):
    assert bound_lines(record) == [
        "batch 1, launch-bound: onnxruntime int8 (60 %)",
        "batch 1, memory-bound: torch fp32",
        "batch 32, compute-bound: onnxruntime int8 (3 %)",
    ]


def test_terminal_markdown_and_html_say_it(record):
    decided, stream = recommend(record, RecommendOptions()), io.StringIO()
    render(record, decided, Console(file=stream, width=80, force_terminal=False, highlight=False))
    assert "batch 1, launch-bound: onnxruntime int8 (60 %)" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    assert "| onnxruntime int8 | 1 | 10 % | 60 % | launch-bound: because |" in markdown(record, decided)
    assert any(one.sentence == "compute-bound: because; 3 % of the time is the call itself" for one in diagnoses(record))


def test_cold_start_and_memory_are_in_markdown(record):
    text = markdown(record, recommend(record, RecommendOptions()))
    assert "| onnxruntime/int8/cpu | 500 ms | 100 ms | 10.0 ms | 100 MB | 120 MB |" in text


def test_without_peaks_nothing_is_said(make_record, make_cell):
    bare = make_record(make_cell("torch", "fp32"))
    assert bound_lines(bare) == []
    assert "What bounds" not in markdown(bare, recommend(bare, RecommendOptions()))
