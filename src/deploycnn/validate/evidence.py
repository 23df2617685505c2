"""Did what was asked for really run: provider, and precision of every convolution and matrix product."""

from __future__ import annotations

import re
from collections.abc import Collection

from deploycnn.types import Evidence, LayerEvidence, Target, Verdict

# What backends call their numbers, by the name used here.
_KINDS = {
    "float32": ("float32", "fp32", "f32", "float"),
    "tfloat32": ("tfloat32", "tf32"),  # float32 storage, 10-bit mantissa in the products
    "float16": ("float16", "fp16", "f16", "half"),
    "bfloat16": ("bfloat16", "bf16"),
    "int8": ("int8", "uint8", "i8", "u8", "s8", "qint8", "quint8"),
    "float64": ("float64", "fp64", "f64", "double"),
    "float8": ("float8", "fp8", "f8"),
    "int4": ("int4", "uint4", "i4", "u4"),
    "int32": ("int32", "i32"),
}
_KIND_OF = {alias: kind for kind, aliases in _KINDS.items() for alias in aliases}
_FLOATS = frozenset({"float32", "tfloat32", "float16", "bfloat16"})

_WANTED = {"fp32": frozenset({"float32", "tfloat32"}), "fp16": frozenset({"float16"}), "bf16": frozenset({"bfloat16"})}

# Words in a provider's name that say where it runs.
_ON_GPU = re.compile(r"cuda|tensorrt|gpu|nvidia|geforce|tesla", re.IGNORECASE)
_ON_CPU = re.compile(r"cpu|llvm|numpy|host", re.IGNORECASE)

TF32_TOLERANCE = 5e-3  # relative logit error of products with a 10-bit mantissa


def check_evidence(
    evidence: Evidence | None, precision: str, target: Target, weighted_ops: int, *, float_layers: Collection[str] = ()
) -> Verdict:
    """ "pass" only where the backend itself says that every weighted layer ran as asked, where it was asked to.

    "fail": it ran on another device (silent fallback), or a layer ran in another precision; names it. "unproven": it
    does not say, says it of fewer layers than the graph has, or computes low precision in float arithmetic.

    Args:
        evidence: None where nothing was said.
        precision: of the variant: fp32, fp16, bf16, int8; `int8+fp16` and `int8-auto` need int8 as well.
        weighted_ops: Conv, Gemm and MatMul nodes with weights in the graph.
        float_layers: names of ONNX nodes that are in float by design (int8-auto).
    """
    if evidence is None:
        return Verdict(state="unproven", reason="the backend says nothing about what runs", remedy="do not rely on its precision")
    return (
        _elsewhere(evidence, target)
        or _simulated(evidence, precision)
        or _not_as_asked(evidence, precision, target, float_layers)
        or _incomplete(evidence, weighted_ops)
        or _proved(evidence, precision)
    )


def logit_tolerance(evidence: Evidence | None, tolerance: float) -> float:
    """The relative logit error allowed for an fp32 artifact: wider where it says that its products are TF32."""
    layers = evidence.layers if evidence else ()
    return max(tolerance, TF32_TOLERANCE) if any(_kind(layer) == "tfloat32" for layer in layers) else tolerance


def _kind(layer: LayerEvidence) -> str:
    """float32, tfloat32, float16, bfloat16, int8, or the backend's own word where that is none of them."""
    return _KIND_OF.get(layer.precision.strip().lower(), layer.precision)


def _is_known(layer: LayerEvidence) -> bool:
    """Whether the backend names a kind at all; `int8 x float32` names two."""
    return any(word in _KIND_OF for word in re.findall(r"\w+", layer.precision.lower()))


def _wanted(precision: str) -> frozenset[str]:
    """Kinds that a weighted layer of a variant may run in; empty for a precision that nothing is known about."""
    base = re.split(r"[+-]", precision)[0]  # int8+fp16, int8-auto, int8-qat
    return frozenset({"int8"}) if base == "int8" else _WANTED.get(precision, frozenset())


# --- the questions, in order ----------------------------------------------------------------


def _elsewhere(evidence: Evidence, target: Target) -> Verdict | None:
    right, wrong = (_ON_CPU, _ON_GPU) if target.device == "cpu" else (_ON_GPU, _ON_CPU)
    provider = evidence.provider or "unknown"
    if right.search(provider) and not wrong.search(provider):
        return None
    partly = "partly " if right.search(provider) else ""
    return Verdict(
        state="fail",
        reason=f"asked for {target}, ran {partly}on {provider} ({evidence.source})",
        remedy="see `doctor` for what this backend lacks here: a silent fallback is never shipped",
    )


def _simulated(evidence: Evidence, precision: str) -> Verdict | None:
    if not evidence.simulated:
        return None
    return Verdict(
        state="unproven",
        reason=f"{precision} is simulated: computed in float arithmetic, so it may be accurate but is not faster",
        remedy=f"use a backend that computes {precision}",
    )


def _not_as_asked(evidence: Evidence, precision: str, target: Target, float_layers: Collection[str]) -> Verdict | None:
    wanted = _wanted(precision)
    if not wanted:
        return Verdict(state="unproven", reason=f"nothing is known about what {precision} should run in", remedy="check it by hand")
    wrong = [layer for layer in evidence.layers if _kind(layer) not in wanted]
    strays = [layer for layer in wrong if not (_kind(layer) in _FLOATS and _named(layer, float_layers))]
    if not strays:
        return None
    if not any(map(_is_known, strays)):
        reason = f"{evidence.source} does not say what {_names(strays)} ran in"
        return Verdict(state="unproven", reason=reason, remedy="do not rely on its precision")
    strays = [layer for layer in strays if _is_known(layer)]
    unnamed = float_layers and not any(_named(layer, float_layers) for layer in evidence.layers)
    if unnamed and len(strays) <= len(float_layers) and all(_kind(layer) in _FLOATS for layer in strays):
        return Verdict(
            state="unproven",
            reason=f"{_counted(strays)} ran in float, as {len(float_layers)} should, but the backend's names do not say which",
            remedy="compare the names by hand",
        )
    ran = _listed(sorted({_kind(layer) for layer in strays}))
    return Verdict(
        state="fail",
        reason=f"asked for {_listed(sorted(wanted - {'tfloat32'}))}, ran in {ran}: {_names(strays)} of {len(evidence.layers)} layers",
        remedy=_remedy(precision, ran, target),
    )


def _remedy(precision: str, ran: str, target: Target) -> str:
    if precision in ("fp16", "bf16") and target.device == "cpu":
        return f"this runtime has no {precision} kernels on this CPU and casts to {ran}: use fp32 or int8 here, {precision} on a GPU"
    if precision.startswith("int8"):
        return "check that the layer has Q/DQ on both inputs in the form that this backend needs, or name it as float (int8-auto)"
    return "set the backend's precision hint to what the graph says, or take another backend"


def _incomplete(evidence: Evidence, weighted_ops: int) -> Verdict | None:
    said = len(evidence.layers)
    fused = next((note for note in evidence.notes if re.search(r"fus|fold|merg", note, re.IGNORECASE)), "")
    if said and (said >= weighted_ops or fused):
        return None
    what = f"{said} of {weighted_ops} convolutions and matrix products" if said else "no layer"
    return Verdict(state="unproven", reason=f"{evidence.source} names {what}", remedy="do not rely on its precision")


def _proved(evidence: Evidence, precision: str) -> Verdict:
    layers = evidence.layers
    kinds = [_kind(layer) for layer in layers]
    counts = _listed([f"{kinds.count(kind)} in {kind}" for kind in dict.fromkeys(sorted(kinds))])
    note = "; TF32 products: 10 bits of mantissa" if precision == "fp32" and "tfloat32" in kinds else ""
    return Verdict(state="pass", reason=f"{counts} on {evidence.provider} ({evidence.source}){note}")


# --- wording --------------------------------------------------------------------------------


def _named(layer: LayerEvidence, names: Collection[str]) -> bool:
    """Whether the layer is one of the nodes `names`: backends keep the name and add to it (`conv1_quant`, `conv1 + Relu`).

    `conv1` is not in `conv10`, and `node_conv2d` not in `node_conv2d_1`.
    """
    return any(re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9]|_\d)", layer.name) for name in names)


def _names(layers: list[LayerEvidence]) -> str:
    shown = ", ".join(layer.name for layer in layers[:3])
    return shown if len(layers) <= 3 else f"{shown} and {len(layers) - 3} more"


def _counted(layers: list[LayerEvidence]) -> str:
    return "1 layer" if len(layers) == 1 else f"{len(layers)} layers"


def _listed(words: list[str]) -> str:
    return " and ".join(words)
