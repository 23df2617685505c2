"""Peaks are plausible and repeatable, and the diagnosis follows from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploycnn.errors import WorkerError
from deploycnn.measure import roofline as module
from deploycnn.measure.dispatch import SHAPE_CHW, dispatch_variant
from deploycnn.measure.roofline import Peak, cost, measure_peak, roofline

PEAK = Peak(threads=1, flops_per_s=1e11, cache_bytes_per_s=1e11, memory_bytes_per_s=1e10)


def test_the_peak_of_this_machine() -> None:
    peak = measure_peak(1)
    assert 5e8 < peak.flops_per_s < 1e13
    assert 1e8 < peak.memory_bytes_per_s < 1e12
    assert peak.cache_bytes_per_s > 0.5 * peak.memory_bytes_per_s
    assert peak.threads == 1


def test_a_peak_that_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEAK_LIMIT_S", 0.01)
    with pytest.raises(WorkerError, match="peak could not be measured"):
        measure_peak(1)


def test_cost_counts_weights_once_and_activations_per_image() -> None:
    needed = cost(flops_per_image=1e6, weight_bytes=1000, activation_bytes_per_image=10, batch=32)
    assert needed.flops == 32e6
    assert needed.bytes == 1000 + 2 * 32 * 10


@pytest.mark.parametrize(
    ("flops", "n_bytes", "p50_s", "dispatch_s", "bound", "share", "words"),
    [
        (1e6, 1e4, 2e-5, 1.5e-5, "launch", 0.5, "75 % of the time is the call"),
        (1e6, 1e4, 2e-5, 1e-6, "compute", 0.5, "less work"),
        (1e6, 1e4, 1e-4, None, "compute", 0.1, "better kernels"),
        (1e6, 1e7, 2e-3, None, "memory", 0.5, "memory traffic"),  # out of the cache: 1 ms at 10 GB/s
        (1e6, 2e5, 2e-5, None, "compute", 0.5, "arithmetic"),  # in the cache: 2 us at 100 GB/s
    ],
)
def test_diagnosis(flops: float, n_bytes: float, p50_s: float, dispatch_s: float | None, bound: str, share: float, words: str) -> None:
    needed = cost(flops_per_image=flops, weight_bytes=n_bytes, activation_bytes_per_image=0, batch=1)
    found = roofline(PEAK, needed, p50_s, dispatch_s=dispatch_s)
    assert found.bound == bound
    assert found.share == pytest.approx(share)
    assert found.sentence.startswith(f"{bound}-bound")
    assert words in found.sentence
    assert found.floor_s == max(found.arithmetic_s, found.traffic_s)


def test_the_graph_of_next_to_nothing_runs_with_any_batch(tmp_path: Path) -> None:
    import onnxruntime as ort

    variant = dispatch_variant(tmp_path)
    session = ort.InferenceSession(variant.onnx_path, providers=["CPUExecutionProvider"])
    for batch in (1, 3, 64):
        x_NCHW = np.random.default_rng(0).integers(0, 256, (batch, *SHAPE_CHW), dtype=np.uint8)
        (logits_NK,) = session.run([variant.output_name], {variant.input.name: x_NCHW})
        np.testing.assert_array_equal(logits_NK, x_NCHW.reshape(batch, -1).astype(np.float32))
    assert len(variant.classes) == logits_NK.shape[1]


@pytest.mark.slow
def test_its_torch_program_does_the_same(tmp_path: Path) -> None:
    import torch

    variant = dispatch_variant(tmp_path, program=True)
    assert variant.program_path is not None
    loaded = torch.export.load(variant.program_path).module()
    pixels = torch.arange(30, dtype=torch.uint8).reshape(3, *SHAPE_CHW)
    assert torch.equal(loaded(pixels), pixels.float().flatten(1))
