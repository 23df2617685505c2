"""ONNX Runtime, on its CPU, CUDA and TensorRT providers.

The artifact is the variant's own ONNX file, not the graph that ONNX Runtime made of it: the optimised graph is tied to
this CPU's vector width and this version's private operators, and saving it gains nothing but a millisecond of loading
(LeNet on one core, optimised offline over optimised at load: run 1.02-1.04, load 0.5).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from deploycnn.backends import _onnxruntime_evidence as profile
from deploycnn.backends._contract import Backend, Options, Session, missing_gpu
from deploycnn.environment import environment, has_vnni, package_version
from deploycnn.errors import BackendError, EvidenceError, Unavailable, Unsupported
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, Int8Form, ProgressCallback, Readiness, Skipped, Target

_FILE = "model.onnx"
_GPU_PACKAGE = "pip install onnxruntime-gpu (Linux and Windows on x86-64); it needs CUDA 13 and cuDNN 9, which torch's wheels bring"


class OnnxRuntimeOptions(Options):
    """Defaults are the fastest setting that changes no result."""

    optimisation: Literal["all", "extended", "basic", "none"] = "all"  # "all" alone gains anything on small networks
    arena: bool = True  # keep freed memory for the next run
    x64quantprecision: bool = False  # CPU without VNNI: sum s8 products without saturating, slower; our own int8 files need it not
    spinning: bool = True  # more than one thread: idle threads burn their core for a while instead of sleeping
    provider: Literal["cuda", "tensorrt"] = "cuda"  # for the target cuda
    tf32: bool = False  # CUDA: fp32 products in TensorFloat-32, 10 bits of mantissa
    nhwc: bool = False  # CUDA: convolutions channels-last, mostly faster for fp16
    conv_search: Literal["exhaustive", "heuristic", "default"] = "exhaustive"  # CUDA: how cuDNN's algorithm is chosen


class OnnxRuntimeBackend(Backend):
    """See the module."""

    name = "onnxruntime"
    Options: ClassVar[type[Options]] = OnnxRuntimeOptions
    options: OnnxRuntimeOptions
    packages = ("onnxruntime", "onnxruntime-gpu")

    def probe(self, target: Target) -> Readiness:
        version = _version()
        if not version:
            return Readiness(state="unavailable", reason="the package onnxruntime is not installed", remedy="pip install onnxruntime")
        if target.device == "cpu":
            return Readiness(state="ready", version=version)
        provider = self._provider(target)
        # The artifact is an ONNX file, so it can be made anywhere; these are reasons why it cannot run here.
        if provider not in _compiled_providers():
            return Readiness(
                state="build-only", reason=f"onnxruntime {version} here has no {provider}", remedy=_GPU_PACKAGE, version=version
            )
        if reason := missing_gpu(target):
            return Readiness(state="build-only", reason=reason, remedy="run it on a machine with that NVIDIA GPU", version=version)
        return Readiness(state="ready", version=version)

    def refuses(self, precision: str, target: Target) -> Skipped | None:
        if precision == "bf16" and target.device == "cpu":
            return Skipped(
                reason="ONNX Runtime's CPU provider has no bfloat16 convolution",
                remedy="use fp32 or int8 on a CPU; openvino computes bfloat16 on CPUs that have it",
            )
        return None

    def int8_form(self, target: Target) -> Int8Form:
        if target.device == "cuda":
            return Int8Form.SYMMETRIC_S8
        return Int8Form.CPU_U8S8 if has_vnni() or self.options.x64quantprecision else Int8Form.CPU_U8S8_REDUCED

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        variant = request.variant
        path = request.folder / _FILE
        try:
            shutil.copyfile(variant.onnx_path, path)
        except FileNotFoundError as error:
            raise BackendError(
                "the variant's ONNX file is to be compiled", found=f"no file {variant.onnx_path}", remedy="run again"
            ) from error
        notes = []
        if request.target.device == "cpu":
            # Proves that every operator has a kernel; for another device that must wait for the device.
            self._create(path, Target(device="cpu"), request.threads)
            if variant.precision == "fp16":
                notes.append("ONNX Runtime's CPU provider has no float16 convolution: it casts back and computes in float32")
        batches = None if variant.fixed_batch is None else (variant.fixed_batch,)
        return Compiled(files=(_FILE,), batches=batches, notes=tuple(notes), details={"optimised": "when it is loaded"})

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        path = folder / artifact.files[0].name
        session = self._create(path, artifact.target, threads)
        asked, actual = self._provider(artifact.target), session.get_providers()[0]
        if actual != asked:
            raise EvidenceError(
                f"{artifact.backend} was asked to run on {asked}",
                found=f"it fell back to {actual}; {_why_missing(asked)}",
                remedy=_GPU_PACKAGE,
            )
        if artifact.target.device == "cpu":
            return CpuSession(self, session, artifact, path, threads)
        return CudaSession(self, session, artifact, path, threads)

    def _provider(self, target: Target) -> str:
        if target.device == "cpu":
            return "CPUExecutionProvider"
        return {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}[self.options.provider]

    def _create(self, path: Path, target: Target, threads: int, profile_prefix: Path | None = None) -> Any:
        """An InferenceSession; everything that ONNX Runtime says is translated."""
        import onnxruntime

        chosen = self.options
        settings = onnxruntime.SessionOptions()
        level = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}[chosen.optimisation]
        settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.enable_cpu_mem_arena = chosen.arena
        settings.log_severity_level = 3  # errors only; what is printed goes to the worker's log
        settings.add_session_config_entry("session.intra_op.allow_spinning", str(int(chosen.spinning)))
        settings.add_session_config_entry("session.x64quantprecision", str(int(chosen.x64quantprecision)))
        if profile_prefix is not None:
            settings.enable_profiling = True
            settings.profile_file_prefix = str(profile_prefix)
        providers: list[Any] = ["CPUExecutionProvider"]
        if target.device == "cuda":
            onnxruntime.preload_dlls()  # CUDA and cuDNN from their wheels, where they are not on the library path
            cuda = {
                "use_tf32": str(int(chosen.tf32)),
                "prefer_nhwc": str(int(chosen.nhwc)),
                "cudnn_conv_algo_search": chosen.conv_search.upper(),
            }
            providers.insert(0, ("CUDAExecutionProvider", cuda))
            if chosen.provider == "tensorrt":
                providers.insert(0, "TensorrtExecutionProvider")
        with translated(f"ONNX Runtime is to load {path}"):
            return onnxruntime.InferenceSession(str(path), settings, providers=providers)


class CpuSession(Session):
    """Input and output are bound once to fixed buffers, so that a run copies and allocates nothing."""

    def __init__(self, backend: OnnxRuntimeBackend, session: Any, artifact: Artifact, path: Path, threads: int) -> None:
        self._backend = backend
        self._session = session
        self._artifact = artifact
        self._path = path
        self._threads = threads
        self._x_NCHW = np.empty((0, *artifact.input.shape_CHW), dtype=artifact.input.dtype)
        self._logits_NK = np.empty((0, artifact.n_classes), dtype=np.float32)

    def bind(self, x_NCHW: np.ndarray) -> None:
        if x_NCHW.shape == self._x_NCHW.shape:
            np.copyto(self._x_NCHW, x_NCHW)
            return
        self._x_NCHW = x_NCHW.copy()
        self._logits_NK = np.empty((len(x_NCHW), self._artifact.n_classes), dtype=np.float32)
        with translated("a batch is bound"):
            self._binding = self._bound()
        self._run = self._session.run_with_iobinding

    def _bound(self) -> Any:
        y = self._logits_NK
        binding = self._session.io_binding()
        binding.bind_cpu_input(self._artifact.input.name, self._x_NCHW)
        binding.bind_output(self._artifact.output_name, "cpu", 0, np.float32, y.shape, y.ctypes.data)
        return binding

    def run(self) -> None:
        self._run(self._binding)

    def fetch(self) -> np.ndarray:
        return self._logits_NK.copy()

    def evidence(self) -> Evidence:
        options = self._backend.options
        on_gpu = self._artifact.target.device == "cuda"
        notes = [f"graph optimisation {options.optimisation}", *([f"TF32 {'on' if options.tf32 else 'off'}"] if on_gpu else [])]

        def profiled_run(prefix: Path) -> Path:
            session = self._backend._create(self._path, self._artifact.target, self._threads, prefix)
            session.run([self._artifact.output_name], {self._artifact.input.name: self._x_NCHW})
            return Path(session.end_profiling())

        with translated("a run is profiled"):
            found = profile.evidence(profiled_run, float32_name="tfloat32" if on_gpu and options.tf32 else "float32", notes=tuple(notes))
        asked = self._backend._provider(self._artifact.target)
        ran = found.provider.split(profile.AND)
        if asked not in ran or (found.layers and ran != [asked]):
            raise EvidenceError(
                f"every convolution and matrix product was to run on {asked}",
                found=f"they ran on {found.provider}",
                remedy="leave this precision out for this target, or change the graph",
            )
        return found

    def close(self) -> None:
        self._binding = self._run = self._session = None


class CudaSession(CpuSession):
    """Pixels are copied to the device and logits back within each run: the boundary is host to host.

    Binding the host array itself would move the copy out of the run: ONNX Runtime copies when it binds.
    """

    def _bound(self) -> Any:
        import onnxruntime

        self._device_x = onnxruntime.OrtValue.ortvalue_from_numpy(self._x_NCHW, "cuda", 0)
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(self._artifact.input.name, self._device_x)
        y = self._logits_NK
        binding.bind_output(self._artifact.output_name, "cpu", 0, np.float32, y.shape, y.ctypes.data)
        return binding

    def run(self) -> None:
        self._device_x.update_inplace(self._x_NCHW)
        self._run(self._binding)

    def synchronise(self) -> None:
        self._binding.synchronize_outputs()

    def close(self) -> None:
        self._device_x = None
        super().close()


def _version() -> str:
    return package_version("onnxruntime-gpu") or package_version("onnxruntime") or ""


def _compiled_providers() -> list[str]:
    """Providers that this wheel holds, whatever the machine has."""
    try:
        import onnxruntime
    except ImportError:  # installed, but a library that it needs is not
        return []
    return list(onnxruntime.get_available_providers())


def _why_missing(provider: str) -> str:
    """The library that a provider lacks, in the loader's own words. Loads it: for a worker process only."""
    import ctypes

    import onnxruntime

    short = provider.removesuffix("ExecutionProvider").lower()
    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / f"libonnxruntime_providers_{short}.so"))
    except OSError as error:
        return f"missing: {error}"
    return f"its libraries load, so the device is missing: {environment().gpu_reason or 'the driver answers'}"


_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_OPSET = re.compile(r"Opset (\d+) is under development.*?till opset (\d+)", re.DOTALL)
_OPERATORS = (
    re.compile(r"Could not find an implementation for (?P<op>\S+) node with name '(?P<node>[^']*)'"),
    re.compile(r"In Node, \(\"(?P<node>[^\"]*)\", (?P<op>[^,]+),.*No Op registered", re.DOTALL),
    re.compile(r"Fatal error: (?P<op>\S+) is not a registered function/op(?P<node>)"),
    re.compile(r"Type '(?P<type>[^']*)' of input parameter \([^)]*\) of operator \((?P<op>[^)]*)\) in node \((?P<node>[^)]*)\) is invalid"),
)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns ONNX Runtime's errors into ours. `what` is a full clause."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    vendor = (
        state.EPFail,
        state.EngineError,
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NoModel,
        state.NoSuchFile,
        state.NotFound,
        state.NotImplemented,
        state.RuntimeException,
    )
    try:
        yield
    except vendor as error:
        raise _translation(what, " ".join(str(error).split())) from error
    except (RuntimeError, ValueError, OSError) as error:  # its Python layer's own
        raise BackendError(what, found=f"{type(error).__name__}: {error}", remedy="see the worker's log") from error


def _translation(what: str, message: str) -> BackendError:
    version = _version()
    if match := _IR.search(message):
        return Unsupported(
            f"{what}",
            found=f"model IR {match[1]}, onnxruntime {version} supports up to {match[2]}",
            remedy="export again with an older onnx package",
        )
    if match := _OPSET.search(message):
        return Unsupported(
            f"{what}", found=f"model opset {match[1]}, onnxruntime {version} supports up to {match[2]}", remedy="export with a lower opset"
        )
    for pattern in _OPERATORS:
        if match := pattern.search(message):
            kind = f" on {match['type']}" if "type" in pattern.groupindex else ""
            node = f"{kind} at node {match['node']}" if match["node"] else kind
            return Unsupported(
                what, found=f"not supported: {match['op']}{node}", remedy="replace that operator, or use another precision or backend"
            )
    if "INVALID_PROTOBUF" in message or "No graph was found" in message or "Invalid ORT format" in message:
        return BackendError(what, found="it is damaged, or no ONNX file", remedy="run again: the artifact is then rebuilt")
    if "CUDA failure" in message and "out of memory" not in message.lower():
        return Unavailable(what, found=message[-400:], remedy="check the driver with nvidia-smi")
    return BackendError(what, found=re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", message)[:500], remedy="see the worker's log")
