"""What ONNX Runtime really ran, from its own profile of one run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploycnn.types import Evidence, LayerEvidence

# Kinds that hold a convolution or a matrix product, after fusion; matched within the operator's name, lower case.
# A subgraph that the TensorRT provider took as a whole shows none of them: its precision is then unproven.
_PRODUCTS = ("conv", "gemm", "matmul", "attention", "lstm", "gru")
AND = " + "  # between the names of providers
_NAMES = {"float": "float32", "double": "float64", "uint8": "int8"}  # where ours differ


def evidence(profiled_run: Callable[[Path], Path], *, float32_name: str, notes: tuple[str, ...]) -> Evidence:
    """Runs once with profiling on and reads what it says.

    Args:
        profiled_run: takes the prefix of the profile's path, runs, gives back the profile's path.
        float32_name: what float32 products are computed in: float32, or tfloat32.

    Returns:
        One layer for each convolution and matrix product, its precision that of the first tensor that it read. Float
        products between QuantizeLinear and DequantizeLinear are simulated int8.
    """
    with tempfile.TemporaryDirectory(prefix="deploycnn-profile-") as folder:
        events = json.loads(profiled_run(Path(folder) / "run").read_text(encoding="utf-8"))
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    products = [node for node in nodes if any(kind in node["args"]["op_name"].lower() for kind in _PRODUCTS)]
    layers = tuple(_layer(node, float32_name) for node in products)
    quantised = any(node["args"]["op_name"] in ("QuantizeLinear", "DequantizeLinear") for node in nodes)
    return Evidence(
        source="ONNX Runtime profile of one run",
        provider=AND.join(sorted({node["args"]["provider"] for node in products or nodes})),
        layers=layers,
        simulated=quantised and bool(layers) and not any(layer.precision == "int8" for layer in layers),
        notes=notes,
    )


def _layer(node: dict[str, Any], float32_name: str) -> LayerEvidence:
    arguments = node["args"]
    inputs = [next(iter(kind)) for kind in arguments.get("input_type_shape", []) if kind]
    precision = _NAMES.get(inputs[0], inputs[0]) if inputs else "unknown"
    name = node["name"].removesuffix("_kernel_time")
    return LayerEvidence(name=name, op=arguments["op_name"], precision=float32_name if precision == "float32" else precision)
