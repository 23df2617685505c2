"""`load`: MLPerf's load generator on one artifact of a finished run. Unofficial: no rule of a submission is checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from deploycnn import units
from deploycnn.backends import create
from deploycnn.disk import disk_errors, write_atomic
from deploycnn.environment import environment
from deploycnn.errors import EXIT_NOTHING_TO_SHIP, EXIT_OK, RecipeError, Unavailable, WorkerError
from deploycnn.measure.mlperf import PRECISION, LoadOptions, LoadResult, Scenario, find_rate
from deploycnn.pipeline.console import Talk, stdout_console
from deploycnn.pipeline.context import memory_limit, plain_name
from deploycnn.pipeline.debugged_files import chosen_cell, images_of
from deploycnn.recipe import Recipe, parse_recipe
from deploycnn.record import Cell
from deploycnn.recordfile import RECORD_NAME, read_record
from deploycnn.store import Store, cache_root
from deploycnn.types import Value
from deploycnn.workers import Worker

SCENARIOS: tuple[Scenario, ...] = ("single-stream", "offline", "server")
IMAGES = 256
OFFLINE_BATCH = 32
OFFLINE_IMAGES = 4096

Offer = Callable[[LoadOptions], LoadResult]  # runs one test


@dataclass(frozen=True, kw_only=True)
class LoadAsked:
    """What the command line says."""

    artifact: str
    scenario: str | None = None  # None: single-stream, or server where a rate is given or looked for
    qps: float | None = None
    find_qps: bool = False
    p99_ms: float | None = None
    data: Path | None = None


class LoadReport(Value):
    """What is written beside the record."""

    artifact: str
    sha256: str  # of the artifact
    label: str
    machine: str
    threads: int
    scenario: Scenario
    batch: int  # images per run
    bound_s: float | None  # the p99 that is allowed
    highest_qps: float | None  # --find-qps: whose p99 stayed under the bound; 0: none did
    tests: tuple[LoadResult, ...]


def load_command(run: Path, asked: LoadAsked, talk: Talk) -> int:
    """Offers the load, prints the result, writes it beside the record.

    Returns:
        0; 1 where the p99 stayed under the bound at no rate that was tried.

    Raises:
        RecipeError: arguments that do not go together.
        RecordError: no such run or artifact.
        Unavailable: no load generator, or the artifact cannot run here.
        DataError: there are no images to send.
    """
    scenario = _scenario(asked)
    record = read_record(run)
    folder = run if run.is_dir() else run.parent
    cell = chosen_cell(record, asked.artifact)
    recipe = parse_recipe(record.recipe, source=f"the recipe in {folder / RECORD_NAME}")
    batch = _batch(cell, scenario)
    _check_here(cell, recipe)
    images_NCHW = images_of(record, folder, Store(cache_root(), warn=talk.warn), IMAGES, asked.data, talk)
    options = recipe.backends.get(cell.backend, {})
    logs = folder / "logs"
    name = f"load-{plain_name(cell.name)}-{scenario}"
    worker = Worker(
        cell.name,
        log_path=logs / f"{name}.txt",
        threads=recipe.measure.threads,
        memory_bytes=memory_limit(recipe, environment()),
    )
    with disk_errors(folder), worker:
        assert cell.artifact is not None, "chosen_cell gives no other"
        worker.load(
            cell.backend,
            create(cell.backend, options).options.model_dump(mode="json"),
            cell.artifact,
            folder / (cell.folder or ""),
            timeout_s=recipe.limits.load_s,
        )

        def offer(load: LoadOptions) -> LoadResult:
            said = f" at {units.rate(load.rate, 'queries')}" if load.rate else ""
            with talk.stage(f"load {cell.name}, {load.scenario}{said}"):
                return worker.offer_load(images_NCHW, load, logs / name, timeout_s=recipe.limits.run_s)

        highest, tests = _tests(asked, scenario, batch, offer)
        report = LoadReport(
            artifact=cell.name,
            sha256=cell.artifact.sha256,
            label=tests[-1].label,
            machine=environment().summary,
            threads=recipe.measure.threads,
            scenario=scenario,
            batch=batch,
            bound_s=asked.p99_ms / 1e3 if asked.p99_ms else None,
            highest_qps=highest,
            tests=tuple(tests),
        )
        write_atomic(folder / f"{name}.json", report.model_dump_json(indent=1) + "\n")
    print_load(report)
    stdout_console().print(f"Result: {folder / name}.json", markup=False, soft_wrap=True)
    return EXIT_OK if (highest is None and tests[-1].valid) or highest else EXIT_NOTHING_TO_SHIP


def _scenario(asked: LoadAsked) -> Scenario:
    """The scenario, once it is clear that the arguments fit it."""
    rated = asked.find_qps or asked.qps is not None
    name = asked.scenario or ("server" if rated else "single-stream")
    scenario = next((known for known in SCENARIOS if known == name), None)
    if scenario is None:
        raise RecipeError(f"there is no scenario '{name}'", remedy=f"use one of {', '.join(SCENARIOS)}")
    if scenario != "server" and (rated or asked.p99_ms is not None):
        raise RecipeError(f"--qps, --find-qps and --p99-ms do not go with --scenario {scenario}", remedy="use --scenario server")
    if scenario == "server" and asked.p99_ms is None:
        raise RecipeError("a server test needs the p99 latency that is allowed", remedy="add --p99-ms X, in milliseconds")
    if scenario == "server" and (asked.qps is None) != asked.find_qps:
        raise RecipeError("a server test needs one of --qps N and --find-qps", remedy="give a rate, or let it be found")
    return scenario


def _batch(cell: Cell, scenario: Scenario) -> int:
    """Images per run: one query is one image, but offline they may be gathered."""
    assert cell.artifact is not None, "chosen_cell gives no other"
    sizes = cell.artifact.batches
    if scenario == "offline":
        return OFFLINE_BATCH if sizes is None else max((size for size in sizes if size <= OFFLINE_BATCH), default=min(sizes))
    if sizes is not None and 1 not in sizes:
        built = ", ".join(map(str, sizes))
        raise RecipeError(
            f"{cell.name} is to answer one image at a time", found=f"it was built for batches of {built}", remedy="use --scenario offline"
        )
    return 1


def _check_here(cell: Cell, recipe: Recipe) -> None:
    if importlib.util.find_spec("mlperf_loadgen") is None:
        raise Unavailable("MLPerf's load generator is not installed", remedy="pip install 'deploycnn[mlperf]'")
    readiness = create(cell.backend, recipe.backends.get(cell.backend, {})).probe(cell.target)
    if readiness.state != "ready":
        raise Unavailable(f"{cell.name} cannot run here", found=readiness.reason, remedy=readiness.remedy or "use a machine that can")


def _tests(asked: LoadAsked, scenario: Scenario, batch: int, offer: Offer) -> tuple[float | None, list[LoadResult]]:
    """(highest rate, where it is looked for; the tests made)."""
    if scenario == "offline":
        return None, [offer(LoadOptions(scenario="offline", queries=OFFLINE_IMAGES, batch=batch))]
    if scenario == "single-stream":
        return None, [offer(LoadOptions(scenario="single-stream"))]
    assert asked.p99_ms is not None, "checked before"
    bound_s = asked.p99_ms / 1e3

    def at(rate: float) -> LoadResult:
        return offer(LoadOptions(scenario="server", rate=rate, bound_s=bound_s))

    if asked.qps is not None:
        return None, [at(asked.qps)]
    alone = offer(LoadOptions(scenario="single-stream"))
    if alone.p99_s is None or alone.p50_s is None:
        raise WorkerError("the load generator told no latencies", remedy="see the log beside the run")
    if alone.p99_s > bound_s:  # at any rate a query takes at least as long as alone
        return 0.0, [alone]
    highest, tests = find_rate(at, 0.5 / alone.p50_s)
    return highest, [alone, *tests]


def print_load(report: LoadReport) -> None:
    """The tests as a table of 80 columns, and what was found."""
    console = stdout_console()
    console.print(f"[bold]{report.artifact}[/], {report.scenario}, {report.label}", soft_wrap=True)
    console.print(f"{report.threads} thread(s), which the load generator shares; {report.machine}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("test", "asked", "answered", "queries", "p50", "p90", "p99", "valid"):
        table.add_column(heading, justify="left" if heading in ("test", "valid") else "right", no_wrap=True)
    for test in report.tests:
        times = [units.seconds(value_s) if value_s is not None else "–" for value_s in (test.p50_s, test.p90_s, test.p99_s)]
        asked = units.rate(test.rate, "") if test.rate else "–"
        answered = units.rate(test.images_per_s, "")
        table.add_row(test.scenario, asked.strip(), answered.strip(), f"{test.queries:,}", *times, "yes" if test.valid else "no")
    console.print(table)
    console.print(_found(report), markup=False)


def _found(report: LoadReport) -> str:
    bound = units.seconds(report.bound_s) if report.bound_s is not None else ""
    if report.highest_qps:
        rate = units.rate(report.highest_qps, "queries")
        return f"Highest rate found whose p99 stays under {bound}: {rate} (to {units.percent(PRECISION, 0)})."
    if report.highest_qps == 0:
        return f"At no rate tried did the p99 stay under {bound}."
    last = report.tests[-1]
    if report.scenario == "server":
        return f"The p99 {'stays' if last.valid else 'does not stay'} under {bound} at {units.rate(last.rate or 0, 'queries')}."
    return f"{units.rate(last.images_per_s, 'images')}."
