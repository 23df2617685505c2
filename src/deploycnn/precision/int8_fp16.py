"""int8 convolutions and matrix products with fp16 between them, for TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import load_graph
from deploycnn.precision._calibration import calibrated_ranges, usable_images
from deploycnn.precision._contract import Precision, check_parent
from deploycnn.precision._finish import finish
from deploycnn.precision._quantise import quantise
from deploycnn.precision._range import check_fp16_range, refuse_broken
from deploycnn.precision._rescale import with_larger_first_weights
from deploycnn.precision._retype import normalisation_nodes, retype
from deploycnn.types import Int8Form, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np


class Int8Float16(Precision):
    """The int8 graph with everything that is not int8 in fp16, scales included."""

    name = "int8+fp16"
    quantised = True
    uses_calibration = True

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """See Precision. Raises PrecisionError too for the forms of CPUs, and where numbers do not fit into fp16."""
        from onnx import TensorProto

        check_parent(graph, self.name)
        if form is not Int8Form.SYMMETRIC_S8:
            found = f"this target's int8 form is {form}"
            raise PrecisionError("int8+fp16 is for GPUs: CPUs compute fp16 in float32", found=found, remedy="use int8 there")
        images_NCHW, notes = usable_images(calibration_NCHW, graph.input.shape_CHW)
        model = with_larger_first_weights(load_graph(graph.onnx_path))
        kept = normalisation_nodes(model)
        refuse_broken(check_fp16_range(model, images_NCHW, progress, kept, graph.fixed_batch), self.name)
        ranges = calibrated_ranges(model, images_NCHW, self.calibrate, graph.fixed_batch, progress)
        low = retype(quantise(model, ranges, form), TensorProto.FLOAT16, kept)
        said = f"{form}, calibrated by {self.calibrate.method} on {len(images_NCHW)} images"
        return finish(low, graph, self.name, folder, images_NCHW, form, (said, *notes))
