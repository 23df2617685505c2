"""What tests of single backends share: a graph small enough to compile in a second, and an artifact made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploycnn.backends import Backend
from deploycnn.types import Artifact, Compiled, CompileRequest, FileEntry, Target, TensorSpec, Variant

_KINDS = {"fp32": onnx.TensorProto.FLOAT, "fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}

SmallGraph = Callable[..., Variant]
Build = Callable[..., tuple[Artifact, Compiled, Path]]


@pytest.fixture
def small_graph(tmp_path: Path) -> SmallGraph:
    """Makes a graph: uint8 pixels (N, 3, 8, 8) -> cast -> 3x3 convolution -> ReLU -> flatten -> 4 float32 logits.

    `precision` is what it computes in, `extra` are nodes from the ReLU's "b" to the flatten.
    """

    def make(precision: str = "fp32", extra: tuple[onnx.NodeProto, ...] = ()) -> Variant:
        path = tmp_path / f"small-{precision}.onnx"
        onnx.save(_model(_KINDS[precision], extra), path)
        return Variant(
            precision=precision,
            onnx_path=path,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 8, 8)),
            output_name="logits",
            classes=("a", "b", "c", "d"),
        )

    return make


def _model(kind: int, extra: tuple[onnx.NodeProto, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    arrays = {"w": rng.normal(size=(4, 3, 3, 3)) / 100, "g": rng.normal(size=(144, 4)) / 12, "c": rng.normal(size=(4,))}
    make = onnx.helper.make_node
    nodes = [
        make("Cast", ["pixels"], ["x"], to=kind),
        make("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3]),
        make("Relu", ["a"], ["b"]),
        *extra,
        make("Flatten", [extra[-1].output[0] if extra else "b"], ["f"]),
        make("Gemm", ["f", "g", "c"], ["y"]),
        make("Cast", ["y"], ["logits"], to=onnx.TensorProto.FLOAT),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, ["batch", 3, 8, 8])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(value.astype(dtype)), name) for name, value in arrays.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Compiles a variant and gives the artifact as the worker would record it, and its folder."""

    def make(
        backend: Backend, variant: Variant, batches: tuple[int, ...] = (1, 3), threads: int = 1, target: str = "cpu"
    ) -> tuple[Artifact, Compiled, Path]:
        folder = tmp_path / f"artifact-{len(list(tmp_path.glob('artifact-*')))}"
        folder.mkdir()
        request = CompileRequest(
            variant=variant,
            target=Target.parse(target),
            batches=batches,
            threads=threads,
            folder=folder,
            cache_folder=tmp_path / "cache",
        )
        compiled = backend.compile(request, lambda progress: None)
        artifact = Artifact(
            backend=backend.name,
            backend_version="",
            target=request.target,
            precision=variant.precision,
            files=tuple(FileEntry(name=name, size_bytes=(folder / name).stat().st_size, sha256="") for name in compiled.files),
            sha256="",
            parent_sha256=variant.sha256,
            input=variant.input,
            output_name=variant.output_name,
            n_classes=len(variant.classes),
            batches=compiled.batches,
            evidence=compiled.evidence,
            build_s=0,
        )
        return artifact, compiled, folder

    return make


@pytest.fixture
def small_pixels() -> Callable[[int], np.ndarray]:
    """Makes `n` images for `small_graph`: uint8 (n, 3, 8, 8), the same ones for the same n."""
    return lambda n: np.random.default_rng(n).integers(0, 256, (n, 3, 8, 8), dtype=np.uint8)


@pytest.fixture
def expected() -> Callable[[Variant, np.ndarray], np.ndarray]:
    """The logits of a graph by ONNX's own reference implementation: no compiler in it."""
    from onnx.reference import ReferenceEvaluator

    return lambda variant, x_NCHW: ReferenceEvaluator(str(variant.onnx_path)).run(None, {variant.input.name: x_NCHW})[0]


@pytest.fixture
def quantised(tmp_path: Path) -> Callable[[Variant], Variant]:
    """Makes the explicit Q/DQ form of an fp32 graph: uint8 activations, 7-bit weights, safe on every CPU."""
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self, spec: TensorSpec) -> None:
            rng = np.random.default_rng(1)
            self._batches = iter([{spec.name: rng.integers(0, 256, (8, *spec.shape_CHW), dtype=np.uint8)} for _ in range(2)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._batches, None)

    def make(variant: Variant) -> Variant:
        path = tmp_path / "quantised.onnx"
        quantization.quantize_static(
            variant.onnx_path,
            path,
            Reader(variant.input),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=["Conv", "Gemm", "MatMul"],
        )
        return variant.model_copy(update={"precision": "int8", "onnx_path": path, "parent_sha256": variant.sha256})

    return make
