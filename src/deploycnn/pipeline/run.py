"""`run`: the stages in order, and the record they leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deploycnn import __version__
from deploycnn.disk import disk_errors, lock, make_folder
from deploycnn.environment import environment
from deploycnn.errors import EXIT_NOTHING_TO_SHIP, EXIT_OK
from deploycnn.pipeline.bundle import write_bundle
from deploycnn.pipeline.calibration import calibration_spreads
from deploycnn.pipeline.compiling import compile_cells
from deploycnn.pipeline.console import Talk, stdout_console
from deploycnn.pipeline.context import Context, memory_limit
from deploycnn.pipeline.energy_use import with_energy
from deploycnn.pipeline.measuring import measure_cells
from deploycnn.pipeline.planning import check_recipe, plan
from deploycnn.pipeline.preparing import prepare_graph, prepare_images
from deploycnn.pipeline.reporting import show, write_reports
from deploycnn.pipeline.rooflines import with_rooflines
from deploycnn.pipeline.validating import keep_flips_of, validate_cells
from deploycnn.pipeline.variants import make_variants, variant_facts
from deploycnn.recipe import Recipe
from deploycnn.record import Record
from deploycnn.recordfile import write_record
from deploycnn.report.terminal import render_stages
from deploycnn.store import Store, cache_root


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the command line says beside the recipe."""

    out: Path | None = None
    resume: bool = False
    remeasure: bool = False
    command: str = "deploycnn run"


class Stopwatch:
    """Wall time of each stage of this run."""

    def __init__(self) -> None:
        self.stage_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start_s = time.perf_counter()
        yield
        self.stage_s[name] = time.perf_counter() - start_s


def run_recipe(recipe: Recipe, options: RunOptions, talk: Talk) -> int:
    """Runs a recipe whole, prints its report and leaves its record. Returns the exit code."""
    check_recipe(recipe)
    out = options.out or _fresh_folder(recipe.name)
    make_folder(out)
    with lock(out / ".lock", "a run", wait_s=0):
        context = Context(
            recipe=recipe,
            store=Store(cache_root(), warn=talk.warn),
            talk=talk,
            environment=environment(),
            out=out,
            memory_bytes=memory_limit(recipe, environment()),
            resume=options.resume,
            remeasure=options.remeasure,
        )
        watch = Stopwatch()
        record = _stages(context, watch, options.command)
        with disk_errors(out):
            write_record(out, record)
            recommendation = write_reports(out, record)
    console = stdout_console()
    show(record, console)
    render_stages(record, console)
    console.print(f"Record and reports: {out}", soft_wrap=True)
    return EXIT_OK if recommendation.ship else EXIT_NOTHING_TO_SHIP


def _fresh_folder(recipe_name: str) -> Path:
    """`runs/TIME-RECIPE`, with a number behind it where two runs begin in one second."""
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{recipe_name}"
    names = [stem, *(f"{stem}-{i}" for i in range(2, 100))]
    return next(Path("runs") / name for name in names if not (Path("runs") / name).exists())


def _stages(context: Context, watch: Stopwatch, command: str) -> Record:
    recipe = context.recipe
    context.talk.say(f"recipe {recipe.name} on {context.environment.summary}")
    with watch.stage("data"):
        images = prepare_images(context)
    with watch.stage("train and export"):
        graph = prepare_graph(context, images)
    with watch.stage("variants"):
        cells = plan(recipe, has_program=graph.variant.program_path is not None)
        variants, cells = make_variants(context, graph, images, cells)
        spreads = calibration_spreads(context, graph, images, variants)
    with watch.stage("compile"):
        cells = compile_cells(context, variants, cells)
    with watch.stage("validate"):
        validated = validate_cells(context, images.held_out, variants, cells)
        keep_flips_of(context, images.held_out, validated)
        write_bundle(context, images.held_out, variants, validated)
    with watch.stage("measure"):
        measured = measure_cells(context, images.held_out, validated.cells, cells[0].cell.name)
        cells, peak = with_rooflines(context, variants, measured.cells)
        cells, uncounted = with_energy(context, images.held_out, cells)
    return Record(
        deploycnn_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        recipe=recipe.model_dump(mode="json", by_alias=True),
        data=images.facts,
        model=graph.facts,
        environments={context.environment.id: context.environment},
        reference=cells[0].cell.name,
        cells=tuple(planned.cell for planned in cells),
        variants=variant_facts(variants),
        calibration_spreads=spreads,
        noise_floor=measured.noise_floor,
        peaks={context.environment.id: peak} if peak else {},
        stage_s=watch.stage_s,
        gpus=measured.gpus,
        doubts=measured.doubts,
        notes=(*_notes(graph.reused, measured.note), *uncounted),
    )


def _notes(reused: tuple[str, ...], measured: str) -> tuple[str, ...]:
    notes = [f"reused from the cache: {', '.join(reused)}"] if reused else []
    return (*notes, measured) if measured else tuple(notes)
