"""8-bit integers by post-training quantisation: explicit Q/DQ, weights per output channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import load_graph
from deploycnn.precision._calibration import calibrated_ranges, usable_images
from deploycnn.precision._contract import Precision, check_parent
from deploycnn.precision._finish import finish
from deploycnn.precision._quantise import quantise
from deploycnn.types import Int8Form, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np


class Int8(Precision):
    """Which form, the backend says."""

    name = "int8"
    quantised = True
    uses_calibration = True

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """See Precision. Raises PrecisionError too where the calibration images are too few or say nothing."""
        check_parent(graph, self.name)
        if form is None:
            raise PrecisionError("int8 needs a form", remedy="ask the backend: Backend.int8_form(target)")
        images_NCHW, notes = usable_images(calibration_NCHW, graph.input.shape_CHW)
        model = load_graph(graph.onnx_path)
        ranges = calibrated_ranges(model, images_NCHW, self.calibrate, graph.fixed_batch, progress)
        said = f"{form}, calibrated by {self.calibrate.method} on {len(images_NCHW)} images"
        return finish(quantise(model, ranges, form), graph, self.name, folder, images_NCHW, form, (said, *notes))
