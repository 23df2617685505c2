"""Which nodes go back to float together with a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def with_followers(model: onnx.ModelProto, layers: frozenset[str]) -> frozenset[str]:
    """The layers and the nodes between them that would round their tensors again if they stayed quantised.

    A node that is no layer (ReLU, pooling, addition) follows where the nearest layer above it, one of them at least,
    is among `layers`, or where all the nearest layers below it are.

    Args:
        model: the float32 graph, nodes in topological order.
        layers: names of convolutions and matrix products.
    """
    writers = {name: node for node in model.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    above: dict[str, set[str]] = {}
    for node in model.graph.node:
        near = [writers[name] for name in node.input if name in writers]
        above[node.name] = _nearest(near, above)
    below: dict[str, set[str]] = {}
    for node in reversed(model.graph.node):
        near = [reader for name in node.output for reader in readers.get(name, [])]
        below[node.name] = _nearest(near, below)
    followers = {
        node.name
        for node in model.graph.node
        if node.op_type not in LAYERS and (above[node.name] & layers or (below[node.name] and below[node.name] <= layers))
    }
    return layers | followers


def _nearest(nodes: list[onnx.NodeProto], known: dict[str, set[str]]) -> set[str]:
    """Names of layers among the nodes, or beyond those that are none."""
    found: set[str] = set()
    for node in nodes:
        found |= {node.name} if node.op_type in LAYERS else known[node.name]
    return found
