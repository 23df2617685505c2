"""int8 that is repaired: channels equalised, and the layers that int8 hurts most left in float, until it answers like fp32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import load_graph
from deploycnn.precision._calibration import MINIMUM_IMAGES, calibrated_ranges, usable_images
from deploycnn.precision._contract import Precision, check_parent
from deploycnn.precision._equalise import equalised, groups
from deploycnn.precision._finish import finish
from deploycnn.precision._layers import with_followers
from deploycnn.precision._quantise import quantise
from deploycnn.precision._search import Judge, Judgement, Quantise, search
from deploycnn.precision._tensors import observed
from deploycnn.types import Int8Form, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np
    import onnx


class Int8Auto(Precision):
    """Every second calibration image gives ranges, the others judge; test images are never seen."""

    name = "int8-auto"
    quantised = True
    uses_calibration = True

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """See Precision. The notes name the layers in float and what each step brought."""
        check_parent(graph, self.name)
        if form is None:
            raise PrecisionError("int8-auto needs a form", remedy="ask the backend: Backend.int8_form(target)")
        images_NCHW, notes = usable_images(calibration_NCHW, graph.input.shape_CHW)
        ranging_NCHW, judging_NCHW = images_NCHW[::2], images_NCHW[1::2]
        if len(judging_NCHW) < MINIMUM_IMAGES:
            found = f"{len(images_NCHW)} images, {2 * MINIMUM_IMAGES} are needed: half of them judge"
            raise PrecisionError("the calibration set is too small", found=found, remedy="set data.calibration to 512")
        original = load_graph(graph.onnx_path)
        judge = Judge(original, judging_NCHW, graph.fixed_batch)
        limit = self.calibrate.max_drop_pp / 100

        def quantiser(model: onnx.ModelProto) -> Quantise:
            ranges = calibrated_ranges(model, ranging_NCHW, self.calibrate, graph.fixed_batch, progress)
            return lambda layers: quantise(model, ranges, form, with_followers(model, layers) if layers else layers)

        chosen = quantiser(original)
        before = judge(chosen(frozenset()))
        said = [_said("plain int8", before)]
        if before.expected_drop > limit:
            same = _equalised(original, ranging_NCHW, graph.fixed_batch, progress)
            repaired = quantiser(same)
            after = judge(repaired(frozenset()))
            said.append(_said("with channels equalised", after))
            # Equalising changes nothing in float; where it does, a layer was not what it seemed.
            if after.relative_logit_error < before.relative_logit_error and judge(same).relative_logit_error < 1e-3:
                chosen = repaired
        outcome = search(original, chosen, judge, limit, progress)
        if outcome.left_float:
            said.append(_said(f"with {', '.join(outcome.left_float)} in float", outcome.steps[-1][1]))
        if not outcome.reached:
            said.append(f"the limit of {self.calibrate.max_drop_pp} pp was not reached")
        model = chosen(frozenset(outcome.left_float))
        return finish(model, graph, self.name, folder, judging_NCHW, form, (*said, *notes))


def _equalised(model: onnx.ModelProto, images_NCHW: np.ndarray, fixed_batch: int | None, progress: ProgressCallback) -> onnx.ModelProto:
    import numpy as np

    names = list(dict.fromkeys(name for group in groups(model) for name in group.watched))
    largest: dict[str, np.ndarray] = {}
    if names:
        for tensors in observed(model, names, images_NCHW, fixed_batch, progress, "finding ranges of channels"):
            for name, tensor in zip(names, tensors, strict=True):
                seen = np.abs(tensor).max(axis=(0, *range(2, tensor.ndim)))
                largest[name] = np.maximum(largest.get(name, 0.0), seen)
    return equalised(model, largest)


def _said(what: str, judgement: Judgement) -> str:
    return (
        f"{what}: expected drop {100 * judgement.expected_drop:.2f} pp, agreement {100 * judgement.agreement:.1f} %, "
        f"relative logit error {judgement.relative_logit_error:.2g}, {100 * judgement.int8_share:.0f} % of multiply-adds in int8"
    )
