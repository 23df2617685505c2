"""Records made by hand: every kind of cell, without a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deploycnn.environment import environment
from deploycnn.record import Accuracy, Cell, ClassAccuracy, DataFacts, Latency, Loading, ModelFacts, Record
from deploycnn.types import Artifact, Done, FileEntry, Interval, Target, TensorSpec, Verdict

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
