"""What is shipped, and what never is."""

from __future__ import annotations

import pytest

from deploycnn.recipe import RecommendOptions
from deploycnn.report.recommend import recommend
from deploycnn.types import Deferred, Failed, Interval, Skipped, Verdict

LATENCY = RecommendOptions()


def test_the_fastest_that_passes_is_shipped(make_record, make_cell):
    record = make_record(make_cell("torch", "fp32", 3e-4), make_cell("onnxruntime", "fp32", 1e-4), make_cell("onnxruntime", "int8", 2e-4))
    said = recommend(record, LATENCY)
    assert said.ship == "onnxruntime/fp32/cpu"
    assert said.batch == 1
    assert said.candidates[0].cell == "onnxruntime/fp32/cpu"
    assert {c.cell: c.lost_on for c in said.candidates}["torch/fp32/cpu"] == "3.00x the time"


def never(name, **changes):
    return pytest.param(changes, id=name)


@pytest.mark.parametrize(
    "changes",
    [
        never("deferred", outcome=Deferred(waits_for="a GPU")),
        never("skipped", outcome=Skipped(reason="no")),
        never("failed", outcome=Failed(stage="compile", reason="no")),
        never("unproven", evidence=Verdict(state="unproven", reason="no layer is listed")),
        never("wrong precision", evidence=Verdict(state="fail", reason="Conv ran in float32")),
        never("no evidence", evidence=None),
        never("no accuracy", accuracy=None),
        never("not measured", latencies=()),
    ],
)
def test_a_cell_that_is_not_proved_is_never_shipped(make_record, make_cell, changes):
    record = make_record(make_cell("torch", "fp32", 3e-4), make_cell("onnxruntime", "int8", 1e-5, **changes))
    said = recommend(record, LATENCY)
    assert said.ship == "torch/fp32/cpu"
    assert {c.cell: c.lost_on for c in said.candidates}["onnxruntime/int8/cpu"]


@pytest.mark.parametrize("state", ["fail", "unproven", "not enough images"])
def test_a_cell_whose_accuracy_did_not_pass_is_never_shipped(make_record, make_cell, make_accuracy, state):
    record = make_record(
        make_cell("torch", "fp32", 3e-4), make_cell("onnxruntime", "int8", 1e-5, accuracy=make_accuracy(0.5, state, "why"))
    )
    assert recommend(record, LATENCY).ship == "torch/fp32/cpu"


def test_a_tie_is_called_a_tie_and_the_simpler_one_wins(make_record, make_cell):
    record = make_record(make_cell("torch", "fp32", 3e-4), make_cell("a", "int8", 1e-4), make_cell("b", "fp32", 1.005e-4))
    said = recommend(record, LATENCY)
    assert said.ship == "b/fp32/cpu"
    assert said.ties == ("a/int8/cpu",)
    assert "tied with a/int8/cpu" in said.because


def test_a_ratio_that_is_known_well_breaks_the_tie_of_a_noisy_machine(make_record, make_cell, make_latency):
    def noisy(p50_s, ratio):
        known = Interval(value=ratio, low=ratio * 0.99, high=ratio * 1.01) if ratio else None
        return (make_latency(1, p50_s, share=0.9, ratio=known),)

    record = make_record(
        make_cell("torch", "fp32", latencies=noisy(3e-4, None)),
        make_cell("a", "int8", latencies=noisy(1e-4, 0.33)),
        make_cell("b", "fp32", latencies=noisy(2e-4, 0.66)),
    )
    said = recommend(record, LATENCY)
    assert said.ship == "a/int8/cpu"
    assert said.ties == ()


def test_a_difference_under_the_noise_floor_is_no_difference(make_record, make_cell):
    cells = (make_cell("torch", "fp32", 3e-4), make_cell("a", "int8", 1e-4), make_cell("b", "fp32", 1.05e-4))
    assert recommend(make_record(*cells), LATENCY).ship == "a/int8/cpu"
    noisy = make_record(*cells, noise_floor={"1": Interval(value=1.0, low=0.94, high=1.06)})
    assert recommend(noisy, LATENCY).ship == "b/fp32/cpu"


@pytest.mark.parametrize(
    ("options", "out", "why"),
    [
        (RecommendOptions(p99_ms=0.2), "torch/fp32/cpu", "p99"),
        (RecommendOptions(size_mb=0.3), "onnxruntime/fp32/cpu", "size"),
        (RecommendOptions(memory_mb=200), "onnxruntime/fp32/cpu", "memory"),
    ],
)
def test_constraints_come_first(make_record, make_cell, options, out, why):
    big = make_cell("onnxruntime", "fp32", 1e-4, size_bytes=900_000)
    loading = big.loading.model_copy(update={"peak_bytes": 900_000_000})
    record = make_record(make_cell("torch", "fp32", 3e-4), big.model_copy(update={"loading": loading}))
    said = recommend(record, options)
    assert said.ship != out
    assert why in {c.cell: c.lost_on for c in said.candidates}[out]


def test_a_p99_that_the_sample_cannot_carry_does_not_meet_a_limit(make_record, make_cell, make_latency):
    record = make_record(make_cell("torch", "fp32", latencies=(make_latency(1, 1e-5, p99_s=None),)))
    said = recommend(record, RecommendOptions(p99_ms=100))
    assert said.ship is None
    assert "not known" in said.candidates[0].lost_on


def test_nothing_meets_the_limits_names_the_nearest(make_record, make_cell):
    record = make_record(make_cell("torch", "fp32", 3e-4), make_cell("onnxruntime", "fp32", 1e-4))
    said = recommend(record, RecommendOptions(p99_ms=0.01))
    assert said.ship is None
    assert said.nearest == "onnxruntime/fp32/cpu"
    assert "onnxruntime/fp32/cpu" in said.because


def test_throughput_is_judged_at_the_largest_batch_and_size_by_bytes(make_record, make_cell, make_latency):
    quick_alone = make_cell("a", "fp32", latencies=(make_latency(1, 1e-5), make_latency(32, 1e-2)), size_bytes=900)
    quick_in_batches = make_cell("b", "fp32", latencies=(make_latency(1, 1e-3), make_latency(32, 1e-3)), size_bytes=9000)
    record = make_record(quick_alone, quick_in_batches)
    assert recommend(record, RecommendOptions(objective="throughput")).ship == "b/fp32/cpu"
    assert recommend(record, RecommendOptions(objective="latency")).ship == "a/fp32/cpu"
    assert recommend(record, RecommendOptions(objective="size")).ship == "a/fp32/cpu"


def test_an_empty_record_ships_nothing(make_record):
    said = recommend(make_record(), LATENCY)
    assert said.ship is None
    assert said.candidates == ()
