"""TVM for GPUs that are not here: that its kernels compile is the proof."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deploycnn.backends.tvm as tvm_backend
from deploycnn.backends.tvm import TVMBackend, _cuda
from deploycnn.environment import Gpu, environment
from deploycnn.errors import BackendError, Unavailable
from deploycnn.types import Target

BACKEND = TVMBackend()
needs_compiler = pytest.mark.skipif(not _cuda.compiler(), reason="neither NVRTC nor nvcc is here")


def machine_with(monkeypatch: pytest.MonkeyPatch, *capabilities: int) -> None:
    gpus = tuple(Gpu(name=f"imaginary sm{c}", capability=c, memory_bytes=8 << 30) for c in capabilities)
    machine = environment().model_copy(update={"gpus": gpus, "gpu_reason": "" if gpus else "no driver"})
    monkeypatch.setattr(tvm_backend, "environment", lambda: machine)


@needs_compiler
@pytest.mark.parametrize(("precision", "multiplied", "capability"), [("fp32", "float32", 75), ("fp16", "float16", 90)])
def test_every_kernel_is_compiled_for_a_gpu_that_is_not_here(small_graph, build, precision: str, multiplied: str, capability: int) -> None:
    artifact, compiled, folder = build(BACKEND, small_graph(precision), batches=(1, 2), target=f"cuda:sm{capability}")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["capability"] == capability
    assert sorted(manifest["kernels"].values()) == [f"kernels_b{n}_sm{capability}.cubin" for n in (1, 2)]
    for batch in (1, 2):
        cubin = (folder / f"kernels_b{batch}_sm{capability}.cubin").read_bytes()
        assert cubin.startswith(b"\x7fELF")
        kernels = compiled.details[f"batch {batch}"]["kernels"]
        assert kernels
        assert all(name.encode() in cubin for name in kernels)
    assert [(layer.op, layer.precision) for layer in artifact.evidence.layers] == [("Conv", multiplied), ("MatMul", multiplied)]
    assert f"cuda:sm{capability}" in artifact.evidence.provider
    assert not artifact.evidence.simulated
    if not environment().gpus:
        with pytest.raises(Unavailable, match="CUDA artifact"):
            BACKEND.load(artifact, folder, threads=1)


@needs_compiler
def test_int8_for_a_gpu_is_simulated_too(small_graph, quantised, build) -> None:
    artifact, compiled, _ = build(BACKEND, quantised(small_graph()), batches=(1,), target="cuda:sm89")
    assert artifact.evidence.simulated
    assert any("simulated int8" in note for note in compiled.notes)


@needs_compiler
@pytest.mark.parametrize("source", ["__global__ void f() { undeclared; }", "#include <no_such_header.h>"])
def test_source_that_does_not_compile_is_an_error_with_the_compilers_words(source: str) -> None:
    with pytest.raises(BackendError, match="do not compile for sm_89") as caught:
        _cuda.compile_kernels(source, 89)
    assert "error" in caught.value.found


def test_without_any_compiler_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch, small_graph, build) -> None:
    monkeypatch.setattr(_cuda, "compiler", lambda: "")
    readiness = BACKEND.probe(Target.parse("cuda:sm89"))
    assert readiness.state == "unavailable"
    assert "NVRTC" in readiness.reason
    with pytest.raises(Unavailable, match="cannot be compiled"):
        _cuda.compile_kernels("", 89)


@needs_compiler
@pytest.mark.parametrize(
    ("target", "here", "state"),
    [
        ("cuda", (), "unavailable"),
        ("cuda:sm89", (), "build-only"),
        ("cuda:sm89", (75,), "build-only"),
        ("cuda", (75,), "ready"),
        ("cuda:sm89", (89,), "ready"),
    ],
)
def test_what_can_run_is_told_from_what_can_be_built(
    monkeypatch: pytest.MonkeyPatch, target: str, here: tuple[int, ...], state: str
) -> None:
    machine_with(monkeypatch, *here)
    monkeypatch.setattr(_cuda, "has_runtime", lambda: True)
    readiness = BACKEND.probe(Target.parse(target))
    assert readiness.state == state
    assert bool(readiness.reason) == bool(readiness.remedy) == (state != "ready")


def test_a_tvm_without_its_cuda_runtime_only_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, 89)
    monkeypatch.setattr(_cuda, "has_runtime", lambda: False)
    monkeypatch.setattr(_cuda, "compiler", lambda: "nvrtc")
    readiness = BACKEND.probe(Target.parse("cuda"))
    assert readiness.state == "build-only"
    assert "CUDA runtime" in readiness.reason


@pytest.mark.gpu
def test_a_gpu_runs_the_kernels_that_were_compiled(small_graph, build, small_pixels, expected) -> None:
    import numpy as np

    variant = small_graph()
    artifact, _, folder = build(BACKEND, variant, batches=(1, 3), target="cuda")
    with BACKEND.load(artifact, folder, threads=1) as session:
        for n in (1, 3):
            session.bind(small_pixels(n))
            session.run()
            session.synchronise()
            assert np.allclose(session.fetch(), expected(variant, small_pixels(n)), rtol=1e-3, atol=1e-3)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"capability": {environment().gpus[0].capability}', '"capability": 1'))
    with pytest.raises(BackendError, match="compiled for sm_1"):
        BACKEND.load(artifact, folder, threads=1)


def test_headers_for_nvrtc_are_found_beside_the_wheels() -> None:
    folders = _cuda._include_folders()
    assert all((folder / "cuda_fp16.h").is_file() or folder == Path("/usr/local/cuda/include") for folder in folders)
