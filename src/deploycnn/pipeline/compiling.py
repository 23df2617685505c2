"""Variants from the graph, artifacts from the variants. One cell's failure never ends the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from deploycnn import units
from deploycnn.errors import DeployError, Unsupported
from deploycnn.pipeline.context import Context, key, plain_name
from deploycnn.pipeline.planning import PlannedCell, forms_needed
from deploycnn.pipeline.saved import read_artifact, read_variant, save_variant
from deploycnn.precision import precision_class
from deploycnn.types import CompileRequest, Failed, Int8Form, Skipped, Variant
from deploycnn.workers import Worker

Form = tuple[str, Int8Form | None]


def make_variants(
    context: Context, graph: Variant, calibration_NCHW: np.ndarray, calibration_sha256: str, cells: list[PlannedCell]
) -> tuple[dict[Form, Variant], list[PlannedCell]]:
    """Every variant that a living cell needs. Cells whose variant cannot be made fail in stage "precision"."""
    variants: dict[Form, Variant] = {}
    failures: dict[Form, Failed] = {}
    for precision, form in forms_needed(cells):
        try:
            variants[precision, form] = _variant(context, graph, precision, form, calibration_NCHW, calibration_sha256)
        except DeployError as error:
            failures[precision, form] = failed("precision", error)
            context.talk.warn(f"{precision}: {error.one_line}")
    return variants, [_failed_if(planned, failures) for planned in cells]


def _failed_if(planned: PlannedCell, failures: dict[Form, Failed]) -> PlannedCell:
    failure = failures.get((planned.cell.precision, planned.cell.int8_form))
    return planned.changed(outcome=failure) if failure and planned.alive else planned


def failed(stage: str, error: DeployError, log_tail: str = "") -> Failed:
    """The outcome that an error of one cell becomes."""
    reason = f"{error.asked}: {error.found}" if error.found else error.asked
    return Failed(stage=stage, reason=reason, remedy=error.remedy, log_tail=log_tail)


def _variant(
    context: Context, graph: Variant, precision: str, form: Int8Form | None, calibration_NCHW: np.ndarray, calibration_sha256: str
) -> Variant:
    maker = precision_class(precision)(context.recipe.calibrate)
    title = precision + (f" ({form})" if form else "")
    variant_key = key(
        "variant",
        code=("precision", "graph"),
        packages=("onnx", "onnxruntime-gpu", "onnxruntime"),
        graph=graph.sha256,
        precision=precision,
        form=form,
        calibration=[calibration_sha256, context.recipe.calibrate.model_dump(mode="json")] if maker.uses_calibration else None,
    )

    def make(folder: Path) -> None:
        with context.talk.stage(f"variant {title}") as progress:
            save_variant(folder, _contained(maker.make(graph, form, calibration_NCHW, folder, progress), folder))

    built = context.store.build(variant_key, make)
    variant = read_variant(built.path)
    context.talk.say(f"variant {title}: " + ("reused" if built.reused else units.size(variant.onnx_path.stat().st_size)))
    return variant


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


# --- artifacts ----------------------------------------------------------------------------


def compile_cells(context: Context, variants: dict[Form, Variant], cells: list[PlannedCell]) -> list[PlannedCell]:
    """Every living cell's artifact, each compiled in a worker process of its own and copied into the run's folder."""
    return [_compiled(context, variants, planned) if planned.alive else planned for planned in cells]


def _compiled(context: Context, variants: dict[Form, Variant], planned: PlannedCell) -> PlannedCell:
    cell = planned.cell
    variant = variants[cell.precision, cell.int8_form]
    log = context.log(cell.name, "compile")
    try:
        entry, reused = _artifact_entry(context, variant, planned, log)
    except Unsupported as error:
        return planned.changed(outcome=Skipped(reason=failed("compile", error).reason, remedy=error.remedy))
    except DeployError as error:
        context.talk.warn(f"{cell.name}: {error.one_line}")
        return planned.changed(outcome=failed("compile", error, tail_of(log)))
    artifact = read_artifact(entry)
    folder = context.session / "artifacts" / plain_name(cell.name)
    _copy_entry(entry, context.out / folder)
    context.talk.say(
        f"compile {cell.name}: " + ("reused" if reused else f"{units.size(artifact.size_bytes)} in {units.seconds(artifact.build_s)}")
    )
    reused_stages = (*cell.reused, "compile") if reused else cell.reused
    return planned.changed(artifact=artifact, folder=folder.as_posix(), reused=reused_stages, notes=(*cell.notes, *artifact.notes))


def _artifact_entry(context: Context, variant: Variant, planned: PlannedCell, log: Path) -> tuple[Path, bool]:
    cell, backend, recipe = planned.cell, planned.backend, context.recipe
    options = backend.options.model_dump(mode="json")
    batches = recipe.measure.batches
    artifact_key = key(
        "artifact",
        code=("backends/_contract.py", _source_of(backend.name)),
        packages=backend.packages,
        variant=variant.sha256,
        backend=backend.name,
        options=options,
        target=str(cell.target),
        batches=batches,
        threads=recipe.measure.threads,
        machine=context.environment.id,
    )

    def make(folder: Path) -> None:
        request = CompileRequest(
            variant=variant,
            target=cell.target,
            batches=batches,
            threads=recipe.measure.threads,
            folder=folder,
            cache_folder=context.store.shared(f"backends/{backend.name}"),
        )
        worker = Worker(cell.name, log_path=log, threads=context.environment.cpu.usable_cores, memory_bytes=context.memory_bytes)
        with context.talk.stage(f"compile {cell.name}") as progress, worker:
            worker.compile(backend.name, options, request, progress=progress, timeout_s=recipe.limits.compile_s)

    built = context.store.build(artifact_key, make)
    return built.path, built.reused


def _source_of(backend: str) -> str:
    from deploycnn.pipeline.context import PACKAGE

    name = f"backends/{backend}"
    return name if (PACKAGE / name).is_dir() else f"{name}.py"


def _copy_entry(entry: Path, folder: Path) -> None:
    """The run's own copy: it stays whole when the cache is pruned, and the cache stays whole when it is edited."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(entry, folder)


def tail_of(log: Path, lines: int = 20) -> str:
    """The last lines of a worker's output, "" where there are none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
