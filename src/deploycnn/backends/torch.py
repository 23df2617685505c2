"""PyTorch, eager: the fp32 reference that everything else is held against.

The artifact is the torch.export archive (.pt2) of the network, uint8 pixels in and float32 logits out.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploycnn.backends import _torch_program as program
from deploycnn.backends._contract import Backend, Options, Session, missing_gpu
from deploycnn.environment import environment, package_version
from deploycnn.errors import BackendError, EvidenceError, Unavailable, Unsupported
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, ProgressCallback, Readiness, Skipped, Target

if TYPE_CHECKING:
    import torch

_FILE = "model.pt2"


class TorchOptions(Options):
    """Eager PyTorch. All but `tf32` leave the results as they are."""

    tf32: bool = False  # CUDA: fp32 products in TensorFloat-32, 10 bits of mantissa
    channels_last: bool = False  # mostly faster for fp16 on CUDA
    cuda_graph: bool = False  # CUDA: record the whole run once, replay it: no launch cost


class TorchBackend(Backend):
    """See the module."""

    name = "torch"
    Options: ClassVar[type[Options]] = TorchOptions
    options: TorchOptions
    packages = ("torch",)

    def probe(self, target: Target) -> Readiness:
        version = package_version("torch") or ""
        if not version:
            return Readiness(state="unavailable", reason="the package torch is not installed", remedy="pip install torch")
        if target.device == "cpu":
            return Readiness(state="ready", version=version)
        if reason := missing_gpu(target):
            return Readiness(state="build-only", reason=reason, remedy="run it on a machine with that NVIDIA GPU", version=version)
        if "+cpu" in version:
            return Readiness(
                state="build-only", reason=f"torch {version} is built without CUDA", remedy="install torch with CUDA", version=version
            )
        return Readiness(state="ready", version=version)

    def refuses(self, precision: str, target: Target) -> Skipped | None:
        if precision.startswith("int8"):
            return Skipped(reason="PyTorch's eager program has no Q/DQ form", remedy="use onnxruntime, openvino or tensorrt for int8")
        if precision == "fp16" and target.device == "cpu":
            return Skipped(reason="PyTorch's float16 convolutions are emulated on CPUs", remedy="use fp32 on a CPU, fp16 on a GPU")
        sets = environment().cpu.instruction_sets
        if precision == "bf16" and target.device == "cpu" and not {"avx512_bf16", "amx_bf16", "bf16"} & set(sets):
            return Skipped(reason="this CPU has no bfloat16 instructions", remedy="use fp32 here")
        return None

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        variant = request.variant
        if refusal := self.refuses(variant.precision, request.target):
            raise Unsupported(f"torch cannot hold {variant.precision} for {request.target}", found=refusal.reason, remedy=refusal.remedy)
        if variant.program_path is None:
            raise Unsupported(
                f"torch is to run {variant.onnx_path.name}",
                found=f"there is no PyTorch program of it at {variant.precision}, only ONNX",
                remedy="use onnxruntime for it; without any program it gives the fp32 reference too",
            )
        try:
            shutil.copyfile(variant.program_path, request.folder / _FILE)
        except FileNotFoundError as error:
            raise BackendError(
                "the variant's program is to be copied", found=f"no file {variant.program_path}", remedy="run again"
            ) from error
        notes = () if variant.precision == "fp32" else (f"weights cast to {variant.precision} from the fp32 program",)
        return Compiled(files=(_FILE,), batches=None if variant.fixed_batch is None else (variant.fixed_batch,), notes=notes)

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        import torch

        torch.set_num_threads(threads)
        on_gpu = artifact.target.device == "cuda"
        if on_gpu and not torch.cuda.is_available():
            raise Unavailable(
                "torch is to run on cuda",
                found=f"torch {torch.__version__} sees no CUDA device; {environment().gpu_reason or 'the driver lists one'}",
                remedy="check nvidia-smi, and that this torch is built for the driver's CUDA version",
            )
        module = _prepared(folder / artifact.files[0].name, artifact.precision)
        if self.options.channels_last:
            module.to(memory_format=torch.channels_last)
        return CudaSession(module, artifact, self.options) if on_gpu else CpuSession(module, artifact, self.options)


def _prepared(path: Path, precision: str) -> torch.fx.GraphModule:
    import torch

    module = program.eager(path)
    return module if precision == "fp32" else program.cast(module, {"fp16": torch.float16, "bf16": torch.bfloat16}[precision])


class CpuSession(Session):
    """The batch lies in a fixed tensor; the logits are wherever PyTorch's allocator puts them."""

    def __init__(self, module: torch.fx.GraphModule, artifact: Artifact, options: TorchOptions) -> None:
        import torch

        self._torch = torch
        self._module: torch.fx.GraphModule | None = module
        self._artifact = artifact
        self._options = options
        self._x_NCHW: Any = None
        self._inference = torch.inference_mode  # entered for every run, about 1 µs, as a service would

    def bind(self, x_NCHW: np.ndarray) -> None:
        if self._x_NCHW is None or x_NCHW.shape != tuple(self._x_NCHW.shape):
            self._allocate(x_NCHW.shape)
        np.copyto(self._pixels_NCHW, x_NCHW)

    def _allocate(self, shape: tuple[int, ...]) -> None:
        layout = self._torch.channels_last if self._options.channels_last else self._torch.contiguous_format
        self._x_NCHW = self._torch.empty(shape, dtype=getattr(self._torch, self._artifact.input.dtype), memory_format=layout)
        self._pixels_NCHW = self._x_NCHW.numpy()  # the same memory
        self._forward = self._module.forward  # type: ignore[union-attr]

    def run(self) -> None:
        with self._inference():
            (self._logits_NK,) = self._forward(self._x_NCHW)

    def fetch(self) -> np.ndarray:
        return np.array(self._logits_NK.numpy())

    def evidence(self) -> Evidence:
        torch = self._torch
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as recorded:
            self._step()
            self.synchronise()
        asked, devices = self._artifact.target.device, self._devices()
        if devices != {asked}:
            raise EvidenceError(
                f"torch was to run on {asked}", found=f"its weights are on {' and '.join(sorted(devices))}", remedy="report it"
            )
        tf32 = asked == "cuda" and self._options.tf32
        return Evidence(
            source="torch.profiler, operators of one run",
            provider=self._provider(),
            layers=program.layers(recorded.events(), "tfloat32" if tf32 else "float32"),
            notes=(f"TF32 {'on' if tf32 else 'off'}",) if asked == "cuda" else (),
        )

    def _step(self) -> None:
        """One run whose operators a profiler sees."""
        self.run()

    def _devices(self) -> set[str]:
        assert self._module is not None
        return {tensor.device.type for tensor in self._module.state_dict().values()}

    def _provider(self) -> str:
        return "cpu"

    def close(self) -> None:
        self._module = self._x_NCHW = self._forward = self._logits_NK = None


class CudaSession(CpuSession):
    """Pinned host buffers; the copies to the device and back are part of every run: the boundary is host to host."""

    def __init__(self, module: torch.fx.GraphModule, artifact: Artifact, options: TorchOptions) -> None:
        import torch

        mode = "tf32" if options.tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = mode
        torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = True  # chooses among its algorithms in the first run of a shape
        try:
            module.to("cuda")
        except RuntimeError as error:
            raise Unavailable("torch is to move the network to cuda", found=str(error)[:300], remedy="check nvidia-smi") from error
        super().__init__(module, artifact, options)
        self._graph: Any = None

    def _allocate(self, shape: tuple[int, ...]) -> None:
        torch = self._torch
        dtype = getattr(torch, self._artifact.input.dtype)
        self._x_NCHW = torch.empty(shape, dtype=dtype, pin_memory=True)
        self._pixels_NCHW = self._x_NCHW.numpy()  # the same memory
        self._device_x = torch.empty(shape, dtype=dtype, device="cuda")
        self._logits_NK = torch.empty((shape[0], self._artifact.n_classes), dtype=torch.float32, pin_memory=True)
        self._forward = self._module.forward  # type: ignore[union-attr]
        self._stream = torch.cuda.Stream()
        self._graph = None
        if self._options.cuda_graph:
            for _ in range(3):  # what is allocated and chosen lazily must be so before recording
                self._step()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.inference_mode(), torch.cuda.graph(graph, stream=self._stream):
                self._operators()
            self._graph = graph

    def _operators(self) -> None:
        self._device_x.copy_(self._x_NCHW, non_blocking=True)
        x = self._device_x
        if self._options.channels_last:
            x = x.contiguous(memory_format=self._torch.channels_last)
        (logits_NK,) = self._forward(x)
        self._logits_NK.copy_(logits_NK, non_blocking=True)

    def _step(self) -> None:
        with self._inference(), self._torch.cuda.stream(self._stream):
            self._operators()

    def run(self) -> None:
        if self._graph is None:
            self._step()
        else:
            with self._torch.cuda.stream(self._stream):
                self._graph.replay()

    def synchronise(self) -> None:
        self._stream.synchronize()

    def _provider(self) -> str:
        return f"cuda {self._torch.cuda.get_device_name()}" + (", CUDA graph" if self._graph is not None else "")

    def close(self) -> None:
        self._graph = self._device_x = None
        super().close()
