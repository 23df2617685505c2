"""ONNX to Relax: one batch size at a time, lowered to the functions that schedules are found for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from deploycnn.backends.tvm._library import library
from deploycnn.errors import BackendError, ModelError, Unsupported
from deploycnn.types import Evidence, LayerEvidence, Variant

# What TVM's Python side raises: its own errors are RuntimeErrors, its importer's checks are plain Python errors.
TVM_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)


@contextlib.contextmanager
def translated(what: str, remedy: str) -> Iterator[None]:
    """TVM's errors as BackendError: `what` is the clause of what was asked for."""
    try:
        yield
    except TVM_ERRORS as error:
        raise BackendError(what, found=_last_lines(error), remedy=remedy) from error


def _last_lines(error: BaseException) -> str:
    """The message of an error without the C++ stack that TVM puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[-3:])[-500:]


def import_graph(variant: Variant, batch: int | None) -> Any:
    """The Relax module of a variant.

    Args:
        variant: any precision; Q/DQ pairs come in as float arithmetic.
        batch: the batch size the module is specialised to; None keeps it symbolic.

    Raises:
        ModelError: the file cannot be read.
        Unsupported: TVM has no converter for one of its operators, or the graph cannot take this batch size.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    tvm = library()
    from tvm.relax.frontend.onnx import from_onnx

    try:
        model = onnx.load(variant.onnx_path)
    except (OSError, DecodeError) as error:
        raise ModelError(f"{variant.onnx_path} cannot be read", found=str(error), remedy="export the model again") from error
    shapes = None if batch is None else {variant.input.name: [batch, *variant.input.shape_CHW]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the importer runs ONNX's checker and warns for what it then accepts
            return from_onnx(model, shape_dict=shapes, keep_params_in_input=False)
    except tvm.error.OpNotImplemented as error:
        missing = str(error).rpartition(":")[2].strip()
        raise Unsupported(
            f"TVM does not support: {missing}", remedy="use another backend for this model, or express it otherwise"
        ) from error
    except TVM_ERRORS as error:
        size = "a symbolic batch" if batch is None else f"batch {batch}"
        raise Unsupported(
            f"TVM cannot import this graph at {size}", found=_last_lines(error), remedy="use another backend for this model"
        ) from error


def lowered(module: Any, target: Any, layout: str = "NCHW") -> Any:
    """The module as PrimFuncs, fused, before any schedule: what tuning tasks are extracted from.

    These are the passes of TVM's own static-shape tuning pipeline. AttachAttrLayoutFreeBuffers lets weights be laid
    out anew for a schedule; without it no schedule found with it matches, silently.

    Args:
        layout: how convolutions and what lies between them see images. NCHW: as imported. NHWC: channels innermost
            wherever a convolution's output channels fill vectors.
    """
    tvm = library()
    passes = tvm.relax.transform
    change = [passes.ConvertLayout({}, _channels_innermost), passes.FoldConstant()] if layout == "NHWC" else []
    sequence = [
        passes.DecomposeOpsForInference(),
        *change,
        passes.CanonicalizeBindings(),
        tvm.relax.get_pipeline("zero"),
        passes.AttachAttrLayoutFreeBuffers(),
    ]
    with target, tvm.transform.PassContext(opt_level=3), translated("TVM cannot lower this graph", "use another backend for this model"):
        return tvm.ir.transform.Sequential(sequence)(module)


def _channels_innermost(call: Any) -> dict[str, list[str]]:
    """The layout that a convolution is to have in the NHWC form of a network."""
    name = "relax.nn.conv2d"
    if call.op != library().ir.Op.get(name):
        return {}
    output_channels = int(call.args[1].ty.shape[0])
    return {name: ["NHWC", "HWIO"] if output_channels % 8 == 0 else ["NCHW", "OIHW"]}


def evidence_of(module: Any, target: str, simulated: bool) -> Evidence:
    """In which type every convolution and matrix product multiplies, read from the loops of a lowered module.

    Args:
        module: from `lowered`. Schedules reorder its loops; they never change the type of a multiplication.
        target: the device in TVM's words, `llvm -mcpu=...` or `cuda -arch=...`.
        simulated: the variant is quantised.
    """
    tvm = library()
    layers: list[LayerEvidence] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.relax.Call) and expression.op == tvm.ir.Op.get("relax.call_tir"):
            name = expression.args[0]
            layers.extend(_products(name.name_hint, module[name]))

    tvm.relax.analysis.post_order_visit(module["main"], visit)
    notes = ("quantise and dequantise are computed, but multiplications are in floating point",) if simulated else ()
    return Evidence(
        source="multiplications in TVM's lowered loops", provider=target, layers=tuple(layers), simulated=simulated, notes=notes
    )


def _products(name: str, function: Any) -> list[LayerEvidence]:
    """The blocks of a PrimFunc that sum up products over a reduction axis."""
    tir = library().tirx
    import tvm_ffi

    found: list[LayerEvidence] = []

    def visit(node: Any) -> None:
        if not any(int(axis.iter_type) == tir.IterVar.CommReduce for axis in node.iter_vars):
            return
        update = node.body
        if not isinstance(update, tir.BufferStore) or not isinstance(update.value, tir.Add):
            return
        for side in (update.value.a, update.value.b):
            while isinstance(side, tir.Cast):  # products of narrow types are summed in wide ones
                side = side.value
            if isinstance(side, tir.Mul):
                op = "Conv" if "conv" in node.name_hint else "MatMul"
                found.append(LayerEvidence(name=f"{name}/{node.name_hint}", op=op, precision=_operand_type(side)))

    tvm_ffi.structural_walk(function.body, (library().s_tir.SBlock, visit), order="post")
    return found


def _operand_type(product: Any) -> str:
    """The type that is multiplied: int8 operands cast to int32 for their product are int8 multiplications."""
    cast = library().tirx.Cast
    kinds = {str(side.value.ty if isinstance(side, cast) else side.ty) for side in (product.a, product.b)}
    if kinds <= {"int8", "uint8"}:
        return "int8"
    return "/".join(sorted(kinds))
