"""A load test through a worker: the session is the worker's, the answer comes over the border."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploycnn.errors import WorkerError
from deploycnn.measure.mlperf import LoadOptions
from deploycnn.types import CompileRequest, TensorSpec, Variant
from deploycnn.workers import Worker

pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed (extra mlperf)")


def test_a_worker_takes_a_load(tmp_path: Path) -> None:
    variant = Variant(
        precision="fp32",
        onnx_path=tmp_path / "graph.onnx",
        sha256="0" * 64,
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 32, 32)),
        output_name="logits",
        classes=("a", "b"),
    )
    folder = tmp_path / "artifact"
    folder.mkdir()
    request = CompileRequest(variant=variant, target="cpu", batches=(1,), folder=folder, cache_folder=tmp_path)
    images_NCHW = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    load = LoadOptions(scenario="single-stream", queries=50, seconds=0.05)
    with Worker("null/fp32/cpu", log_path=tmp_path / "log.txt") as worker:
        with pytest.raises(WorkerError, match="loaded nothing"):
            worker.offer_load(images_NCHW, load, tmp_path / "load", timeout_s=30)
        artifact = worker.compile("null", {}, request, timeout_s=30)
        worker.load("null", {}, artifact, folder, timeout_s=30)
        found = worker.offer_load(images_NCHW, load, tmp_path / "load", timeout_s=30)
    assert found.queries >= 50
    assert found.p50_s is not None
    assert found.p50_s > 0
