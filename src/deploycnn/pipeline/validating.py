"""All test images through every artifact that runs here, and what each says it ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploycnn import units
from deploycnn.errors import DeployError
from deploycnn.graph import graph_facts
from deploycnn.pipeline.compiling import Form, failed, tail_of
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.flips import keep_flips
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.preparing import HeldOut
from deploycnn.precision import precision_class
from deploycnn.record import Accuracy, Loading
from deploycnn.types import Artifact, Evidence, Variant, Verdict
from deploycnn.validate.accuracy import judge
from deploycnn.validate.evidence import check_evidence, logit_tolerance
from deploycnn.workers import Worker


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What one artifact answered."""

    logits_NK: np.ndarray
    evidence: Evidence
    loading: Loading


@dataclass(frozen=True, kw_only=True)
class Validated:
    """Cells with their accuracy and evidence, and the logits that they were held against."""

    cells: list[PlannedCell]
    logits_NK: Mapping[str, np.ndarray]  # by cell name, of those that ran
    reference_NK: np.ndarray | None  # None: the reference could not be run


def validate_cells(
    context: Context,
    held_out: HeldOut,
    variants: dict[Form, Variant],
    cells: list[PlannedCell],
    reference_NK: np.ndarray | None = None,
) -> Validated:
    """Accuracy and evidence of every cell that runs here; evidence alone of those that are built for elsewhere.

    Args:
        reference_NK: logits of the fp32 reference that are known already. None: the first cell is the reference; where it fails,
            nothing can be validated, and every other cell fails with that reason.
    """
    images_path = _images_file(context, held_out)
    answered: list[tuple[PlannedCell, Predictions | None]] = []
    for planned in cells:
        answered.append(_predicted(context, held_out, images_path, planned) if planned.runs_here else (planned, None))
    if reference_NK is None and answered[0][1] is not None:
        reference_NK = answered[0][1].logits_NK
    judged = [_judged(context, held_out, variants, planned, said, reference_NK) for planned, said in answered]
    logits_NK = {planned.cell.name: said.logits_NK for planned, said in answered if said}
    return Validated(cells=judged, logits_NK=logits_NK, reference_NK=reference_NK)


def keep_flips_of(context: Context, held_out: HeldOut, validated: Validated) -> None:
    """Keeps the images that artifacts answer differently from the reference. Raises StoreError where the disk says no."""
    if validated.reference_NK is None:
        return
    accuracies = {planned.cell.name: planned.cell.accuracy for planned in validated.cells if planned.cell.accuracy}
    keep_flips(context.folder, held_out.images_NCHW, held_out.labels_N, accuracies, validated.logits_NK, validated.reference_NK)


def _images_file(context: Context, held_out: HeldOut) -> Path:
    """The test images as one .npy file that workers map into memory."""
    images_key = key("test-images", code=(), data=held_out.sha256)
    built = context.store.build(images_key, lambda folder: np.save(folder / "images.npy", held_out.images_NCHW))
    return built.path / "images.npy"


# --- answers ------------------------------------------------------------------------------


def _predicted(context: Context, held_out: HeldOut, images_path: Path, planned: PlannedCell) -> tuple[PlannedCell, Predictions | None]:
    cell = planned.cell
    log = context.log(cell.name, "validate")
    try:
        said, reused = _predictions(context, held_out, images_path, planned, log)
    except DeployError as error:
        context.talk.warn(f"{cell.name}: {error.one_line}")
        return planned.changed(outcome=failed("validate", error, tail_of(log))), None
    if reused:
        planned = planned.changed(reused=(*cell.reused, "validate"))
    return planned.changed(loading=said.loading, machine=context.environment.id), said


def _predictions(context: Context, held_out: HeldOut, images_path: Path, planned: PlannedCell, log: Path) -> tuple[Predictions, bool]:
    cell, recipe = planned.cell, context.recipe
    artifact = cell.artifact
    assert artifact is not None, "a living cell was compiled"
    predictions_key = key(
        "predictions",
        code=("workers", "backends/_contract.py"),
        packages=planned.backend.packages,
        artifact=artifact.sha256,
        name=cell.name,
        options=planned.backend.options.model_dump(mode="json"),
        images=held_out.sha256,
        batch=recipe.validate_.batch,
        threads=recipe.measure.threads,
        machine=context.environment.id,
    )

    def make(folder: Path) -> None:
        artifact_folder = context.out / (cell.folder or "")
        options = planned.backend.options.model_dump(mode="json")
        worker = Worker(cell.name, log_path=log, threads=recipe.measure.threads, memory_bytes=context.memory_bytes)
        run_s = recipe.limits.run_s
        with context.talk.stage(f"validate {cell.name}") as progress, worker:
            loaded = worker.load(cell.backend, options, artifact, artifact_folder, timeout_s=recipe.limits.load_s)
            logits_NK = worker.predict(images_path, batch=recipe.validate_.batch, timeout_s=run_s, progress=progress)
            evidence = worker.evidence(_evidence_batch(held_out, artifact), timeout_s=run_s)
            memory = worker.memory()
        np.save(folder / "logits.npy", logits_NK)
        (folder / "evidence.json").write_text(evidence.model_dump_json())
        loading = Loading(
            load_s=loaded.load_s,
            first_run_s=loaded.first_run_s,
            resident_bytes=memory.resident_bytes,
            peak_bytes=memory.peak_bytes,
            device_peak_bytes=memory.device_peak_bytes,
        )
        (folder / "loading.json").write_text(loading.model_dump_json())

    built = context.store.build(predictions_key, make)
    said = Predictions(
        logits_NK=np.load(built.path / "logits.npy"),
        evidence=Evidence.model_validate(json.loads((built.path / "evidence.json").read_text())),
        loading=Loading.model_validate_json((built.path / "loading.json").read_text()),
    )
    return said, built.reused


def _evidence_batch(held_out: HeldOut, artifact: Artifact) -> np.ndarray:
    """Real images, as many as the artifact can run at once."""
    return held_out.images_NCHW[: min(artifact.batches or (1,))]


# --- judgement ----------------------------------------------------------------------------


def _judged(
    context: Context,
    held_out: HeldOut,
    variants: dict[Form, Variant],
    planned: PlannedCell,
    said: Predictions | None,
    reference_NK: np.ndarray | None,
) -> PlannedCell:
    cell = planned.cell
    if not planned.alive or cell.artifact is None:
        return planned
    evidence = said.evidence if said else cell.artifact.evidence
    verdict = _evidence_verdict(variants[cell.precision, cell.int8_form], planned, evidence)
    planned = planned.changed(evidence=verdict, ran=evidence)
    if said is None:
        return planned
    if reference_NK is None:
        reason = "the fp32 reference could not be run, so there is nothing to compare with"
        error = DeployError(reason, remedy="see the reference's own failure")
        return planned.changed(outcome=failed("validate", error))
    accuracy = _accuracy(context, held_out, planned, said, reference_NK)
    context.talk.say(f"validate {cell.name}: top-1 {units.percent(accuracy.top1.value)}, {accuracy.verdict.state}")
    return planned.changed(accuracy=accuracy)


def _evidence_verdict(variant: Variant, planned: PlannedCell, evidence: Evidence | None) -> Verdict:
    cell = planned.cell
    facts = graph_facts(variant.onnx_path)
    in_float = [operator.name for operator in facts.weighted_ops if not operator.quantised]  # int8-auto: by design
    float_layers = in_float if variant.int8_form else ()
    return check_evidence(evidence, cell.precision, cell.target, len(facts.weighted_ops), float_layers=float_layers)


def _accuracy(context: Context, held_out: HeldOut, planned: PlannedCell, said: Predictions, reference_NK: np.ndarray) -> Accuracy:
    options = context.recipe.validate_
    exact = precision_class(planned.cell.precision).exact
    tolerance = logit_tolerance(said.evidence, options.logit_tolerance) if exact else None
    return judge(
        said.logits_NK,
        reference_NK,
        held_out.labels_N,
        held_out.classes,
        options,
        logit_tolerance=tolerance,
    )
