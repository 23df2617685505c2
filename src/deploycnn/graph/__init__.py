"""Reading, running and describing ONNX graphs: what stages, backends and the pipeline share about them."""

from __future__ import annotations

from deploycnn.graph._expose import Exposed, common_tensors, exposing, parted, quantised_limits
from deploycnn.graph._facts import GraphFacts, WeightedOp, graph_facts
from deploycnn.graph._files import load_graph, parse_graph, read_bytes, save_graph
from deploycnn.graph._metadata import GraphMetadata, read_metadata, write_metadata
from deploycnn.graph._quantised import QuantisedTensor, describe_quantisation, form_of
from deploycnn.graph._run import Runner, padded_batches, runtime_limits, vendor_errors

__all__ = [
    "Exposed",
    "GraphFacts",
    "GraphMetadata",
    "QuantisedTensor",
    "Runner",
    "WeightedOp",
    "common_tensors",
    "describe_quantisation",
    "exposing",
    "form_of",
    "graph_facts",
    "load_graph",
    "padded_batches",
    "parse_graph",
    "parted",
    "quantised_limits",
    "read_bytes",
    "read_metadata",
    "runtime_limits",
    "save_graph",
    "vendor_errors",
    "write_metadata",
]
