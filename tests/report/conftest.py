"""Records made by hand: every kind of cell, without a run; and a run's folder with all its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploycnn.environment import environment
from deploycnn.record import Accuracy, Cell, ClassAccuracy, DataFacts, Latency, Loading, ModelFacts, Peak, Record, RooflinePoint
from deploycnn.recordfile import write_record
from deploycnn.report.flips import CellFlips, Flips, write_flips
from deploycnn.samples import SAMPLES_NAME, Samples, write_samples
from deploycnn.types import (
    Artifact,
    Deferred,
    Done,
    Doubt,
    Evidence,
    Failed,
    FileEntry,
    Interval,
    LayerEvidence,
    Skipped,
    Target,
    TensorSpec,
    Verdict,
)

CLASSES = ("cat", "dog")


def interval(value: float, share: float = 0.01) -> Interval:
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share))


def accuracy(top1: float = 0.7, state: str = "pass", reason: str = "drop is within the limit") -> Accuracy:
    return Accuracy(
        n_images=1000,
        top1=interval(top1),
        reference_top1=0.7,
        drop=Interval(value=0.7 - top1, low=0.7 - top1 - 0.01, high=0.7 - top1 + 0.01),
        agreement=0.99,
        right_to_wrong=(3, 5),
        wrong_to_right=(4,),
        per_class=tuple(ClassAccuracy(name=name, n_images=500, top1=top1, reference_top1=0.7) for name in CLASSES),
        relative_logit_error=0.001,
        max_logit_error=0.01,
        nonfinite_images=0,
        mean_confidence=0.8,
        reference_mean_confidence=0.8,
        ece=0.05,
        reference_ece=0.05,
        verdict=Verdict(state=state, reason=reason),
    )


def latency(batch: int, p50_s: float, share: float = 0.01, **changes: Any) -> Latency:
    values = {
        "batch": batch,
        "threads": 1,
        "samples": f"x@b{batch}",
        "n_samples": 4000,
        "n_blocks": 40,
        "n_rounds": 20,
        "n_processes": 2,
        "p50_s": interval(p50_s, share),
        "p90_s": interval(p50_s * 1.1, share),
        "p95_s": interval(p50_s * 1.2, share),
        "p99_s": interval(p50_s * 1.5, share),
        "p999_s": None,
        "mean_s": p50_s,
        "min_s": p50_s * 0.9,
        "max_s": p50_s * 3,
        "images_per_s": interval(batch / p50_s, share),
        "outliers": 1,
        "noisy": False,
    }
    return Latency(**(values | changes))


def cell(
    backend: str, precision: str, p50_s: float | None = 1e-4, *, target: str = "cpu", size_bytes: int = 250_000, **changes: Any
) -> Cell:
    artifact = Artifact(
        backend=backend,
        backend_version="1",
        target=Target.parse(target),
        precision=precision,
        files=(FileEntry(name="m", size_bytes=size_bytes, sha256="0" * 64),),
        sha256="0" * 64,
        parent_sha256="1" * 64,
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 32, 32)),
        output_name="logits",
        n_classes=2,
        batches=None,
        evidence=None,
        build_s=0.5,
    )
    values = {
        "backend": backend,
        "precision": precision,
        "target": Target.parse(target),
        "outcome": Done(),
        "artifact": artifact,
        "evidence": Verdict(state="pass", reason="3 layers ran as asked"),
        "accuracy": accuracy(),
        "loading": Loading(load_s=0.1, first_run_s=0.01, resident_bytes=100_000_000, peak_bytes=120_000_000),
        "latencies": (latency(1, p50_s), latency(32, p50_s * 20)) if p50_s else (),
        "machine": environment().id,
    }
    return Cell(**(values | changes))


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    return cell


@pytest.fixture
def make_accuracy() -> Callable[..., Accuracy]:
    return accuracy


@pytest.fixture
def make_latency() -> Callable[..., Latency]:
    return latency


@pytest.fixture
def make_record() -> Callable[..., Record]:
    def make(*cells: Cell, **changes: Any) -> Record:
        values = {
            "deploycnn_version": "0.1.0",
            "created": "2026-11-30T12:00:00+00:00",
            "command": "deploycnn run",
            "recipe": {"name": "test"},
            "data": DataFacts(
                name="synthetic10",
                asked="cifar10",
                source="built in",
                official=None,
                sha256="2" * 64,
                classes=CLASSES,
                shape_CHW=(3, 32, 32),
                n_train=100,
                n_validation=20,
                n_calibration=20,
                n_test=1000,
            ),
            "model": ModelFacts(name="lenet", parameters=62006, source="trained", checkpoint_sha256="3" * 64, graph_sha256="1" * 64),
            "environments": {environment().id: environment()},
            "reference": cells[0].name if cells else None,
            "cells": cells,
            "stage_s": {"data": 1.0, "measure": 30.0},
        }
        return Record(**(values | changes))

    return make


# --- a run's folder -------------------------------------------------------------------------


def samples_of(p50_s: float, seed: int) -> Samples:
    """4,000 runs in 40 blocks, a tenth of them slow."""
    rng = np.random.default_rng(seed)
    time_s = p50_s * rng.lognormal(0, 0.05, 4000) * np.where(rng.random(4000) < 0.1, 3, 1)
    rounds = np.repeat(np.arange(20), 2)
    return Samples(
        time_ns=(time_s * 1e9).astype(np.int64),
        runs_B=np.full(40, 100),
        round_B=rounds,
        process_B=rounds // 10,
        start_s_B=np.arange(40.0),
    )


def ran_in(precision: str, n: int = 5, simulated: bool = False) -> Evidence:
    layers = tuple(LayerEvidence(name=f"layer <{i}> & co", op="Conv" if i < 3 else "Gemm", precision=precision) for i in range(n))
    return Evidence(source="profiler", provider="CPU", layers=layers, simulated=simulated)


def every_kind_of_cell() -> tuple[Cell, ...]:
    """Passed, lossy, unproven, failed, deferred and skipped; names and reasons that would break careless HTML."""
    exact = accuracy().model_copy(update={"right_to_wrong": (), "wrong_to_right": (), "agreement": 1.0})
    noisy = Doubt(kind="noisy", what="known to ±9 %, asked was ±2 %", remedy="measure longer")
    ratio = interval(0.3)
    return (
        cell("torch", "fp32", 3e-4, accuracy=exact, ran=ran_in("float32")),
        cell(
            "onnxruntime",
            "fp32",
            accuracy=exact,
            ran=ran_in("f32"),
            latencies=(latency(1, 1e-4, ratio=ratio), latency(32, 2e-3, ratio=ratio)),
        ),
        cell("onnxruntime", "int8", 8e-5, accuracy=accuracy(0.695), ran=ran_in("int8"), size_bytes=80_000),
        cell("openvino", "int8", 7e-5, accuracy=accuracy(0.6, "fail", "top-1 loses 10 pp; limit 1 pp"), ran=ran_in("u8")),
        cell(
            "openvino",
            "fp16",
            latencies=(latency(1, 9e-5, share=0.09, noisy=True, doubts=(noisy,), p99_s=None),),
            ran=ran_in("fp32"),
            evidence=Verdict(state="fail", reason="asked for float16, ran in float32: a, b of 5 layers", remedy="use fp32"),
        ),
        cell("tvm", "int8", 5e-3, ran=ran_in("float32", simulated=True), evidence=Verdict(state="unproven", reason="int8 is simulated")),
        cell("tensorrt", "int8", None, target="cuda:sm89", outcome=Deferred(waits_for="no sm89 GPU"), accuracy=None, loading=None),
        cell(
            "tvm",
            "fp32",
            None,
            outcome=Failed(stage="compile", reason="<b>not</b> supported: Erf", remedy="use another backend", log_tail="</pre>last words"),
            accuracy=None,
            artifact=None,
            loading=None,
            evidence=None,
        ),
        cell(
            "inductor",
            "int8",
            None,
            outcome=Skipped(reason="no Q/DQ form", remedy="use onnxruntime"),
            accuracy=None,
            artifact=None,
            loading=None,
            evidence=None,
        ),
    )


@pytest.fixture
def run_folder(tmp_path: Path, make_record: Callable[..., Record]) -> Path:
    """record.json, samples.npz and flips.npz of a run with every kind of cell. The flipped test images are 3, 4 and 5."""
    place = RooflinePoint(batch=1, flops=1e6, bytes=2.5e5, floor_s=2e-5, share=0.2, bound="compute", sentence="compute-bound on paper")
    cells = tuple(cell.model_copy(update={"rooflines": (place,)}) if cell.latencies else cell for cell in every_kind_of_cell())
    peak = Peak(threads=1, flops_per_s=9e10, cache_bytes_per_s=6e10, memory_bytes_per_s=1e10)
    doubt = Doubt(kind="other-load", what="other processes kept 1.5 cores busy", remedy="stop them")
    floor = {"1": interval(1.0, 0.02), "32": interval(1.0, 0.02)}
    write_record(
        tmp_path,
        make_record(
            *cells,
            doubts=(doubt,),
            noise_floor=floor,
            peaks={environment().id: peak},
            recipe={"name": "test", "validate": {"max_drop_pp": 1.0}},
        ),
    )
    rows = {f"{one.name}@b{row.batch}": samples_of(row.p50_s.value, seed) for seed, one in enumerate(cells) for row in one.latencies}
    write_samples(tmp_path / SAMPLES_NAME, rows)
    images_FCHW = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    flipped = {
        one.name: CellFlips(row_M=np.array([0, 2, 1]), answer_M=np.array([1, -1, 0]), reference_M=np.array([0, 0, 1]))
        for one in cells
        if one.accuracy and one.accuracy.right_to_wrong
    }
    write_flips(tmp_path, Flips(image_F=np.array([3, 4, 5]), images_FCHW=images_FCHW, label_F=np.array([0, 0, 0]), cells=flipped))
    return tmp_path
