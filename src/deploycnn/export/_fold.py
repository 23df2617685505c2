"""BatchNorm and constants folded into weights, by ONNX Runtime's own basic optimisations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import ModelError
from deploycnn.graph import load_graph, vendor_errors

if TYPE_CHECKING:
    import onnx

# What other exporters leave in; graphs without any of them stay as they are.
_FOLDABLE = {"BatchNormalization", "Constant", "Identity", "Dropout"}


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph with the same answers and fewer nodes, of standard operators only.

    Raises:
        ModelError: ONNX Runtime cannot load the graph.
    """
    if not _FOLDABLE.intersection(node.op_type for node in model.graph.node):
        return model
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="deploycnn-") as name:
        path = Path(name) / "folded.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except vendor_errors() as error:
            found = " ".join(str(error).split())[:300]
            raise ModelError("ONNX Runtime cannot load the graph", found=found, remedy="export it again") from error
        result = load_graph(path)
    used = {node.domain for node in result.graph.node}
    kept = [entry for entry in result.opset_import if entry.domain in used or not entry.domain]
    del result.opset_import[:]
    result.opset_import.extend(kept)
    result.producer_name, result.producer_version = model.producer_name, model.producer_version
    return result
