"""Variants from the graph: one ONNX file per precision and form. One variant's failure never ends the run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from deploycnn import units
from deploycnn.errors import DeployError
from deploycnn.pipeline.compiling import Form, failed
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.fine_tuning import fine_tuned
from deploycnn.pipeline.judging import forget, jury_for
from deploycnn.pipeline.planning import PlannedCell, forms_needed
from deploycnn.pipeline.preparing import Graph, Images
from deploycnn.pipeline.saved import read_variant, save_variant
from deploycnn.precision import Precision, audit_calibration, precision_class
from deploycnn.record import VariantFacts
from deploycnn.store import Key
from deploycnn.types import Failed, Int8Form, Variant


def make_variants(
    context: Context, graph: Graph, images: Images, cells: list[PlannedCell]
) -> tuple[dict[Form, Variant], list[PlannedCell]]:
    """Every variant that a living cell needs. Cells whose variant cannot be made fail in stage "precision"."""
    variants: dict[Form, Variant] = {}
    failures: dict[Form, Failed] = {}
    for precision, form in forms_needed(cells):
        its_cells = [planned for planned in cells if planned.alive and _form(planned) == (precision, form)]
        try:
            variants[precision, form] = _variant(context, graph, images, precision, form, its_cells)
        except DeployError as error:
            failures[precision, form] = failed("precision", error)
            context.talk.warn(f"{precision}: {error.one_line}")
    return variants, [_failed_if(planned, failures) for planned in cells]


def _form(planned: PlannedCell) -> Form:
    return planned.cell.precision, planned.cell.int8_form


def _failed_if(planned: PlannedCell, failures: dict[Form, Failed]) -> PlannedCell:
    failure = failures.get(_form(planned))
    return planned.changed(outcome=failure) if failure and planned.alive else planned


def _variant(context: Context, graph: Graph, images: Images, precision: str, form: Int8Form | None, cells: list[PlannedCell]) -> Variant:
    if precision == "int8" and graph.given_int8 is not None:
        context.talk.say(f"variant int8 ({form}): the file that was given")
        return graph.given_int8.model_copy(update={"int8_form": form, "parent_sha256": graph.variant.sha256})
    kind = precision_class(precision)
    if kind.quantised:
        chosen_N = images.splits.calibration_N
        audit_calibration(images.calibration_NCHW, images.dataset.train.labels_N[chosen_N], images.dataset.classes)
    source = fine_tuned(context, graph, images, form) if kind.trains else graph.variant
    variant_key = _key(context, source, images, kind, form, cells)
    title = precision + (f" ({form})" if form else "")

    def make(folder: Path) -> None:
        jury = jury_for(context, images, source, cells, variant_key.digest) if kind.searches else None
        maker = kind(context.recipe.calibrate, jury)
        with context.talk.stage(f"variant {title}") as progress:
            variant = maker.make(source, form, images.calibration_NCHW, folder, progress)
        save_variant(folder, _contained(variant, folder))

    built = context.store.build(variant_key, make)
    if kind.searches and not built.reused:
        forget(context, variant_key.digest)
    variant = read_variant(built.path)
    context.talk.say(f"variant {title}: " + ("reused" if built.reused else units.size(variant.onnx_path.stat().st_size)))
    return variant


def _key(context: Context, source: Variant, images: Images, kind: type[Precision], form: Int8Form | None, cells: list[PlannedCell]) -> Key:
    """What a variant depends on. What is searched for depends on who judges, too: validation images, backend and machine."""
    calibration = [images.calibration_sha256, context.recipe.calibrate.model_dump(mode="json")] if kind.uses_calibration else None
    search = None
    if kind.searches:
        here = next((planned for planned in cells if planned.runs_here), None)
        measured = [here.backend.name, here.backend.options.model_dump(mode="json"), context.environment.id] if here else None
        search = [images.part_sha256(images.splits.validation_N), measured, context.recipe.measure.threads]
    return key(
        "variant",
        code=("precision", "graph"),
        packages=("onnx", "onnxruntime-gpu", "onnxruntime"),
        graph=source.sha256,
        precision=kind.name,
        form=form,
        calibration=calibration,
        search=search,
    )


def _contained(variant: Variant, folder: Path) -> Variant:
    """A copy whose files all lie in `folder`: an entry of the cache must not point into another one."""
    paths = {"onnx_path": variant.onnx_path, "program_path": variant.program_path}
    inside = {}
    for field, path in paths.items():
        if path is not None and path.parent != folder:
            shutil.copyfile(path, folder / path.name)
            path = folder / path.name
        inside[field] = path
    return variant.model_copy(update=inside)


def variant_facts(variants: Mapping[Form, Variant]) -> tuple[VariantFacts, ...]:
    """What the record keeps of the variants."""
    return tuple(
        VariantFacts(
            precision=precision,
            int8_form=form,
            sha256=variant.sha256,
            size_bytes=variant.onnx_path.stat().st_size,
            notes=variant.notes,
            layers=variant.layers,
        )
        for (precision, form), variant in variants.items()
    )
