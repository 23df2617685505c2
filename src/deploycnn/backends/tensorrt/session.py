"""An engine on a GPU: buffers allocated once, one launch per inference.

The boundary is host to host: pixels lie in page-locked memory, one `run` copies them to the device, executes, and copies the
logits back, all on one stream; `synchronise` waits for it. With full TensorRT the three are captured as one CUDA graph per
batch size and replayed. TensorRT for RTX compiles kernels while it runs and records its own graphs: it is asked to.
Written against both bindings' signatures; needs a GPU to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deploycnn.backends._contract import Session
from deploycnn.backends.tensorrt.cuda import Cuda, Device
from deploycnn.backends.tensorrt.evidence import from_inspector
from deploycnn.backends.tensorrt.graph_checks import MatrixNode
from deploycnn.backends.tensorrt.libraries import Library
from deploycnn.backends.tensorrt.messages import Messages, vendor_error
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.errors import BackendError, Unsupported
from deploycnn.types import Artifact, Evidence

_WARM_UPS = 2  # before capture: TensorRT settles what a new shape deferred on the first enqueue


class Lane:
    """One stream with a context and buffers of its own, for the largest batch.

    Args:
        cuda: the runtime.
        context: execution context, not shared.
        input_name, output_name: tensors of the engine.
        input_bytes, output_bytes: of the largest batch.
    """

    def __init__(self, cuda: Cuda, context: Any, input_name: str, output_name: str, input_bytes: int, output_bytes: int) -> None:
        self._cuda = cuda
        self._input_name = input_name
        self.context = context
        self.stream = cuda.call("cudaStreamCreateWithFlags", cuda.api.cudaStreamNonBlocking)
        self._host_in, self.pixels = cuda.pinned(input_bytes)
        self._host_out, self.logits = cuda.pinned(output_bytes)
        self._device_in = cuda.call("cudaMalloc", input_bytes)
        self._device_out = cuda.call("cudaMalloc", output_bytes)
        self.graph_failure = ""  # why the launch could not be recorded
        self._graphs: list[Any] = []
        self._copied = (0, 0)
        self.launch: Callable[[], None] = self.enqueue
        self.launch_device: Callable[[], None] = self.execute
        for name, address in ((input_name, self._device_in), (output_name, self._device_out)):
            if not context.set_tensor_address(name, int(address)):
                raise BackendError(f"the engine has no tensor {name}", remedy="build the engine again")

    def prepare(self, shape_NCHW: tuple[int, ...], input_bytes: int, output_bytes: int, *, capture: bool) -> None:
        """Makes the lane ready for one input shape. Raises Unsupported where the engine's profile excludes it."""
        self._drop_graphs()
        if not self.context.set_input_shape(self._input_name, shape_NCHW):
            raise Unsupported(f"the engine does not run batch {shape_NCHW[0]}", remedy="build it with a profile that holds this batch size")
        self._copied = (input_bytes, output_bytes)
        for _ in range(_WARM_UPS):
            self.enqueue()
        self.wait()
        if capture:
            try:
                self.launch, self.launch_device = self._captured(self.enqueue), self._captured(self.execute)
            except BackendError as error:  # an engine that cannot be captured runs all the same, and says so
                self._drop_graphs()
                self.graph_failure = error.one_line

    def enqueue(self) -> None:
        """Copy in, execute, copy out."""
        kind, (input_bytes, output_bytes) = self._cuda.api.cudaMemcpyKind, self._copied
        copy = "cudaMemcpyAsync"
        self._cuda.call(copy, self._device_in, self._host_in, input_bytes, kind.cudaMemcpyHostToDevice, self.stream)
        self.execute()
        self._cuda.call(copy, self._host_out, self._device_out, output_bytes, kind.cudaMemcpyDeviceToHost, self.stream)

    def execute(self) -> None:
        """Execute on what is on the device already."""
        if not self.context.execute_async_v3(int(self.stream)):
            raise BackendError("TensorRT did not launch the engine", remedy="build the engine again for this GPU and version")

    def wait(self) -> None:
        self._cuda.call("cudaStreamSynchronize", self.stream)

    def close(self) -> None:
        """The context goes before the buffers that it points to."""
        self.wait()
        self._drop_graphs()
        self.context = None
        del self.pixels, self.logits
        for free, address in (
            ("cudaFree", self._device_in),
            ("cudaFree", self._device_out),
            ("cudaFreeHost", self._host_in),
            ("cudaFreeHost", self._host_out),
        ):
            self._cuda.call(free, address)
        self._cuda.call("cudaStreamDestroy", self.stream)

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """A call that replays `work` as one CUDA graph."""
        api = self._cuda.api
        self._cuda.call("cudaStreamBeginCapture", self.stream, api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
        try:
            work()
        except BackendError:  # leave capture mode, or the stream is of no use
            self._cuda.call("cudaGraphDestroy", self._cuda.call("cudaStreamEndCapture", self.stream))
            raise
        graph = self._cuda.call("cudaStreamEndCapture", self.stream)
        executable = self._cuda.call("cudaGraphInstantiate", graph, 0)
        self._cuda.call("cudaGraphDestroy", graph)
        self._graphs.append(executable)
        launch, stream = api.cudaGraphLaunch, self.stream

        def replay() -> None:  # the timed path: one call
            if error := int(launch(executable, stream)[0]):
                self._cuda.check("cudaGraphLaunch", api.cudaError_t(error))

        replay()
        self.wait()
        return replay

    def _drop_graphs(self) -> None:
        self.launch, self.launch_device = self.enqueue, self.execute
        for executable in self._graphs:
            self._cuda.call("cudaGraphExecDestroy", executable)
        self._graphs.clear()


class TensorRTSession(Session):
    """A loaded engine. `streams` runs may be in flight at once: each goes to the next lane, `synchronise` waits for all.

    Device time, where a caller wants it beside host to host: `mark_device()`, any number of `run_on_device()`, then
    `device_elapsed_s()` gives the seconds between, by CUDA events on the first lane's stream, copies left out.
    """

    def __init__(
        self,
        *,
        library: Library,
        runtime: Any,
        engine: Any,
        cuda: Cuda,
        device: Device,
        messages: Messages,
        artifact: Artifact,
        options: TensorRTOptions,
    ) -> None:
        self._library, self._cuda, self._device = library, cuda, device
        self._runtime, self._engine = runtime, engine  # the engine lives no longer than its runtime
        self._messages, self._artifact = messages, artifact
        self._shape_CHW = artifact.input.shape_CHW
        self._dtype = np.dtype(artifact.input.dtype)
        self._largest = _largest_batch(engine, artifact)
        self._capture = options.cuda_graph and not library.is_rtx
        self._graph_note = _graph_note(options, library)
        _check_tensors(library, engine, artifact)
        image_bytes = self._dtype.itemsize * int(np.prod(self._shape_CHW))
        self._row_bytes = (image_bytes, 4 * artifact.n_classes)
        self._lanes: list[Lane] = []
        for _ in range(options.streams):
            context = self._context(options)
            names = (artifact.input.name, artifact.output_name)
            self._lanes.append(Lane(cuda, context, *names, *(self._largest * size for size in self._row_bytes)))
        self._batch, self._next, self._last = 0, 0, self._lanes[0]
        self._events = [cuda.call("cudaEventCreateWithFlags", cuda.api.cudaEventDefault) for _ in range(2)]

    @property
    def streams(self) -> int:
        """How many runs may be in flight at once."""
        return len(self._lanes)

    def bind(self, x_NCHW: np.ndarray) -> None:
        batch = int(x_NCHW.shape[0])
        if x_NCHW.dtype != self._dtype or x_NCHW.shape[1:] != self._shape_CHW or not x_NCHW.flags.c_contiguous:
            raise Unsupported(
                f"the engine reads contiguous {self._dtype} images of {self._shape_CHW}",
                found=f"{x_NCHW.dtype} {x_NCHW.shape}",
                remedy="give it images as the artifact's input says",
            )
        if not 1 <= batch <= self._largest:
            raise Unsupported(
                f"the engine does not run batch {batch}",
                found=f"its profile ends at {self._largest}",
                remedy="set backends.tensorrt.max_batch and build again",
            )
        input_bytes, output_bytes = (batch * size for size in self._row_bytes)
        self.synchronise()
        for lane in self._lanes:
            lane.pixels[:input_bytes] = x_NCHW.reshape(-1).view(np.uint8)
        if batch != self._batch:
            self._batch = 0
            for lane in self._lanes:
                lane.prepare((batch, *self._shape_CHW), input_bytes, output_bytes, capture=self._capture)
            self._batch = batch

    def run(self) -> None:
        lane = self._lanes[self._next]
        self._next = (self._next + 1) % len(self._lanes)
        self._last = lane
        lane.launch()

    def synchronise(self) -> None:
        for lane in self._lanes:
            lane.wait()

    def fetch(self) -> np.ndarray:
        self._last.wait()
        logits_N = self._last.logits[: self._batch * self._row_bytes[1]].view(np.float32)
        return logits_N.reshape(self._batch, self._artifact.n_classes).copy()

    def mark_device(self) -> None:
        """Begins device timing: everything `run_on_device` does from here counts."""
        self._cuda.call("cudaEventRecord", self._events[0], self._lanes[0].stream)

    def run_on_device(self) -> None:
        """One inference over pixels that are on the device since the last `run`, without copies."""
        self._lanes[0].launch_device()

    def device_elapsed_s(self) -> float:
        """Seconds of device time since `mark_device`; waits for the work."""
        start, end = self._events
        self._cuda.call("cudaEventRecord", end, self._lanes[0].stream)
        self._cuda.call("cudaEventSynchronize", end)
        return float(self._cuda.call("cudaEventElapsedTime", start, end)) / 1e3

    def evidence(self) -> Evidence:
        trt = self._library.module
        provider = f"{self._device.name} (sm{self._device.capability}), {self._library.title}"
        nodes = [MatrixNode(**node) for node in self._artifact.details.get("products", ())]
        inspector = self._engine.create_engine_inspector()
        if self._batch:
            inspector.execution_context = self._lanes[0].context  # with shapes set it knows formats of dynamic tensors
        tf32 = bool(self._artifact.details.get("tf32"))
        found = from_inspector(str(inspector.get_engine_information(trt.LayerInformationFormat.JSON)), nodes, provider, tf32=tf32)
        built = self._artifact.evidence
        if len(found.layers) < len(nodes) and built is not None and len(built.layers) == len(nodes):
            found = built.model_copy(update={"provider": provider, "notes": (*built.notes, *found.notes)})
        failure = self._lanes[0].graph_failure
        graph_note = f"launched kernel by kernel: {failure}" if failure else self._graph_note
        return found.model_copy(update={"notes": (*found.notes, graph_note)})

    def close(self) -> None:
        while self._events:
            self._cuda.call("cudaEventDestroy", self._events.pop())
        while self._lanes:
            self._lanes.pop().close()
        self._engine = self._runtime = None

    def _context(self, options: TensorRTOptions) -> Any:
        """A context; for RTX one that compiles for each new shape at once, and not in the background of a measurement."""
        trt = self._library.module
        if self._library.is_rtx:
            config = self._engine.create_runtime_config()
            config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
            strategy = trt.CudaGraphStrategy
            config.cuda_graph_strategy = strategy.WHOLE_GRAPH_CAPTURE if options.cuda_graph else strategy.DISABLED
            context = self._engine.create_execution_context(config)
        else:
            context = self._engine.create_execution_context()
        if context is None:
            raise vendor_error("TensorRT cannot make an execution context", self._messages, "lower max_batch or streams")
        return context


def _largest_batch(engine: Any, artifact: Artifact) -> int:
    """The engine's own word: the profile's maximum, or the batch that the graph fixes."""
    batch, *_ = engine.get_tensor_shape(artifact.input.name)
    if batch > 0:
        return int(batch)
    _, _, (most, *_) = engine.get_tensor_profile_shape(artifact.input.name, 0)
    return int(most)


def _check_tensors(library: Library, engine: Any, artifact: Artifact) -> None:
    """Raises BackendError where the engine's tensors are not those that the artifact promises."""
    trt = library.module
    wanted = {
        artifact.input.name: (trt.TensorIOMode.INPUT, {"uint8": trt.uint8, "float32": trt.float32}[artifact.input.dtype]),
        artifact.output_name: (trt.TensorIOMode.OUTPUT, trt.float32),
    }
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    found = {name: (engine.get_tensor_mode(name), engine.get_tensor_dtype(name)) for name in names}
    if found != wanted:
        raise BackendError(
            "the engine's tensors are not the artifact's",
            found=", ".join(f"{name} {dtype}" for name, (_, dtype) in found.items()),
            remedy="build the engine again",
        )


def _graph_note(options: TensorRTOptions, library: Library) -> str:
    if not options.cuda_graph:
        return "no CUDA graph"
    return "CUDA graph recorded by the library" if library.is_rtx else "one CUDA graph for copies and execution"
