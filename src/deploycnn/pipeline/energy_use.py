"""Energy per image of every artifact that was measured here, where the machine counts energy."""

from __future__ import annotations

from pathlib import Path

from deploycnn.errors import DeployError
from deploycnn.measure.energy import EnergyMeter
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.preparing import HeldOut
from deploycnn.record import Energy
from deploycnn.workers import Worker

ENERGY = "energy.json"
WORK_S = 2.0  # of runs at the largest batch size; idle is taken for as long, just before


def with_energy(context: Context, held_out: HeldOut, cells: list[PlannedCell]) -> tuple[list[PlannedCell], tuple[str, ...]]:
    """(cells with their energy, why others have none). Costs nothing where nothing counts energy."""
    meters: dict[str, EnergyMeter] = {}
    done, notes = [], {}
    for planned in cells:
        if planned.cell.latencies:
            device = planned.target.device
            meter = meters.setdefault(device, EnergyMeter(gpu=0 if device == "cuda" else None))
            if meter.reason:
                notes[device] = f"energy on {device}: {meter.reason}"
            else:
                planned = _counted(context, held_out, planned, meter)
        done.append(planned)
    return done, tuple(notes.values())


def _counted(context: Context, held_out: HeldOut, planned: PlannedCell, meter: EnergyMeter) -> PlannedCell:
    """Kept per artifact and machine. A failure costs the cell its energy and nothing else: it was validated and measured."""
    cell, recipe = planned.cell, context.recipe
    assert cell.artifact is not None, "it was measured"
    batch = max(latency.batch for latency in cell.latencies)
    energy_key = key(
        "energy",
        code=("measure/energy.py", "pipeline/energy_use.py", "measure/clock.py"),
        packages=planned.backend.packages,
        artifact=cell.artifact.sha256,
        options=planned.backend.options.model_dump(mode="json"),
        batch=batch,
        threads=recipe.measure.threads,
        images=held_out.sha256,
        machine=context.environment.id,
    )

    def make(folder: Path) -> None:
        with context.talk.stage(f"energy of {cell.name}"):
            energy = _energy(context, held_out, planned, meter, batch)
        (folder / ENERGY).write_text(energy.model_dump_json(), encoding="utf-8")

    try:
        built = context.store.build(energy_key, make)
    except DeployError as error:
        context.talk.warn(f"energy of {cell.name} is not known: {error.one_line}")
        return planned
    return planned.changed(energy=Energy.model_validate_json((built.path / ENERGY).read_text(encoding="utf-8")))


def _energy(context: Context, held_out: HeldOut, planned: PlannedCell, meter: EnergyMeter, batch: int) -> Energy:
    cell, recipe = planned.cell, context.recipe
    limits = recipe.limits
    assert cell.artifact is not None, "it was measured"
    log = context.log(cell.name, "energy")
    with Worker(cell.name, log_path=log, threads=recipe.measure.threads, memory_bytes=context.memory_bytes) as worker:
        options = planned.backend.options.model_dump(mode="json")
        worker.load(cell.backend, options, cell.artifact, context.out / (cell.folder or ""), timeout_s=limits.load_s)
        worker.set_batch(held_out.images_NCHW[:batch], timeout_s=limits.run_s)
        worker.warm_up(timeout_s=limits.run_s)
        energy = meter.measure(lambda: batch * int(worker.block(WORK_S, timeout_s=limits.run_s).size), batch=batch, idle_s=WORK_S)
    assert energy is not None, "the meter has a counter"
    return energy
