"""The AOTInductor backend. Building takes half a minute, so one package serves several questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploycnn.backends.inductor import InductorBackend
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.types import Target, Variant

CPU = Target(device="cpu")
BACKEND = InductorBackend()


@pytest.fixture
def small_program(small_graph, tmp_path: Path) -> Variant:
    """A network as a torch.export archive with a dynamic batch: uint8 pixels (N, 3, 8, 8) to 4 float32 logits."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 4, 3)
            self.linear = torch.nn.Linear(144, 4)

        def forward(self, pixels_NCHW: torch.Tensor) -> torch.Tensor:
            return self.linear(self.convolution(pixels_NCHW.float() / 255).relu().flatten(1))

    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(Network().eval(), (torch.zeros((2, 3, 8, 8), dtype=torch.uint8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "program.pt2")
    return small_graph().model_copy(update={"program_path": tmp_path / "program.pt2"})


@pytest.mark.slow
def test_one_package_runs_every_batch_as_eager_does_and_shows_what_it_computes_in(small_program, build, small_pixels) -> None:
    import torch

    eager = torch.export.load(small_program.program_path).module()
    artifact, compiled, folder = build(BACKEND, small_program)
    assert compiled.files == ("model_bany.pt2",)
    assert compiled.batches is None
    with BACKEND.load(artifact, folder, threads=1) as session:
        for n in (1, 3):
            session.bind(small_pixels(n))
            session.run()
            session.synchronise()
            assert np.allclose(session.fetch(), eager(torch.from_numpy(small_pixels(n))).detach().numpy(), rtol=1e-4, atol=1e-5)
        kept_NK = session.fetch()
        session.bind(255 - small_pixels(3))
        session.run()
        assert not np.array_equal(session.fetch(), kept_NK)
        assert sorted((layer.op, layer.precision) for layer in session.evidence().layers) == [("Conv", "float32"), ("MatMul", "float32")]
    (folder / "model_bany.pt2").write_bytes(b"PK" + bytes(64))
    with pytest.raises(BackendError, match=r"model_bany\.pt2"), BACKEND.load(artifact, folder, threads=1) as session:
        session.bind(small_pixels(1))


def test_a_missing_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_program, build) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "C++ compiler" in BACKEND.probe(CPU).reason
    with pytest.raises(Unavailable, match="cannot compile"):
        build(BACKEND, small_program)


def test_a_model_that_is_only_onnx_is_refused(small_graph, build) -> None:
    with pytest.raises(Unsupported, match="PyTorch program"):
        build(BACKEND, small_graph())


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_other_precisions_are_refused_before_anything_is_built(precision: str) -> None:
    refusal = BACKEND.refuses(precision, CPU)
    assert refusal is not None
    assert precision in refusal.reason
    assert BACKEND.refuses("fp32", CPU) is None
    assert BACKEND.probe(Target(device="cuda")).state == "unavailable"
