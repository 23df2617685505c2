"""How much int8 depends on which images calibrated it: the variant made again from other draws, judged on the validation part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from deploycnn import data
from deploycnn.errors import DeployError, PrecisionError
from deploycnn.graph import Runner
from deploycnn.pipeline.compiling import Form
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.preparing import Graph, Images
from deploycnn.precision import precision_class
from deploycnn.record import CalibrationSpread
from deploycnn.types import Int8Form, Progress, ProgressCallback, Variant

PRECISION = "int8"  # what is calibrated and nothing else: the others begin with it
_SEED_TAG = 12  # keeps these draws apart from the ones that data.split makes of the same seed
RESULT = "spread.json"


def calibration_spreads(context: Context, graph: Graph, images: Images, variants: Mapping[Form, Variant]) -> tuple[CalibrationSpread, ...]:
    """One for each int8 variant that the run made, where `validate.calibration_seeds` asks for them."""
    seeds = context.recipe.validate_.calibration_seeds
    forms = [form for precision, form in variants if precision == PRECISION and form is not None]
    found = []
    for form in forms if seeds and graph.given_int8 is None else ():
        try:
            found.append(_spread(context, graph.variant, images, form, seeds))
        except DeployError as error:
            context.talk.warn(f"spread over calibration images ({form}): {error.one_line}")
    return tuple(found)


def _spread(context: Context, graph: Variant, images: Images, form: Int8Form, seeds: int) -> CalibrationSpread:
    spread_key = key(
        "calibration-spread",
        code=("precision", "graph", "pipeline/calibration.py"),
        packages=("onnx", "onnxruntime-gpu", "onnxruntime"),
        graph=graph.sha256,
        form=form,
        calibrate=context.recipe.calibrate.model_dump(mode="json"),
        n_calibration=len(images.splits.calibration_N),
        parts=[images.part_sha256(part_N) for part_N in (images.splits.train_N, images.splits.validation_N)],
        seeds=seeds,
    )

    def make(folder: Path) -> None:
        with context.talk.stage(f"spread over {seeds} draws of calibration images ({form})") as progress:
            (folder / RESULT).write_text(_judged(context, graph, images, form, seeds, progress).model_dump_json(), encoding="utf-8")

    return CalibrationSpread.model_validate_json((context.store.build(spread_key, make).path / RESULT).read_text(encoding="utf-8"))


def _judged(context: Context, graph: Variant, images: Images, form: Int8Form, seeds: int, progress: ProgressCallback) -> CalibrationSpread:
    """The variant of each draw on all validation images. What is drawn from are training images; validation's are not among them."""
    train, parts = images.dataset.train, images.splits
    validation_NCHW = np.ascontiguousarray(train.images_NCHW[parts.validation_N])
    labels_N = train.labels_N[parts.validation_N]
    count = min(len(parts.calibration_N), len(parts.train_N))
    maker = precision_class(PRECISION)(context.recipe.calibrate)
    top1 = []
    for seed in range(seeds):
        chosen_N = parts.train_N[data.stratified(train.labels_N[parts.train_N], count, (seed, _SEED_TAG))]
        with TemporaryDirectory(prefix="deploycnn-") as where:
            variant = maker.make(graph, form, np.ascontiguousarray(train.images_NCHW[chosen_N]), Path(where), _silent)
            top1.append(_top1(variant, validation_NCHW, labels_N, context.recipe.validate_.batch))
        progress(Progress(done=seed + 1, total=seeds, unit="draws"))
    return CalibrationSpread(
        precision=PRECISION,
        int8_form=form,
        n_calibration=count,
        n_images=len(labels_N),
        reference_top1=_top1(graph, validation_NCHW, labels_N, context.recipe.validate_.batch),
        top1=tuple(top1),
        seeds=tuple(range(seeds)),
    )


def _top1(variant: Variant, x_NCHW: np.ndarray, labels_N: np.ndarray, batch: int) -> float:
    with Runner(variant.onnx_path, f"the {variant.precision} variant", error=PrecisionError) as runner:
        return float((runner.logits(x_NCHW, variant.fixed_batch or batch).argmax(axis=1) == labels_N).mean())


def _silent(_: Progress) -> None:
    return
