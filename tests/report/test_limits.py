"""Limits judged again from a record: what another limit can change, and what it never can."""

from __future__ import annotations

import pytest

from deploycnn.recipe import RecommendOptions
from deploycnn.report.recommend import recommend
from deploycnn.types import Interval, Verdict


@pytest.fixture
def lossy(make_record, make_cell, make_accuracy):
    """A record of torch (300 us) and a faster int8 artifact whose accuracy is given."""

    def make(verdict="pass", low=0.002, high=0.008, reason="as validated", precision="int8", **changes):
        accuracy = make_accuracy(0.695, verdict, reason)
        accuracy = accuracy.model_copy(update={"drop": Interval(value=(low + high) / 2, low=low, high=high, confidence=0.9), **changes})
        itself = make_accuracy().model_copy(update={"right_to_wrong": (), "wrong_to_right": (), "agreement": 1.0})
        return make_record(make_cell("torch", "fp32", 3e-4, accuracy=itself), make_cell("onnxruntime", precision, 1e-4, accuracy=accuracy))

    return make


@pytest.mark.parametrize(
    ("verdict", "limit_pp", "shipped"),
    [
        ("pass", None, "onnxruntime/int8/cpu"),
        ("pass", 0.5, "torch/fp32/cpu"),  # the interval reaches 0.8 pp
        ("pass", 0.8, "onnxruntime/int8/cpu"),
        ("pass", 0.0, "torch/fp32/cpu"),  # images are lost
    ],
)
def test_another_limit_is_judged_from_the_paired_interval(lossy, verdict, limit_pp, shipped):
    assert recommend(lossy(verdict), RecommendOptions(), max_drop_pp=limit_pp).ship == shipped


@pytest.mark.parametrize("verdict", ["fail", "not enough images"])
def test_a_looser_limit_lets_through_what_only_the_limit_stopped(lossy, verdict):
    record = lossy(verdict, low=0.011, high=0.02)
    assert recommend(record, RecommendOptions()).ship == "torch/fp32/cpu"
    assert recommend(record, RecommendOptions(), max_drop_pp=1.5).ship == "torch/fp32/cpu"
    assert recommend(record, RecommendOptions(), max_drop_pp=2).ship == "onnxruntime/int8/cpu"


@pytest.mark.parametrize(
    "changes",
    [
        {"nonfinite_images": 3},
        {"n_images": 60},
        {"precision": "fp32", "relative_logit_error": 0.2},
        {"verdict": "unproven", "low": 0.0, "high": 0.001},
        {"per_class": "one answer"},
    ],
    ids=["NaN", "few images", "other logits", "unproven", "one answer"],
)
def test_no_limit_lets_through_what_is_broken(lossy, changes, make_accuracy):
    if changes.get("per_class"):
        rows = make_accuracy().per_class
        changes = {"per_class": (rows[0].model_copy(update={"top1": 1.0}), rows[1].model_copy(update={"top1": 0.0}))}
    record = lossy(**{"verdict": "fail", "low": 0.011, "high": 0.02, **changes})
    said = recommend(record, RecommendOptions(), max_drop_pp=100)
    assert said.ship == "torch/fp32/cpu"
    assert "accuracy" in said.candidates[-1].lost_on


def test_the_nearest_breaks_its_worst_limit_by_least(make_record, make_cell):
    record = make_record(
        make_cell("torch", "fp32", 3e-4, size_bytes=100_000),  # p99 4.5 times the limit
        make_cell("a", "fp32", 1e-4, size_bytes=900_000),  # p99 1.5 times, size 9 times
        make_cell("b", "fp32", 2e-4, size_bytes=200_000),  # p99 3 times, size 2 times
        make_cell("c", "int8", 1e-5, evidence=Verdict(state="unproven", reason="no layer is listed")),
    )
    said = recommend(record, RecommendOptions(p99_ms=0.1, size_mb=0.1))
    assert said.ship is None
    assert said.nearest == "b/fp32/cpu"
    assert [candidate.cell for candidate in said.candidates][:3] == ["b/fp32/cpu", "torch/fp32/cpu", "a/fp32/cpu"]


def test_a_limit_that_only_the_estimate_meets_is_said(make_record, make_cell, make_latency):
    wide = make_latency(1, 1e-4, p99_s=Interval(value=1.8e-4, low=1.5e-4, high=2.6e-4))
    record = make_record(make_cell("torch", "fp32", latencies=(wide,)))
    said = recommend(record, RecommendOptions(p99_ms=0.2))
    assert said.ship == "torch/fp32/cpu"
    assert "260 µs" in said.caveats[0]
    assert recommend(record, RecommendOptions(p99_ms=0.3)).caveats == ()


def test_the_limits_are_said_in_words(make_record, make_cell):
    said = recommend(make_record(make_cell("torch", "fp32")), RecommendOptions(p99_ms=2, memory_mb=500, size_mb=1.5), max_drop_pp=0.25)
    assert said.limits == ("top-1 loss at most 0.250 pp", "p99 at most 2.00 ms", "peak memory at most 500 MB", "size at most 1.50 MB")
