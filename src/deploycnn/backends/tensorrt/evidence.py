"""Proof of precision: what each convolution and matrix product really multiplies, by TensorRT's own word.

With a GPU the engine inspector says it, without one the text in the plan of TensorRT for RTX. Evidence has one entry for each
such node of the ONNX file; a node that nothing accounts for, or that no type is given for, has none, and a note names it. Fewer
entries than nodes mean unproven.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deploycnn.backends.tensorrt import plan as plan_file
from deploycnn.backends.tensorrt.graph_checks import MatrixNode
from deploycnn.types import Evidence, LayerEvidence

# Layer types of the inspector that multiply. Reformat, kgen (generated pointwise code), Constant and the like do not.
_MULTIPLIES = re.compile(r"conv|gemm|matrixmultiply|matmul|fullyconnected|fully_connected|fusion|corrltn|^fc$", re.IGNORECASE)

# In this order: "BFloat16" holds "Float16", and a format's name may hold more than the type.
_TYPES = (
    (re.compile(r"bf16|bfloat16", re.IGNORECASE), "bfloat16"),
    (re.compile(r"fp16|half|float16", re.IGNORECASE), "float16"),
    (re.compile(r"fp8|float8", re.IGNORECASE), "float8"),
    (re.compile(r"int8", re.IGNORECASE), "int8"),
    (re.compile(r"fp32|float", re.IGNORECASE), "float32"),
)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """One product as TensorRT describes it."""

    name: str
    op: str
    kinds: tuple[str, ...]  # precision of each operand that it names, "" where unreadable
    onnx_names: tuple[str, ...]


def from_plan(plan: bytes, nodes: Sequence[MatrixNode], provider: str) -> Evidence:
    """What the text of a plan of TensorRT for RTX proves.

    Args:
        plan: the file.
        nodes: every convolution and matrix product of the ONNX file.
        provider: what would run it.
    """
    source = "text of the plan"
    header = plan_file.read_header(plan)
    if header is None or header.version not in plan_file.SEEN:
        version = "this file" if header is None else f"version {header.version}"
        seen = ", ".join(plan_file.SEEN)
        return Evidence(source=source, provider=provider, notes=(f"unproven: plans of {version} were never checked, only {seen}",))
    said = [
        _Said(name=product.name, op=product.op, kinds=tuple(map(_type_of, product.operands)), onnx_names=product.onnx_layers)
        for product in plan_file.products(plan)
    ]
    return _judged(said, nodes, source, provider, tf32=plan_file.facts(plan).get("tf32"))


def from_inspector(text: str, nodes: Sequence[MatrixNode], provider: str, *, tf32: bool) -> Evidence:
    """What the engine inspector's JSON proves.

    Its shape is documented for 10.x (`Format/Datatype` per tensor) and 11.x (that field split in two); `Metadata` names the
    ONNX nodes of a layer. Names alone (an engine built without detailed profiling) prove nothing.

    Args:
        text: of `get_engine_information(LayerInformationFormat.JSON)`.
        nodes: every convolution and matrix product of the ONNX file.
        provider: what runs it.
        tf32: whether the engine was built with TF32 allowed.
    """
    source = "engine inspector"
    try:
        entries = json.loads(text).get("Layers", [])
    except (json.JSONDecodeError, AttributeError):
        return Evidence(source=source, provider=provider, notes=("unproven: the inspector's answer is not JSON",))
    said = [
        _Said(name=str(entry.get("Name", "")), op="Gemm", kinds=_inspected_kinds(entry), onnx_names=_onnx_names(entry))
        for entry in entries
        if isinstance(entry, dict) and _MULTIPLIES.search(str(entry.get("LayerType", "")))
    ]
    return _judged(said, nodes, source, provider, tf32=tf32)


def _judged(said: Sequence[_Said], nodes: Sequence[MatrixNode], source: str, provider: str, *, tf32: bool | None) -> Evidence:
    """One entry per ONNX node where the file names its nodes, else one per product."""
    layers, unproved = [], []
    if all(node.name for node in nodes):
        asked = [(node.name, node.op, [one for one in said if node.name in one.onnx_names]) for node in nodes]
    else:
        asked = [(one.name, one.op, [one]) for one in said]
        unproved += [f"{len(nodes) - len(said)} nodes without a name"] * (len(said) < len(nodes))
    for name, op, by in asked:
        precision = _precision((kind for one in by for kind in one.kinds), tf32=bool(tf32))
        if precision:
            layers.append(LayerEvidence(name=name, op=op, precision=precision))
        else:
            unproved.append(name)
    notes = [f"unproven: nothing says what these run in: {', '.join(unproved)}"] if unproved else []
    if tf32 is not None:
        notes.append(f"TF32 {'allowed' if tf32 else 'off'}")
    return Evidence(source=source, provider=provider, layers=tuple(layers), notes=tuple(notes))


def _precision(kinds: Iterable[str], *, tf32: bool) -> str:
    """One word where all operands agree, `int8 x float32` where not, "" where one is unknown or nothing is said."""
    distinct = list(dict.fromkeys("tfloat32" if tf32 and kind == "float32" else kind for kind in kinds))
    return "" if "" in distinct else " x ".join(distinct)


def _onnx_names(entry: dict[str, Any]) -> tuple[str, ...]:
    """ONNX nodes of an inspector's layer: by its metadata, else by the names that fusion joined with ' + '."""
    named = re.findall(r"\[ONNX Layer: ([^\]]+)\]", str(entry.get("Metadata", "")))
    return tuple(named or (part.strip() for part in str(entry.get("Name", "")).split(" + ")))


def _inspected_kinds(entry: dict[str, Any]) -> tuple[str, ...]:
    """Type of the activations, and of the weights where the layer says it."""
    inputs = [item for item in entry.get("Inputs", []) if isinstance(item, dict)]
    kinds = [_type_of(" ".join(str(value) for key, value in item.items() if _says_type(key))) for item in inputs[:1]]
    weights = entry.get("Weights")
    if isinstance(weights, dict) and weights.get("Type"):
        kinds.append(_type_of(str(weights["Type"])))
    return tuple(kinds)


def _says_type(key: str) -> bool:
    return "format" in key.lower() or "datatype" in key.lower()


def _type_of(text: str) -> str:
    return next((name for pattern, name in _TYPES if pattern.search(text)), "")
