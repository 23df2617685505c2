"""OpenVINO on Intel and AMD CPUs. Precision is pinned to the variant's.

Left alone, OpenVINO 2026.4 computes an fp32 graph in bfloat16 on a CPU with AMX and says nothing; here fp32 is f32,
and bfloat16 runs only for a bf16 variant. The artifact is OpenVINO's own portable format, which any CPU can read;
loading compiles it, 30 to 60 ms for a small network. A compiled blob loads in a third of that, but has lost the names
by which fused layers prove their precision, so none is kept.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploycnn.backends._contract import Backend, Session
from deploycnn.environment import package_version
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.types import (
    Artifact,
    Compiled,
    CompileRequest,
    Evidence,
    LayerEvidence,
    Progress,
    ProgressCallback,
    Readiness,
    Skipped,
    Target,
)

if TYPE_CHECKING:
    import numpy as np

_REMEDY = "pip install 'deploycnn[openvino]'"

# Which type arithmetic is pinned to, by the part of a precision that is not int8; and OpenVINO's word for the ability.
_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}
_CAPABILITIES = {"f16": "FP16", "bf16": "BF16"}
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "int8", "i4": "int4"}
_PRODUCTS = {"Convolution": "Conv", "GroupConvolution": "Conv", "MatMul": "MatMul"}
_RUNTIME_PRODUCTS = {"Convolution": "Conv", "FullyConnected": "MatMul", "MatMul": "MatMul"}
_FACTS = ("runtimePrecision", "originalLayersNames", "layerType")


def _openvino() -> Any:
    try:
        import openvino
    except (ImportError, OSError) as error:
        raise Unavailable("OpenVINO cannot be imported", found=str(error), remedy=_REMEDY) from error
    return openvino


@contextlib.contextmanager
def _translated(what: str, remedy: str) -> Iterator[None]:
    """OpenVINO raises RuntimeError for everything its C++ side says."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
        raise BackendError(what, found=" ".join(lines)[-400:], remedy=remedy) from error


def _hint(precision: str) -> str:
    """The type that float layers of a variant are pinned to."""
    parts = precision.split("+")
    return next((_HINTS[part] for part in reversed(parts) if part in _HINTS), "f32")


def _configuration(precision: str, threads: int) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": _hint(precision),
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # it pins every process to the same cores, whoever else is on them
    }


class OpenVINOSession(Session):
    """One compiled model per batch size: a fixed shape is a fifth faster at batch 1 than a dynamic one (measured)."""

    def __init__(self, artifact: Artifact, folder: Path, threads: int) -> None:
        self._ov = _openvino()
        self._core = self._ov.Core()
        self._folder = folder
        self._shape_CHW = artifact.input.shape_CHW
        self._batches = artifact.batches
        self._configuration = _configuration(artifact.precision, threads)
        with _translated("model.xml cannot be read by OpenVINO", "build the artifact again"):
            self._products = _products(self._core.read_model(folder / "model.xml"))
        self._compiled: dict[int, Any] = {}
        self._request: Any = None

    def bind(self, x_NCHW: np.ndarray) -> None:
        batch = x_NCHW.shape[0]
        if self._batches is not None and batch not in self._batches:
            raise Unsupported(
                f"this artifact cannot run batch {batch}",
                found=f"its graph is fixed at batch {self._batches}",
                remedy="export a dynamic batch",
            )
        if batch not in self._compiled:
            self._compiled[batch] = self._load(batch)
        self._active = self._compiled[batch]
        with _translated("OpenVINO cannot take this input", "feed the dtype and shape of the artifact's input"):
            self._request = self._active.create_infer_request()
            self._x_NCHW = x_NCHW.copy()  # shared with OpenVINO: it reads from here at every run
            self._request.set_input_tensor(self._ov.Tensor(self._x_NCHW, shared_memory=True))

    def _load(self, batch: int) -> Any:
        with _translated(f"OpenVINO cannot compile this model for batch {batch}", "build the artifact again"):
            model = self._core.read_model(self._folder / "model.xml")
            model.reshape([batch, *self._shape_CHW])
            return self._core.compile_model(model, "CPU", self._configuration)

    def run(self) -> None:
        self._request.infer()

    def fetch(self) -> np.ndarray:
        import numpy as np

        return np.array(self._request.get_output_tensor().data, dtype=np.float32)

    def evidence(self) -> Evidence:
        return _evidence(self._active, self._products)

    def close(self) -> None:
        self._request = self._active = None
        self._compiled.clear()


class OpenVINOBackend(Backend):
    """See the module."""

    name = "openvino"
    packages = ("openvino",)

    def probe(self, target: Target) -> Readiness:
        version = package_version("openvino") or ""
        if target.device != "cpu":
            return Readiness(state="unavailable", reason="OpenVINO has no CUDA device", remedy="use target cpu", version=version)
        if importlib.util.find_spec("openvino") is None:
            return Readiness(state="unavailable", reason="OpenVINO is not installed", remedy=_REMEDY)
        return Readiness(state="ready", version=version)

    def refuses(self, precision: str, target: Target) -> Skipped | None:
        capability = _CAPABILITIES.get(_hint(precision))
        if capability is None or importlib.util.find_spec("openvino") is None:
            return None
        if capability in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            return None
        return Skipped(
            reason=f"OpenVINO computes no {_hint(precision)} on this CPU: it would run the graph as f32",
            remedy="use fp32 or int8 here, or a CPU with AMX (bf16) or AVX512-FP16",
        )

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        ov = _openvino()
        core = ov.Core()
        variant = request.variant
        with _translated(f"OpenVINO cannot read the {variant.precision} graph", "use another backend for this model"):
            model = core.read_model(variant.onnx_path)
            ov.save_model(model, request.folder / "model.xml", compress_to_fp16=False)
        products = _products(model)
        batches = request.batches if variant.fixed_batch is None else (variant.fixed_batch,)
        evidence: Evidence | None = None
        for done, batch in enumerate(batches):
            progress(Progress(done=done, total=len(batches), unit="batch sizes", note=f"batch {batch}"))
            with _translated(
                f"OpenVINO cannot compile the {variant.precision} graph for batch {batch}", "use another backend for this model"
            ):
                fixed = core.read_model(request.folder / "model.xml")
                fixed.reshape([batch, *variant.input.shape_CHW])
                compiled = core.compile_model(fixed, "CPU", _configuration(variant.precision, request.threads))
            evidence = _evidence(compiled, products)
        return Compiled(
            files=("model.xml", "model.bin"),
            evidence=evidence,
            batches=None if variant.fixed_batch is None else (variant.fixed_batch,),
            details={"configuration": _configuration(variant.precision, request.threads)},
        )

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        return OpenVINOSession(artifact, folder, threads)


def _products(model: Any) -> dict[str, str]:
    """Convolutions and matrix products of a model that is not compiled yet: name -> kind."""
    operators = ((_plain(op.get_friendly_name()), op.get_type_name()) for op in model.get_ordered_ops())
    return {name: _PRODUCTS[kind] for name, kind in operators if kind in _PRODUCTS}


def _plain(name: str) -> str:
    """A node's name without what OpenVINO adds when it splits off a bias, and drops when it fuses one."""
    return name.removesuffix("/WithoutBiases")


def _evidence(compiled: Any, products: dict[str, str]) -> Evidence:
    """runtimePrecision of each node that holds a convolution or matrix product; fused ones by the names they came from."""
    layers: list[LayerEvidence] = []
    missing = dict(products)
    for node in compiled.get_runtime_model().get_ordered_ops():
        facts = {key: value.astype(str) for key, value in node.get_rt_info().items() if key in _FACTS}
        precision = _NAMES.get(facts["runtimePrecision"], facts["runtimePrecision"])
        original = set(facts["originalLayersNames"].split(","))
        names = {_plain(name) for name in original}
        held = [name for name in missing if name in names]
        for name in held:
            # A subgraph says the type of its result. A product whose dequantisation comes after it multiplied int8.
            quantised = any(f"{name}{end}/DequantizationMultiply" in original for end in ("", "/WithoutBiases"))
            fused = facts["layerType"] == "Subgraph"
            layers.append(LayerEvidence(name=name, op=missing.pop(name), precision="int8" if fused and quantised else precision))
        if not held and facts["layerType"] in _RUNTIME_PRODUCTS and not names & products.keys():
            layers.append(LayerEvidence(name=node.get_friendly_name(), op=_RUNTIME_PRODUCTS[facts["layerType"]], precision=precision))
    if len(layers) < len(products):
        layers.extend(LayerEvidence(name=name, op=op, precision="unknown") for name, op in missing.items())
    return Evidence(source="runtimePrecision", provider="CPU", layers=tuple(layers))
