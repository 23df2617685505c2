"""Proof of precision: what each convolution and matrix product really multiplies, by TensorRT's own word.

With a GPU the engine inspector says it, without one the text in the plan of TensorRT for RTX. Either has to account for every
such node of the ONNX file; where one is missing the evidence is empty, which means unproven, and a note says which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from deploycnn.backends.tensorrt import plan as plan_file
from deploycnn.backends.tensorrt.graph_checks import MatrixNode
from deploycnn.types import Evidence, LayerEvidence

# Layer types of the inspector that multiply. Reformat, kgen (generated pointwise code), Constant and the like do not.
_MULTIPLIES = re.compile(r"conv|gemm|matrixmultiply|matmul|fullyconnected|fully_connected|fusion|corrltn|^fc$", re.IGNORECASE)

# In this order: "BFloat16" holds "Float", "Int8" is in "Thirty-two wide channel vectorized row major Int8 format".
_TYPES = (
    (re.compile(r"bf16|bfloat16", re.IGNORECASE), "bfloat16"),
    (re.compile(r"fp16|half|float16", re.IGNORECASE), "float16"),
    (re.compile(r"fp8|float8", re.IGNORECASE), "float8"),
    (re.compile(r"int8", re.IGNORECASE), "int8"),
    (re.compile(r"fp32|float", re.IGNORECASE), "float32"),
)


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
    products = plan_file.products(plan)
    ops = {node.name: node.op for node in nodes if node.name}
    covered = {layer for product in products for layer in product.onnx_layers}
    layers = tuple(plan_file.as_evidence(product, ops) for product in products)
    return _judged(layers, _missing(nodes, covered, len(products)), source, provider, _switches(plan_file.facts(plan)))


def from_inspector(text: str, nodes: Sequence[MatrixNode], provider: str) -> Evidence:
    """What the engine inspector's JSON proves.

    Its shape is documented for 10.x (`Format/Datatype` per tensor) and 11.x (that field split in two); `Metadata` names the
    ONNX nodes of a layer. Names alone (an engine built without detailed profiling) prove nothing.

    Args:
        text: of `get_engine_information(LayerInformationFormat.JSON)`.
        nodes: every convolution and matrix product of the ONNX file.
        provider: what runs it.
    """
    source = "engine inspector"
    try:
        entries = json.loads(text).get("Layers", [])
    except (json.JSONDecodeError, AttributeError):
        return Evidence(source=source, provider=provider, notes=("unproven: the inspector's answer is not JSON",))
    ops = {node.name: node.op for node in nodes if node.name}
    layers, covered = [], set()
    for entry in entries:
        if not isinstance(entry, dict) or not _MULTIPLIES.search(str(entry.get("LayerType", ""))):
            continue
        names = [name for name in _onnx_names(entry, ops) if name in ops]
        if names:
            covered.update(names)
            layers.append(LayerEvidence(name=names[0], op=ops[names[0]], precision=_inspected_precision(entry)))
    return _judged(tuple(layers), _missing(nodes, covered, len(layers)), source, provider, ())


def _judged(layers: tuple[LayerEvidence, ...], missing: tuple[str, ...], source: str, provider: str, notes: tuple[str, ...]) -> Evidence:
    unknown = [layer.name for layer in layers if "unknown" in layer.precision]
    if missing or unknown:
        what = f"not found: {', '.join(missing)}" if missing else f"no type for: {', '.join(unknown)}"
        return Evidence(source=source, provider=provider, notes=(f"unproven: {what}", *notes))
    return Evidence(source=source, provider=provider, layers=layers, notes=notes)


def _missing(nodes: Sequence[MatrixNode], covered: Iterable[str], n_found: int) -> tuple[str, ...]:
    """Nodes that nothing accounts for. Without names in the file only their number can be compared."""
    names = set(covered)
    lost = [node.name for node in nodes if node.name and node.name not in names]
    unnamed = sum(not node.name for node in nodes)
    if unnamed and n_found < len(nodes):
        lost.append(f"{len(nodes) - n_found} of {len(nodes)} products without a name")
    return tuple(lost)


def _onnx_names(entry: dict[str, Any], ops: dict[str, str]) -> list[str]:
    """ONNX nodes of an inspector's layer: by its metadata, else by the names that fusion joined with ' + '."""
    named = re.findall(r"\[ONNX Layer: ([^\]]+)\]", str(entry.get("Metadata", "")))
    return named or [part.strip() for part in str(entry.get("Name", "")).split(" + ")]


def _inspected_precision(entry: dict[str, Any]) -> str:
    """Type of the activations, and of the weights where the layer says it."""
    inputs = [item for item in entry.get("Inputs", []) if isinstance(item, dict)]
    kinds = [_type_of(" ".join(str(value) for key, value in item.items() if _says_type(key))) for item in inputs[:1]]
    weights = entry.get("Weights")
    if isinstance(weights, dict) and weights.get("Type"):
        kinds.append(_type_of(str(weights["Type"])))
    distinct = list(dict.fromkeys(kinds)) or ["unknown"]
    return " x ".join(distinct)


def _says_type(key: str) -> bool:
    return "format" in key.lower() or "datatype" in key.lower()


def _type_of(text: str) -> str:
    return next((name for pattern, name in _TYPES if pattern.search(text)), "unknown")


def _switches(facts: dict[str, bool]) -> tuple[str, ...]:
    return (f"TF32 {'allowed' if facts['tf32'] else 'off'}",) if "tf32" in facts else ()
