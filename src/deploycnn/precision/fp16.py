"""IEEE half precision: uint8 pixels in, float32 logits out, fp16 between, the normalisation in float32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.graph import load_graph
from deploycnn.precision._contract import Precision, check_parent
from deploycnn.precision._finish import finish
from deploycnn.precision._range import check_fp16_range, refuse_broken
from deploycnn.precision._retype import normalisation_nodes, retype
from deploycnn.types import Int8Form, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np


class Float16(Precision):
    """The calibration images only show whether activations fit; what is written does not depend on them."""

    name = "fp16"
    uses_calibration = True

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """See Precision. Raises PrecisionError too where a constant or an activation does not fit into fp16."""
        from onnx import TensorProto

        check_parent(graph, self.name)
        model = load_graph(graph.onnx_path)
        kept = normalisation_nodes(model)
        findings = check_fp16_range(model, calibration_NCHW, progress, kept, graph.fixed_batch)
        refuse_broken(findings, self.name)
        lost = [finding.node for finding in findings if not finding.breaks]
        notes = (f"digits are lost below 6.1e-5 in {', '.join(lost)}",) if lost else ()
        if not len(calibration_NCHW):
            notes = (*notes, "the range of activations was not checked: there were no images")
        return finish(retype(model, TensorProto.FLOAT16, kept), graph, self.name, folder, calibration_NCHW, notes=notes)
