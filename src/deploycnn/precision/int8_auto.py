"""int8 that is repaired: channels equalised, and the layers that int8 hurts most left in float, until it answers like fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import load_graph
from deploycnn.precision._calibration import MINIMUM_IMAGES, calibrated_ranges, usable_images
from deploycnn.precision._contract import Precision, check_parent
from deploycnn.precision._equalise import equalised, groups
from deploycnn.precision._finish import finish
from deploycnn.precision._judging import Judge, Judgement, Memory
from deploycnn.precision._layers import with_followers
from deploycnn.precision._quantise import quantise
from deploycnn.precision._search import Quantise, Search, Step, search
from deploycnn.precision._tensors import observed
from deploycnn.types import Int8Form, Interval, LayerChoice, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np
    import onnx

RANKING_IMAGES = 256  # a layer's logit error needs no more


class Int8Auto(Precision):
    """The jury's images judge, or without a jury every second calibration image; test images are never seen."""

    name = "int8-auto"
    quantised = True
    uses_calibration = True
    searches = True

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """See Precision. The notes name the layers in float and what each step brought; `layers` is the table of them."""
        check_parent(graph, self.name)
        if form is None:
            raise PrecisionError("int8-auto needs a form", remedy="ask the backend: Backend.int8_form(target)")
        images_NCHW, notes = usable_images(calibration_NCHW, graph.input.shape_CHW)
        ranging_NCHW, judging_NCHW = self._parts(images_NCHW)
        original = load_graph(graph.onnx_path)
        memory = Memory(self.jury.folder if self.jury else None)
        judge = Judge(original, judging_NCHW, graph.fixed_batch, self.jury.assess if self.jury else None, memory)
        limits = (self.calibrate.max_drop_pp / 100, self.calibrate.max_flips_pp / 100)

        def quantiser(model: onnx.ModelProto) -> Quantise:
            ranges = calibrated_ranges(model, ranging_NCHW, self.calibrate, graph.fixed_batch, progress)
            return lambda layers: quantise(model, ranges, form, with_followers(model, layers) if layers else layers)

        chosen = quantiser(original)
        before = judge(chosen(frozenset()))
        said = [f"judged on {len(judging_NCHW)} images" + (" of the validation part" if self.jury else "")]
        said.append(_said("plain int8", before))
        if not before.within(*limits):
            same = _equalised(original, ranging_NCHW, graph.fixed_batch, progress)
            repaired = quantiser(same)
            after = judge(repaired(frozenset()))
            said.append(_said("with channels equalised", after))
            # Equalising changes nothing in float; where it does, a layer was not what it seemed.
            if after.relative_logit_error < before.relative_logit_error and judge(same).relative_logit_error < 1e-3:
                chosen = repaired
        rank = Judge(original, judging_NCHW[:RANKING_IMAGES], graph.fixed_batch)
        outcome = search(original, chosen, judge, rank, limits, progress)

        def written(step: Step, where: Path, said: tuple[str, ...]) -> Variant:
            return finish(chosen(frozenset(step.left_float)), graph, self.name, where, judging_NCHW, form, said)

        step, ratio = self._fastest(outcome, written)
        if step.left_float:
            said.append(_said(f"with {', '.join(step.left_float)} in float", step.judgement))
        if not outcome.reached:
            said.append(f"the limits were not reached: {self.calibrate.max_drop_pp} pp lost, {self.calibrate.max_flips_pp} pp flipped")
        said += self._speed(ratio)
        return written(step, folder, (*said, *notes)).model_copy(update={"layers": _table(outcome, step)})

    def _parts(self, images_NCHW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images that give ranges, and others that judge."""
        if self.jury is not None:
            return images_NCHW, self.jury.images_NCHW
        ranging_NCHW, judging_NCHW = images_NCHW[::2], images_NCHW[1::2]
        if len(judging_NCHW) < MINIMUM_IMAGES:
            found = f"{len(images_NCHW)} images, {2 * MINIMUM_IMAGES} are needed: half of them judge"
            raise PrecisionError("the calibration set is too small", found=found, remedy="set data.calibration to 512")
        return ranging_NCHW, judging_NCHW

    def _fastest(self, outcome: Search, write: Callable[[Step, Path, tuple[str, ...]], Variant]) -> tuple[Step, Interval | None]:
        """Of the sets that pass the one whose artifact is fastest; where they cannot be told apart, the one with most in int8."""
        steps = outcome.passing or outcome.steps[-1:]
        if self.jury is None:
            return steps[0], None
        timed = []
        for step in steps:
            with TemporaryDirectory(dir=self.jury.folder, prefix="candidate-") as where:
                timed.append((step, self.jury.ratio(write(step, Path(where), ()))))
        known = [(step, ratio) for step, ratio in timed if ratio is not None]
        if not known:
            return steps[0], None
        fastest = min((ratio for _, ratio in known), key=lambda ratio: ratio.value)
        return next((step, ratio) for step, ratio in known if ratio.low <= fastest.high)

    def _speed(self, ratio: Interval | None) -> list[str]:
        if self.jury is None or ratio is None:
            return []
        slower = "; fp32 is the faster one there" if ratio.low > 1 else ""
        return [f"takes {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) of the time of fp32 on {self.jury.measured_on}{slower}"]


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


def _table(outcome: Search, step: Step) -> tuple[LayerChoice, ...]:
    total = sum(layer.macs for layer in outcome.layers) or 1
    return tuple(
        LayerChoice(
            node=layer.name,
            op=layer.op,
            macs_share=layer.macs / total,
            alone=layer.alone,
            precision="float32" if layer.name in step.left_float else "int8",
        )
        for layer in outcome.layers
    )


def _said(what: str, judgement: Judgement) -> str:
    return (
        f"{what}: loses {100 * judgement.drop:.2f} pp, flips {100 * judgement.flips:.1f} pp, agreement {100 * judgement.agreement:.1f} %, "
        f"relative logit error {judgement.relative_logit_error:.2g}, {100 * judgement.int8_share:.0f} % of multiply-adds in int8"
    )
