"""Artifacts from the variants. One cell's failure never ends the run."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploycnn import units
from deploycnn.errors import DeployError, Unsupported
from deploycnn.pipeline.context import Context, key, plain_name
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.saved import read_artifact
from deploycnn.types import CompileRequest, Failed, Int8Form, Skipped, Variant
from deploycnn.workers import Worker

Form = tuple[str, Int8Form | None]


def failed(stage: str, error: DeployError, log_tail: str = "") -> Failed:
    """The outcome that an error of one cell becomes."""
    reason = f"{error.asked}: {error.found}" if error.found else error.asked
    return Failed(stage=stage, reason=reason, remedy=error.remedy, log_tail=log_tail)


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
        code=("backends/_contract.py", source_of(backend.name)),
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


def source_of(backend: str) -> str:
    """The backend's file or folder in this package, for cache keys."""
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
