"""Whether a graph's numbers fit into fp16. A CPU cannot show it: it computes fp16 graphs in float32.

Checked are constants, and activations on real images. Sums inside a matrix product are not visible; compilers keep
them in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from deploycnn.errors import PrecisionError
from deploycnn.precision._tensors import float_tensors, observed
from deploycnn.types import ProgressCallback, Value

if TYPE_CHECKING:
    import numpy as np
    import onnx

LARGEST = 65504.0
SMALLEST_NORMAL = 2.0**-14  # below, precision is lost bit by bit
SMALLEST = 2.0**-25  # below, fp16 rounds to zero


class RangeFinding(Value):
    """One tensor that fp16 cannot hold.

    overflow: beyond 65,504 becomes inf. nonfinite: NaN or inf already in float32.
    underflow: all of it rounds to zero. subnormal: its largest value is below 6.1e-5, so digits are lost.
    """

    kind: Literal["overflow", "nonfinite", "underflow", "subnormal"]
    node: str  # the node that writes it, or the first one that reads a constant
    op: str
    tensor: str
    largest: float  # absolute value
    remedy: str

    @property
    def breaks(self) -> bool:
        """Whether results become wrong rather than a little less precise."""
        return self.kind != "subnormal"


def check_fp16_range(
    model: onnx.ModelProto,
    images_NCHW: np.ndarray,
    progress: ProgressCallback,
    kept: frozenset[str] = frozenset(),
    fixed_batch: int | None = None,
) -> tuple[RangeFinding, ...]:
    """Every tensor of a float32 graph that fp16 cannot hold, constants first, then activations in graph order.

    Args:
        model: with value_info for all tensors.
        images_NCHW: uint8 images that activations are looked at on; may be empty.
        progress: told how many images are through.
        kept: names of nodes that stay in float32; what only they touch is not checked.
        fixed_batch: the graph's batch where it is not dynamic.

    Raises:
        PrecisionError: the graph does not run.
    """
    findings = _constants(model, kept)
    writers = {name: node for node in model.graph.node for name in node.output}
    names = [name for name in float_tensors(model) if writers[name].name not in kept]
    largest = dict.fromkeys(names, 0.0)
    if len(images_NCHW):
        for tensors in observed(model, names, images_NCHW, fixed_batch, progress, "checking the range of fp16"):
            for name, tensor in zip(names, tensors, strict=True):
                largest[name] = _larger(largest[name], tensor)
        findings += [finding for name in names if (finding := _finding(writers[name], name, largest[name]))]
    return tuple(findings)


def _constants(model: onnx.ModelProto, kept: frozenset[str]) -> list[RangeFinding]:
    from onnx import TensorProto, numpy_helper

    readers: dict[str, onnx.NodeProto] = {}
    for node in model.graph.node:
        if node.name not in kept and node.op_type != "Clip":  # a bound that becomes inf bounds as before
            for name in node.input:
                readers.setdefault(name, node)
    findings = []
    for tensor in model.graph.initializer:
        if tensor.name in readers and tensor.data_type == TensorProto.FLOAT and (values := numpy_helper.to_array(tensor)).size:
            finding = _finding(readers[tensor.name], tensor.name, _larger(0.0, values))
            findings += [finding] if finding else []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.name not in kept and node.attribute[0].name == "value":
            values = numpy_helper.to_array(node.attribute[0].t)
            if values.dtype.name == "float32" and node.output[0] in readers and values.size:
                finding = _finding(readers[node.output[0]], node.output[0], _larger(0.0, values))
                findings += [finding] if finding else []
    return findings


def _larger(largest: float, tensor: np.ndarray) -> float:
    """The larger absolute value; NaN counts as inf."""
    import numpy as np

    found = float(np.abs(tensor).max(initial=0.0))
    return float("inf") if np.isnan(found) else max(largest, found)


def _finding(node: onnx.NodeProto, tensor: str, largest: float) -> RangeFinding | None:
    kind: Literal["overflow", "nonfinite", "underflow", "subnormal"]
    if largest == float("inf"):
        kind, remedy = "nonfinite", f"mend the model: {node.name} works with NaN or inf in float32 too"
    elif largest > LARGEST:
        kind, remedy = "overflow", f"keep {node.name} in fp32, scale it down, or use bf16, which has the range of fp32"
    elif 0 < largest < SMALLEST:
        kind, remedy = "underflow", f"keep {node.name} in fp32, scale it up, or use bf16, which has the range of fp32"
    elif 0 < largest < SMALLEST_NORMAL:
        kind, remedy = "subnormal", f"scale {node.name} up, or use bf16"
    else:
        return None
    return RangeFinding(kind=kind, node=node.name, op=node.op_type, tensor=tensor, largest=largest, remedy=remedy)


def refuse_broken(findings: tuple[RangeFinding, ...], precision: str) -> None:
    """Raises PrecisionError naming the first node whose numbers do not fit, where there is one."""
    broken = [finding for finding in findings if finding.breaks]
    if not broken:
        return
    first = broken[0]
    limit = {"overflow": f"fp16 ends at {LARGEST:,.0f}", "nonfinite": "NaN or inf", "underflow": "fp16 rounds that to zero"}[first.kind]
    more = f"; and {len(broken) - 1} more: {', '.join(finding.node for finding in broken[1:6])}" if broken[1:] else ""
    raise PrecisionError(
        f"{precision} cannot hold the numbers of node {first.node} ({first.op})",
        found=f"{first.tensor} reaches {first.largest:.3g}; {limit}{more}",
        remedy=first.remedy,
    )
