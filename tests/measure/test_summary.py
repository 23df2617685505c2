"""Figures from samples: right on planted times, honest about what a sample cannot carry, quick."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from deploycnn.measure.schedule import CONTROL, twin_of
from deploycnn.measure.summary import images_per_s, summarise
from deploycnn.recipe import MeasureOptions
from deploycnn.samples import Samples, sample_name

REFERENCE = "torch/fp32/cpu"
OPTIONS = MeasureOptions(batches=(1,), threads=2)


def planted(
    run_s: float,
    *,
    seed: int,
    n_blocks: int = 20,
    n_processes: int = 2,
    block_s: float = 0.02,
    noise: float = 0.005,
    machine: Callable[[int], float] = lambda block: 1.0,
) -> Samples:
    """Runs of median `run_s`; `machine` slows a round as a whole."""
    rng = np.random.default_rng(seed)
    n_runs = max(1, math.ceil(block_s / run_s))
    blocks = [run_s * machine(i) * np.exp(rng.normal(0, noise) + rng.normal(0, noise, n_runs)) for i in range(n_blocks)]
    return Samples(
        time_ns=(np.concatenate(blocks) * 1e9).astype(np.int64),
        runs_B=np.full(n_blocks, n_runs),
        round_B=np.arange(n_blocks),
        process_B=np.arange(n_blocks) * n_processes // n_blocks,
        start_s_B=np.arange(n_blocks) * 0.1,
    )


def usual(batch: int = 1, **arguments: object) -> dict[str, Samples]:
    times_s = {REFERENCE: 1e-3, twin_of(REFERENCE): 1e-3, "onnxruntime/fp32/cpu": 2e-4, CONTROL: 1e-4}
    return {sample_name(cell, batch): planted(t, seed=i, **arguments) for i, (cell, t) in enumerate(times_s.items())}  # type: ignore[arg-type]


def test_planted_times_and_ratios_are_found() -> None:
    summary = summarise(usual(), OPTIONS, reference=REFERENCE)
    assert set(summary.latencies) == {REFERENCE, "onnxruntime/fp32/cpu"}  # neither the twin nor the control
    (reference,), (other,) = summary.latencies[REFERENCE], summary.latencies["onnxruntime/fp32/cpu"]
    assert reference.ratio is None
    assert reference.p50_s.low < 1e-3 < reference.p50_s.high
    assert other.ratio is not None
    assert other.ratio.low < 0.2 < other.ratio.high
    assert other.images_per_s.value == pytest.approx(5000, rel=0.01)
    assert other.threads == 2
    assert (other.n_samples, other.n_blocks, other.n_rounds, other.n_processes) == (2000, 20, 20, 2)
    assert not other.noisy
    floor = summary.noise_floor["1"]
    assert floor.low < 1 < floor.high
    assert floor.high - floor.low < 0.02


def test_a_percentile_that_the_sample_cannot_carry_is_not_given() -> None:
    for n_runs, given in [(28, ""), (29, "90"), (58, "90"), (59, "90 95"), (298, "90 95"), (299, "90 95 99"), (2995, "90 95 99 999")]:
        samples = planted(1e-3, seed=0, n_blocks=1, n_processes=1, block_s=n_runs * 1e-3 - 1e-9)
        assert samples.time_ns.size == n_runs
        (latency,) = summarise({"a@b1": samples}, OPTIONS).latencies["a"]
        found = [p for p in ("90", "95", "99", "999") if getattr(latency, f"p{p}_s") is not None]
        assert " ".join(found) == given


def test_percentiles_do_not_cross() -> None:
    (latency,) = summarise({"a@b1": planted(1e-5, seed=0, noise=0.1)}, OPTIONS).latencies["a"]
    found = [latency.p50_s, latency.p90_s, latency.p95_s, latency.p99_s, latency.p999_s]
    values = [interval.value for interval in found if interval is not None]
    assert len(values) == 5
    assert values == sorted(values)
    assert latency.min_s < values[0] < latency.mean_s < values[-1] < latency.max_s


def test_ratio_is_free_of_what_slows_whole_rounds() -> None:
    def storm(i: int) -> float:
        return 1 + 0.9 * (i % 3 == 0) + 0.02 * i

    quiet, loud = (summarise(usual(machine=m), OPTIONS, reference=REFERENCE) for m in (lambda i: 1.0, storm))
    (before,), (after,) = quiet.latencies["onnxruntime/fp32/cpu"], loud.latencies["onnxruntime/fp32/cpu"]
    assert after.ratio is not None
    assert before.ratio is not None
    assert after.ratio.value == pytest.approx(before.ratio.value, rel=0.01)
    assert after.noisy
    assert {"noisy", "drift"} <= {doubt.kind for doubt in after.doubts}
    assert not before.doubts


def test_outliers_are_counted_and_kept() -> None:
    samples = planted(1e-4, seed=0)
    times_ns = samples.time_ns.copy()
    times_ns[100] = 10**9
    spoiled = Samples(
        time_ns=times_ns, runs_B=samples.runs_B, round_B=samples.round_B, process_B=samples.process_B, start_s_B=samples.start_s_B
    )
    (latency,) = summarise({"a@b1": spoiled}, OPTIONS).latencies["a"]
    assert latency.outliers == 1
    assert latency.max_s == 1.0
    assert latency.n_samples == samples.time_ns.size


def test_images_per_second_count_slow_runs() -> None:
    n_blocks, n_runs = 20, 10
    times_ns = np.tile(np.array([1_000_000] * (n_runs - 1) + [11_000_000]), n_blocks)
    samples = Samples(
        time_ns=times_ns,
        runs_B=np.full(n_blocks, n_runs),
        round_B=np.arange(n_blocks),
        process_B=np.zeros(n_blocks, dtype=np.int64),
        start_s_B=np.arange(n_blocks) * 1.0,
    )
    assert images_per_s(samples, 32, 0.95).value == pytest.approx(32 * n_runs / 0.020)


def test_rows_of_several_batch_sizes_come_in_order() -> None:
    samples = {**usual(32), **usual(1)}
    summary = summarise(samples, OPTIONS, reference=REFERENCE)
    assert [latency.batch for latency in summary.latencies[REFERENCE]] == [1, 32]
    assert set(summary.noise_floor) == {"1", "32"}


def test_without_a_reference_there_are_medians_and_no_ratios() -> None:
    summary = summarise({"a@b1": planted(1e-3, seed=0)}, OPTIONS, reference=REFERENCE)
    assert summary.latencies["a"][0].ratio is None
    assert not summary.noise_floor


def test_a_clock_that_reads_zero_breaks_nothing() -> None:
    samples = planted(1e-3, seed=0)
    zeros = Samples(
        time_ns=np.zeros_like(samples.time_ns),
        runs_B=samples.runs_B,
        round_B=samples.round_B,
        process_B=samples.process_B,
        start_s_B=samples.start_s_B,
    )
    summary = summarise({sample_name(REFERENCE, 1): planted(1e-3, seed=1), "a@b1": zeros}, OPTIONS, reference=REFERENCE)
    assert summary.latencies["a"][0].p50_s.value == 0
    assert "short-runs" in {doubt.kind for doubt in summary.latencies["a"][0].doubts}


def test_forty_rows_of_twenty_thousand_runs_take_under_two_seconds() -> None:
    rows = {f"cell{i}@b{batch}": planted(5e-5, seed=i, n_blocks=50) for i in range(20) for batch in (1, 32)}
    assert min(row.time_ns.size for row in rows.values()) >= 20_000
    begun_s = time.process_time()
    summarise(rows, OPTIONS, reference="cell0")
    assert time.process_time() - begun_s < 2.0
