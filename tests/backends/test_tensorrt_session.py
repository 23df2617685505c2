"""Running an engine. The real thing needs a GPU: see the tests marked gpu at the end.

Everywhere else the CUDA runtime and the engine are stand-ins, because neither exists without a GPU: memory is host memory,
a stream runs its work at once or records it while it is captured, the engine is a linear map. They hold the order of calls,
what is allocated when, which bytes are copied, and that everything is freed. The stand-in's functions take as many arguments
as the real ones (held below), the engine's as many as test_tensorrt_names.py finds in the bindings.
"""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploycnn.backends.tensorrt.cuda import Cuda, Device
from deploycnn.backends.tensorrt.libraries import Library
from deploycnn.backends.tensorrt.messages import Messages
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.backends.tensorrt.session import TensorRTSession
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.types import Artifact, Evidence, FileEntry, LayerEvidence, Target, TensorSpec

SHAPE_CHW = (3, 4, 4)
N_CLASSES = 5
WEIGHTS_DK = np.random.default_rng(0).normal(size=(48, N_CLASSES)).astype(np.float32)


class Error(IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorStreamCaptureUnsupported = 900


OK = Error.cudaSuccess


class StandInRuntime:
    """cuda.bindings.runtime over host memory."""

    cudaStreamNonBlocking, cudaEventDefault, cudaHostAllocDefault = 1, 0, 0
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrComputeCapabilityMajor=75, cudaDevAttrComputeCapabilityMinor=76)
    cudaError_t = Error

    def __init__(self) -> None:
        self.log: list[str] = []
        self.memory: dict[int, Any] = {}
        self.live: set[tuple[str, int]] = set()
        self.capturing: dict[int, list[Callable[[], None]]] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.handles = iter(range(1, 10_000))
        self.out_of_memory = False

    def work(self, stream: int, action: Callable[[], None], name: str) -> None:
        """Enqueues: at once, or into the graph that is being captured."""
        assert ("stream", stream) in self.live
        if stream in self.capturing:
            self.capturing[stream].append(action)
        else:
            self.log.append(f"{name}@{stream}")
            action()

    def _made(self, kind: str) -> tuple[Error, int]:
        handle = next(self.handles)
        self.live.add((kind, handle))
        return OK, handle

    def _gone(self, kind: str, handle: int) -> tuple[Error]:
        self.live.remove((kind, handle))
        return (OK,)

    def cudaGetDeviceCount(self) -> tuple[Error, int]:
        return OK, 2

    def cudaDeviceGetAttribute(self, attr: int, device: int) -> tuple[Error, int]:
        return OK, {(75, 0): 9, (76, 0): 0, (75, 1): 8, (76, 1): 9}[attr, device]

    def cudaGetDeviceProperties(self, device: int) -> tuple[Error, Any]:
        return OK, SimpleNamespace(name=b"Stand-in\0\0")

    def cudaSetDevice(self, device: int) -> tuple[Error]:
        return (OK,)

    def _allocated(self, kind: str, size: int) -> tuple[Error, int | None]:
        if self.out_of_memory:
            return Error.cudaErrorMemoryAllocation, None
        block = (ctypes.c_uint8 * size)()
        address = ctypes.addressof(block)
        self.memory[address] = block
        self.live.add((kind, address))
        self.log.append(f"{kind}({size})")
        return OK, address

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Error, int | None]:
        return self._allocated("host", size)

    def cudaMalloc(self, size: int) -> tuple[Error, int | None]:
        return self._allocated("device", size)

    def cudaFreeHost(self, ptr: int) -> tuple[Error]:
        return self._gone("host", ptr)

    def cudaFree(self, devPtr: int) -> tuple[Error]:
        return self._gone("device", devPtr)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: int, stream: int) -> tuple[Error]:
        ends = {1: ("device", "host"), 2: ("host", "device")}[kind]
        assert (ends[0], dst) in self.live
        assert (ends[1], src) in self.live
        self.work(stream, lambda: ctypes.memmove(dst, src, count) and None, f"copy{kind}[{count}]")
        return (OK,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Error, int]:
        return self._made("stream")

    def cudaStreamSynchronize(self, stream: int) -> tuple[Error]:
        assert stream not in self.capturing
        self.log.append(f"wait@{stream}")
        return (OK,)

    def cudaStreamDestroy(self, stream: int) -> tuple[Error]:
        return self._gone("stream", stream)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[Error]:
        self.capturing[stream] = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Error, int | None]:
        _, graph = self._made("graph")
        self.graphs[graph] = self.capturing.pop(stream)
        return OK, graph

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Error, int]:
        _, executable = self._made("executable")
        self.graphs[executable] = self.graphs[graph]
        return OK, executable

    def cudaGraphLaunch(self, graphExec: int, stream: int) -> tuple[Error]:
        assert ("executable", graphExec) in self.live
        self.log.append(f"graph[{len(self.graphs[graphExec])}]@{stream}")
        for action in self.graphs[graphExec]:
            action()
        return (OK,)

    def cudaGraphDestroy(self, graph: int) -> tuple[Error]:
        return self._gone("graph", graph)

    def cudaGraphExecDestroy(self, graphExec: int) -> tuple[Error]:
        return self._gone("executable", graphExec)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[Error, int]:
        return self._made("event")

    def cudaEventRecord(self, event: int, stream: int) -> tuple[Error]:
        self.log.append(f"event@{stream}")
        return (OK,)

    def cudaEventSynchronize(self, event: int) -> tuple[Error]:
        return (OK,)

    def cudaEventElapsedTime(self, start: int, end: int) -> tuple[Error, float]:
        assert start != end
        return OK, 2.5

    def cudaEventDestroy(self, event: int) -> tuple[Error]:
        return self._gone("event", event)

    def cudaGetErrorName(self, error: Error) -> tuple[Error, bytes]:
        return OK, error.name.encode()

    def cudaGetErrorString(self, error: Error) -> tuple[Error, bytes]:
        return OK, b"what it means"


class StandInContext:
    def __init__(self, engine: StandInEngine) -> None:
        self.engine, self.addresses, self.batch = engine, {}, 0

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return name in ("pixels", "logits")

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert name == "pixels"
        assert shape[1:] == SHAPE_CHW
        self.batch = shape[0]
        return self.engine.least <= shape[0] <= self.engine.most

    def execute_async_v3(self, stream_handle: int) -> bool:
        runtime, batch = self.engine.runtime, self.batch
        if stream_handle in runtime.capturing and self.engine.no_capture:
            return False

        def action() -> None:
            pixels = (ctypes.c_uint8 * (batch * 48)).from_address(self.addresses["pixels"])
            logits = (ctypes.c_float * (batch * N_CLASSES)).from_address(self.addresses["logits"])
            x_ND = np.ctypeslib.as_array(pixels).reshape(batch, 48).astype(np.float32)
            np.ctypeslib.as_array(logits)[:] = (x_ND @ WEIGHTS_DK).ravel()

        runtime.work(stream_handle, action, "execute")
        return True


class StandInInspector:
    def __init__(self, text: str) -> None:
        self.execution_context: object = None
        self.text = text

    def get_engine_information(self, format: str) -> str:
        assert format == "json"
        return self.text


class StandInEngine:
    def __init__(self, runtime: StandInRuntime, least: int = 1, most: int = 8, fixed: bool = False, no_capture: bool = False) -> None:
        self.runtime, self.least, self.most, self.fixed, self.no_capture = runtime, least, most, fixed, no_capture
        self.num_io_tensors = 2
        self.information = '{"Layers": []}'
        self.contexts: list[StandInContext] = []
        self.configs: list[Any] = []
        self.types = {"pixels": ("in", "u8"), "logits": ("out", "f32")}

    def get_tensor_name(self, index: int) -> str:
        return ("pixels", "logits")[index]

    def get_tensor_mode(self, name: str) -> str:
        return self.types[name][0]

    def get_tensor_dtype(self, name: str) -> str:
        return self.types[name][1]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self.most if self.fixed else -1, *SHAPE_CHW)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return [(size, *SHAPE_CHW) for size in (self.least, self.most, self.most)]

    def create_execution_context(self, runtime_config: Any = None) -> StandInContext:
        self.configs.append(runtime_config)
        self.contexts.append(StandInContext(self))
        return self.contexts[-1]

    def create_runtime_config(self) -> Any:
        return SimpleNamespace()

    def create_engine_inspector(self) -> StandInInspector:
        return StandInInspector(self.information)


BINDING = SimpleNamespace(
    __version__="0",
    uint8="u8",
    float32="f32",
    TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
    LayerInformationFormat=SimpleNamespace(JSON="json"),
    DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER="eager"),
    CudaGraphStrategy=SimpleNamespace(WHOLE_GRAPH_CAPTURE="whole", DISABLED="disabled"),
)


def made(engine: StandInEngine, library: str = "tensorrt", evidence: Evidence | None = None, **options: Any) -> TensorRTSession:
    artifact = Artifact(
        backend="tensorrt",
        backend_version="0",
        target=Target.parse("cuda:sm89"),
        precision="fp16",
        files=(FileEntry(name="model.engine", size_bytes=1, sha256="0"),),
        sha256="0",
        parent_sha256="0",
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=SHAPE_CHW),
        output_name="logits",
        n_classes=N_CLASSES,
        batches=None,
        evidence=evidence,
        build_s=0,
        details={"products": [{"name": "dense", "op": "Gemm"}]},
    )
    return TensorRTSession(
        library=Library(name=library, module=BINDING),
        runtime=object(),
        engine=engine,
        cuda=Cuda(engine.runtime),
        device=Device(index=1, name="Stand-in", capability=89),
        messages=Messages(),
        artifact=artifact,
        options=TensorRTOptions(**options),
    )


def images(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (batch, *SHAPE_CHW)).astype(np.uint8)


def answer(session: TensorRTSession, x_NCHW: np.ndarray) -> np.ndarray:
    session.bind(x_NCHW)
    session.run()
    session.synchronise()
    return session.fetch()


def expected(x_NCHW: np.ndarray) -> np.ndarray:
    return x_NCHW.reshape(len(x_NCHW), -1).astype(np.float32) @ WEIGHTS_DK


@pytest.fixture
def runtime() -> StandInRuntime:
    return StandInRuntime()


@pytest.mark.parametrize("library", ["tensorrt", "tensorrt_rtx"])
@pytest.mark.parametrize("cuda_graph", [True, False])
@pytest.mark.parametrize("streams", [1, 3])
def test_every_way_of_running_gives_the_engines_logits(runtime: StandInRuntime, library: str, cuda_graph: bool, streams: int) -> None:
    with made(StandInEngine(runtime), library, cuda_graph=cuda_graph, streams=streams) as session:
        for step, batch in enumerate((1, 8, 8, 3, 1)):
            x_NCHW = images(batch, seed=step)
            logits_NK = answer(session, x_NCHW)
            assert logits_NK.dtype == np.float32
            np.testing.assert_allclose(logits_NK, expected(x_NCHW), rtol=1e-6)
    assert runtime.live == set(), "something was not freed"


def test_buffers_are_allocated_once_for_the_largest_batch(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime, most=8)) as session:
        for batch in (1, 8, 2):
            answer(session, images(batch))
    allocations = [entry for entry in runtime.log if entry.startswith(("host(", "device("))]
    assert allocations == [f"host({8 * 48})", f"host({8 * N_CLASSES * 4})", f"device({8 * 48})", f"device({8 * N_CLASSES * 4})"]


def test_a_run_with_a_graph_is_one_launch_of_copies_and_execution(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime)) as session:
        session.bind(images(2))
        runtime.log.clear()
        session.run()
        session.synchronise()
        (stream,) = {entry.partition("@")[2] for entry in runtime.log}
        assert runtime.log == [f"graph[3]@{stream}", f"wait@{stream}"]


def test_a_run_without_a_graph_copies_only_its_own_batch(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime), cuda_graph=False) as session:
        session.bind(images(2))
        runtime.log.clear()
        session.run()
        assert [entry.partition("@")[0] for entry in runtime.log] == [f"copy1[{2 * 48}]", "execute", f"copy2[{2 * N_CLASSES * 4}]"]


def test_a_new_shape_is_warmed_up_before_it_is_captured(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime)) as session:
        runtime.log.clear()
        session.bind(images(4))
        kinds = [entry.partition("@")[0].partition("[")[0] for entry in runtime.log]
        assert kinds.index("execute") < kinds.index("graph")
        runtime.log.clear()
        session.bind(images(4, seed=1))
        assert not any(entry.startswith(("graph", "execute")) for entry in runtime.log), "the same shape needs no second preparation"


def test_streams_take_turns_and_are_all_waited_for(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime), streams=3) as session:
        assert session.streams == 3
        session.bind(images(2))
        runtime.log.clear()
        for _ in range(6):
            session.run()
        order = [entry.partition("@")[2] for entry in runtime.log]
        assert len(set(order)) == 3
        assert order[:3] == order[3:]
        runtime.log.clear()
        session.synchronise()
        assert {entry.partition("@")[2] for entry in runtime.log} == set(order)


def test_rtx_is_asked_to_compile_at_once_and_to_record_its_own_graphs(runtime: StandInRuntime) -> None:
    engine = StandInEngine(runtime)
    with made(engine, "tensorrt_rtx") as session:
        answer(session, images(1))
    (config,) = engine.configs
    assert (config.dynamic_shapes_kernel_specialization_strategy, config.cuda_graph_strategy) == ("eager", "whole")
    assert not any(entry.startswith("graph") for entry in runtime.log)
    with made(engine, "tensorrt_rtx", cuda_graph=False):
        assert engine.configs[-1].cuda_graph_strategy == "disabled"


def test_an_engine_that_cannot_be_captured_runs_kernel_by_kernel_and_says_so(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime, no_capture=True)) as session:
        x_NCHW = images(2)
        np.testing.assert_allclose(answer(session, x_NCHW), expected(x_NCHW), rtol=1e-6)
        assert any("kernel by kernel" in note for note in session.evidence().notes)
    assert runtime.live == set()


def test_device_time_leaves_the_copies_out(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime)) as session:
        session.bind(images(2))
        runtime.log.clear()
        session.mark_device()
        session.run_on_device()
        session.run_on_device()
        assert session.device_elapsed_s() == pytest.approx(2.5e-3)
        assert [entry.partition("@")[0] for entry in runtime.log] == ["event", "graph[1]", "graph[1]", "event"]


@pytest.mark.parametrize(
    "x_NCHW",
    [
        np.zeros((9, *SHAPE_CHW), np.uint8),
        np.zeros((0, *SHAPE_CHW), np.uint8),
        np.zeros((1, 3, 4, 5), np.uint8),
        np.zeros((1, *SHAPE_CHW), np.float32),
        np.zeros((1, 4, 4, 3), np.uint8).transpose(0, 3, 1, 2),
    ],
    ids=["too many", "none", "another shape", "another type", "not contiguous"],
)
def test_input_that_the_engine_cannot_take_is_refused(runtime: StandInRuntime, x_NCHW: np.ndarray) -> None:
    with made(StandInEngine(runtime)) as session, pytest.raises(Unsupported):
        session.bind(x_NCHW)


def test_a_batch_below_the_profile_is_refused(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime, least=4)) as session, pytest.raises(Unsupported, match="batch 2"):
        session.bind(images(2))


def test_a_fixed_batch_comes_from_the_engine(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime, least=4, most=4, fixed=True)) as session:
        np.testing.assert_allclose(answer(session, images(4)), expected(images(4)), rtol=1e-6)
        with pytest.raises(Unsupported, match="batch 5"):
            session.bind(images(5))


def test_tensors_that_the_artifact_does_not_promise_are_an_error(runtime: StandInRuntime) -> None:
    engine = StandInEngine(runtime)
    engine.types["pixels"] = ("in", "f32")
    with pytest.raises(BackendError, match="tensors"):
        made(engine)


def test_what_is_fetched_does_not_change_with_later_runs(runtime: StandInRuntime) -> None:
    with made(StandInEngine(runtime)) as session:
        first = answer(session, images(2, seed=0))
        kept = first.copy()
        answer(session, images(2, seed=1))
        np.testing.assert_array_equal(first, kept)


def test_closing_twice_is_harmless(runtime: StandInRuntime) -> None:
    session = made(StandInEngine(runtime))
    answer(session, images(1))
    session.close()
    session.close()
    assert runtime.live == set()


def test_memory_that_runs_out_is_named(runtime: StandInRuntime) -> None:
    runtime.out_of_memory = True
    with pytest.raises(BackendError, match="memory is too small") as caught:
        made(StandInEngine(runtime))
    assert "cudaErrorMemoryAllocation" in caught.value.found


@pytest.mark.parametrize("information", ['{"Layers": []}', '{"Layers": ["dense"]}', "no JSON"])
def test_an_inspector_that_says_nothing_leaves_what_the_plan_proved(runtime: StandInRuntime, information: str) -> None:
    engine = StandInEngine(runtime)
    engine.information = information
    proved = Evidence(source="text of the plan", provider="x", layers=(LayerEvidence(name="dense", op="Gemm", precision="float16"),))
    with made(engine, evidence=proved) as session:
        answer(session, images(1))
        found = session.evidence()
    assert found.source == "text of the plan"
    assert found.layers == proved.layers
    assert "Stand-in (sm89)" in found.provider
    with made(engine) as session:
        assert session.evidence().layers == ()


def test_the_stand_in_takes_as_many_arguments_as_the_real_runtime() -> None:
    real = pytest.importorskip("cuda.bindings.runtime")
    for name, function in inspect.getmembers(StandInRuntime, inspect.isfunction):
        if name.startswith("cuda"):
            documented = re.match(rf"{name}\((.*)\)", getattr(real, name).__doc__.strip())
            assert documented, name
            wanted = len([argument for argument in documented[1].split(", ") if argument])
            assert len(inspect.signature(function).parameters) - 1 == wanted, name


def test_devices_are_listed_and_errors_translated(runtime: StandInRuntime) -> None:
    cuda = Cuda(runtime)
    assert [(device.capability, device.name) for device in cuda.devices()] == [(90, "Stand-in"), (89, "Stand-in")]
    with pytest.raises(Unavailable, match="no GPU answers"):
        cuda.check("cudaGetDeviceCount", Error.cudaErrorInsufficientDriver)
    with pytest.raises(BackendError, match="cudaStreamBeginCapture failed"):
        cuda.check("cudaStreamBeginCapture", Error.cudaErrorStreamCaptureUnsupported)


def test_the_real_runtime_is_asked_and_understood() -> None:
    """The answer of a machine without a GPU is error 35 or 100, translated; of one with a GPU, its list."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    error, _ = runtime.cudaGetDeviceCount()
    if int(error):
        with pytest.raises(Unavailable, match="no GPU answers") as caught:
            Cuda.find().devices()
        assert "cudaError" in caught.value.found
    else:
        assert all(device.capability >= 50 for device in Cuda.find().devices())
