"""Latencies of every artifact that was validated here: measured together, or taken from the cache together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploycnn import units
from deploycnn.environment import GpuFacts
from deploycnn.errors import DeployError
from deploycnn.measure.control import ControlContender
from deploycnn.measure.doubts import machine_doubts
from deploycnn.measure.gpu_doubts import gpu_doubts
from deploycnn.measure.gpu_watch import GpuWatch, gpu_watch
from deploycnn.measure.schedule import Measurement, measure, twin_of
from deploycnn.measure.summary import summarise
from deploycnn.measure.watch import MachineFacts, MachineWatch
from deploycnn.pipeline.compiling import failed, tail_of
from deploycnn.pipeline.contenders import WorkerContender
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.preparing import HeldOut
from deploycnn.samples import SAMPLES_NAME, read_samples, write_samples
from deploycnn.store import Key
from deploycnn.types import Doubt, Interval, Value
from deploycnn.workers import pick_cores

FACTS = "measurement.json"


class MeasurementFacts(Value):
    """What is kept of a measurement beside its samples."""

    unsteady: tuple[str, ...]
    machine: MachineFacts
    rounds: Mapping[int, int]
    generations: int
    spent_s: float
    gpus: tuple[GpuFacts, ...] = ()  # where an artifact ran on one


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Cells with their latencies, and what was noticed on the way."""

    cells: list[PlannedCell]
    noise_floor: Mapping[str, Interval]
    doubts: tuple[Doubt, ...]
    note: str
    gpus: tuple[GpuFacts, ...] = ()


def measure_cells(context: Context, held_out: HeldOut, cells: list[PlannedCell], reference: str | None) -> Measured:
    """Measures every cell that was run and validated here; whoever fails on the way fails alone.

    Artifacts whose accuracy did not pass are measured too: what they would have gained belongs to the report.

    Args:
        reference: name of the cell that ratios refer to. None, or not among those that can be measured: there are no ratios.
    """
    contenders = [planned for planned in cells if planned.runs_here and planned.cell.accuracy is not None]
    if not contenders:
        return Measured(cells=cells, noise_floor={}, doubts=(), note="nothing could be measured")
    if reference not in {planned.cell.name for planned in contenders}:
        reference = None
    measurement_key = _key(context, held_out, contenders, reference)
    if context.remeasure:
        for facts in context.store.entries():
            if facts.digest == measurement_key.digest:
                context.store.remove(facts)
    errors: Mapping[str, DeployError] = {}
    entry = context.store.get(measurement_key)
    reused = entry is not None
    if entry is not None:
        for name in (SAMPLES_NAME, FACTS):
            shutil.copyfile(entry / name, context.folder / name)
        context.talk.say("measure: reused")
    else:
        errors = _measure(context, held_out, contenders, reference)
        if not errors:  # a failure may be gone the next time; only a whole measurement is kept
            context.store.build(measurement_key, lambda folder: _keep(context.folder, folder))
    return _with_latencies(context, cells, reference, errors, reused=reused)


def _key(context: Context, held_out: HeldOut, contenders: list[PlannedCell], reference: str | None) -> Key:
    artifacts = {planned.cell.name: planned.cell.artifact.sha256 for planned in contenders if planned.cell.artifact}
    return key(
        "measurement",
        code=("measure", "workers", "backends/_contract.py"),
        packages=sorted({package for planned in contenders for package in planned.backend.packages}),
        artifacts=artifacts,
        reference=reference,
        options={planned.backend.name: planned.backend.options.model_dump(mode="json") for planned in contenders},
        measure=context.recipe.measure.model_dump(mode="json"),
        images=held_out.sha256,
        machine=context.environment.id,
    )


def _keep(out: Path, folder: Path) -> None:
    for name in (SAMPLES_NAME, FACTS):
        shutil.copyfile(out / name, folder / name)


def _measure(context: Context, held_out: HeldOut, contenders: list[PlannedCell], reference: str | None) -> Mapping[str, DeployError]:
    """Measures, writes samples and facts into the run's folder, gives back who was dropped and why."""
    largest = max(context.recipe.measure.batches)
    x_NCHW = held_out.images_NCHW
    workers = [WorkerContender(context, planned, planned.cell.name, x_NCHW[:largest]) for planned in contenders]
    again = [planned for planned in contenders if planned.cell.name == reference]
    workers += [WorkerContender(context, planned, twin_of(planned.cell.name), x_NCHW[:largest]) for planned in again]
    options = context.recipe.measure
    control = ControlContender(options.batches, threads=options.threads, block_s=options.block_s, cores=pick_cores(options.threads))
    watch = MachineWatch()
    gpus = gpu_watch() if any(planned.target.device == "cuda" for planned in contenders) else GpuWatch(None)

    def look() -> None:
        watch.look()
        gpus.look()

    title = f"measure {len(contenders)} artifacts" + (f", {reference} twice" if reference else "")
    with context.talk.stage(title) as progress:
        measured = measure([*workers, control], options, reference=reference, progress=progress, between_rounds=look)
    _write(context, measured, watch.facts(), gpus.facts())
    for name, error in measured.dropped.items():
        context.talk.warn(f"{name}: {error.one_line}")
    context.talk.say(f"measure: {sum(measured.rounds.values())} rounds, {measured.generations} starts, {units.seconds(measured.spent_s)}")
    return measured.dropped


def _write(context: Context, measured: Measurement, machine: MachineFacts, gpus: tuple[GpuFacts, ...]) -> None:
    write_samples(context.folder / SAMPLES_NAME, measured.samples)
    facts = MeasurementFacts(
        unsteady=tuple(sorted(measured.unsteady)),
        machine=machine,
        rounds=measured.rounds,
        generations=measured.generations,
        spent_s=measured.spent_s,
        gpus=gpus,
    )
    (context.folder / FACTS).write_text(facts.model_dump_json(indent=1), encoding="utf-8")


def _with_latencies(
    context: Context, cells: list[PlannedCell], reference: str | None, errors: Mapping[str, DeployError], *, reused: bool
) -> Measured:
    facts = MeasurementFacts.model_validate_json((context.folder / FACTS).read_text(encoding="utf-8"))
    samples = read_samples(context.folder / SAMPLES_NAME)
    summary = summarise(samples, context.recipe.measure, reference=reference, unsteady=frozenset(facts.unsteady))
    done = []
    for planned in cells:
        name = planned.cell.name
        latencies = summary.latencies.get(name, ())
        if name in errors:
            outcome = failed("measure", errors[name], tail_of(context.log(name, "measure")))
            planned = planned.changed(outcome=outcome)
        if latencies and reused:
            planned = planned.changed(reused=(*planned.cell.reused, "measure"))
        done.append(planned.changed(latencies=latencies, device_latencies=summary.device_latencies.get(name, ())))
    note = "latencies were taken from the cache; --remeasure takes them again" if reused else ""
    return Measured(
        cells=done,
        noise_floor=summary.noise_floor,
        doubts=(
            *machine_doubts(context.environment.cpu, facts.machine, threads=context.recipe.measure.threads),
            *gpu_doubts(facts.gpus, facts.spent_s),
            *summary.doubts,
        ),
        note=note,
        gpus=facts.gpus,
    )
