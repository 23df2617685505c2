"""An engine that does not fit: cut short, changed, of another version, library or GPU, or no engine at all. Real plans."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploycnn.backends.tensorrt import ENGINE_FILE, TensorRTBackend, loading
from deploycnn.backends.tensorrt.cuda import Device
from deploycnn.backends.tensorrt.libraries import Library, find_library
from deploycnn.backends.tensorrt.messages import Messages, vendor_error
from deploycnn.environment import environment
from deploycnn.errors import BackendError, DeployError, Unavailable, Unsupported
from deploycnn.types import Artifact, CompileRequest, FileEntry, Target, Variant

tensorrt_rtx = pytest.importorskip("tensorrt_rtx")
VERSION = str(tensorrt_rtx.__version__)


@pytest.fixture
def engine(small_graph: Callable[..., Variant], tmp_path: Path) -> tuple[Artifact, Path]:
    """An engine for sm89 as a worker would record it, and its folder."""
    variant, folder = small_graph("fp16"), tmp_path / "engine"
    folder.mkdir()
    target = Target.parse("cuda:sm89")
    request = CompileRequest(variant=variant, target=target, batches=(1, 4), folder=folder, cache_folder=tmp_path)
    result = TensorRTBackend().compile(request, lambda step: None)
    artifact = Artifact(
        backend="tensorrt",
        backend_version=VERSION,
        target=target,
        precision="fp16",
        files=(entry(folder / ENGINE_FILE),),
        sha256="0",
        parent_sha256=variant.sha256,
        input=variant.input,
        output_name="logits",
        n_classes=4,
        batches=result.batches,
        evidence=result.evidence,
        build_s=0,
        details=result.details,
    )
    return artifact, folder


def entry(path: Path) -> FileEntry:
    data = path.read_bytes()
    return FileEntry(name=path.name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def refused(artifact: Artifact, folder: Path) -> DeployError:
    with pytest.raises(BackendError) as caught:
        TensorRTBackend().load(artifact, folder, 1)
    assert caught.value.remedy
    return caught.value


def swapped(engine: tuple[Artifact, Path], data: bytes) -> DeployError:
    """The error for other bytes that the artifact vouches for, as a cache filled by another tool would."""
    artifact, folder = engine
    (folder / ENGINE_FILE).write_bytes(data)
    return refused(artifact.model_copy(update={"files": (entry(folder / ENGINE_FILE),)}), folder)


@pytest.mark.parametrize("kept", [0, 10, 64, 1000, -1])
def test_a_file_cut_short_says_how_much_is_there(engine: tuple[Artifact, Path], kept: int) -> None:
    artifact, folder = engine
    data = (folder / ENGINE_FILE).read_bytes()[:kept]
    (folder / ENGINE_FILE).write_bytes(data)
    error = refused(artifact, folder)
    assert "cut short" in error.asked
    assert f"{len(data)} bytes of {artifact.files[0].size_bytes}" in error.found


def test_a_changed_byte_is_noticed(engine: tuple[Artifact, Path]) -> None:
    artifact, folder = engine
    data = bytearray((folder / ENGINE_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / ENGINE_FILE).write_bytes(data)
    assert "was changed" in refused(artifact, folder).asked


def test_a_missing_file_is_named(engine: tuple[Artifact, Path]) -> None:
    artifact, folder = engine
    (folder / ENGINE_FILE).unlink()
    assert ENGINE_FILE in refused(artifact, folder).asked


@pytest.mark.parametrize("size", [0, 3, 64, 5000])
def test_random_bytes_are_no_engine(engine: tuple[Artifact, Path], size: int) -> None:
    error = swapped(engine, random.Random(size).randbytes(size))
    assert "no engine of TensorRT for RTX" in error.asked


def test_a_plan_shorter_than_its_header_says_is_damaged(engine: tuple[Artifact, Path]) -> None:
    data = (engine[1] / ENGINE_FILE).read_bytes()
    error = swapped(engine, data[: len(data) // 2])
    assert "damaged" in error.asked
    assert f"its header says {len(data)}" in error.found


@pytest.mark.parametrize("byte", [24, 25, 26, 27])
def test_a_plan_of_another_version_names_both(engine: tuple[Artifact, Path], byte: int) -> None:
    data = bytearray((engine[1] / ENGINE_FILE).read_bytes())
    data[byte] += 1
    error = swapped(engine, bytes(data))
    foreign = ".".join(str(part) for part in data[24:28])
    assert foreign in error.asked
    assert VERSION in error.found


@pytest.mark.parametrize(
    ("details", "kind", "words"),
    [
        ({"library_version": "1.6.0.1"}, BackendError, ("1.6.0.1", VERSION)),
        ({"library": "tensorrt"}, Unavailable, ("the engine needs TensorRT", "not installed")),
        ({"library": ""}, BackendError, ("does not say which TensorRT",)),
    ],
    ids=["another version", "another library", "no library"],
)
def test_an_artifact_of_another_library_or_version_says_which_differs(
    engine: tuple[Artifact, Path], details: dict[str, Any], kind: type[BackendError], words: tuple[str, ...]
) -> None:
    if details.get("library") == "tensorrt" and isinstance(find_library("tensorrt"), Library):
        pytest.skip("full TensorRT is installed here")
    artifact, folder = engine
    error = refused(artifact.model_copy(update={"details": {**artifact.details, **details}}), folder)
    assert isinstance(error, kind)
    assert all(word in str(error) for word in words)


def test_an_engine_of_rtx_is_not_given_to_full_tensorrt(engine: tuple[Artifact, Path]) -> None:
    plan = (engine[1] / ENGINE_FILE).read_bytes()
    full = Library(name="tensorrt", module=SimpleNamespace(__version__="11.4.0.106"))
    with pytest.raises(BackendError, match="an engine of TensorRT for RTX") as caught:
        loading.check_plan(plan, full)
    assert "11.4.0.106" in caught.value.found


def test_the_gpu_is_the_first_of_the_engines_capability(engine: tuple[Artifact, Path]) -> None:
    artifact, _ = engine
    hopper, ada = Device(index=0, name="Hopper", capability=90), Device(index=1, name="Ada", capability=89)
    assert loading.pick_device(artifact, (hopper, ada)) == ada
    with pytest.raises(BackendError, match="built for sm89") as caught:
        loading.pick_device(artifact, (hopper,))
    assert "Hopper (sm90)" in caught.value.found


@pytest.mark.skipif(bool(environment().gpus), reason="a GPU is here")
def test_a_good_engine_without_a_gpu_says_that_none_answers(engine: tuple[Artifact, Path]) -> None:
    pytest.importorskip("cuda.bindings.runtime")
    error = refused(*engine)
    assert isinstance(error, Unavailable)
    assert "no GPU answers" in error.asked


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan[: len(plan) // 2], "damaged"),
        (lambda plan: plan[:10], "damaged"),
        (lambda plan: b"", "damaged"),
        (lambda plan: random.Random(0).randbytes(len(plan)), "no engine"),
        (lambda plan: plan[:64] + bytes([plan[64] ^ 3]) + plan[65:], "damaged"),
    ],
    ids=["half", "ten bytes", "empty", "random", "no engine in it"],
)
def test_what_the_library_itself_says_of_such_files_is_understood(
    engine: tuple[Artifact, Path], change: Callable[[bytes], bytes], words: str
) -> None:
    """Behind our own checks; the runtime finds these even without a GPU."""
    library = find_library("tensorrt_rtx")
    assert isinstance(library, Library)
    with pytest.raises(BackendError, match=words) as caught:
        loading.deserialise(change((engine[1] / ENGINE_FILE).read_bytes()), library)
    assert "/_src/" not in caught.value.found


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "The engine plan file is not compatible with this version of TensorRT, expecting library version 10.13.3 got 10.8.0",
            BackendError,
            "another version",
        ),
        (
            "The engine plan file is generated on an incompatible device, expecting compute 8.9 got compute 9.0",
            BackendError,
            "another GPU",
        ),
        ("The engine cannot run on this GPU, which has compute capability 9.0", BackendError, "another GPU"),
        ("Serialization assertion stdVersionRead == kVERSION failed.Version tag does not match", BackendError, "another version"),
        ("Cuda Runtime (cudaError 35: CUDA driver version is insufficient)", Unavailable, "no NVIDIA driver"),
        ("Error Code 2: OutOfMemory (Requested size was 1 bytes.)", BackendError, "memory is too small"),
        ("FP32 GEMM is not supported", Unsupported, "fp32 matrix product"),
        ("something new", BackendError, "it failed"),
    ],
)
def test_messages_of_both_libraries_are_told_apart(text: str, kind: type[BackendError], words: str) -> None:
    messages = Messages()
    messages.add("INFO", "cudaError 35")
    messages.add("ERROR", text)
    error = vendor_error("it failed", messages, "try")
    assert type(error) is kind
    assert words in error.asked
    assert error.found
