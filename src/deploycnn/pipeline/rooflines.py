"""Why each artifact is as fast as it is: its operations and bytes against the peaks that this machine was measured to reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deploycnn.errors import WorkerError
from deploycnn.graph import GraphFacts, graph_facts
from deploycnn.measure.roofline import cost, measure_peak, roofline
from deploycnn.pipeline.compiling import Form
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.dispatching import dispatch_times
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.record import Latency, Peak, RooflinePoint
from deploycnn.types import Variant
from deploycnn.workers import pick_cores

PEAK = "peak.json"


def with_rooflines(context: Context, variants: dict[Form, Variant], cells: list[PlannedCell]) -> tuple[list[PlannedCell], Peak | None]:
    """Cells that were measured on this CPU, placed under its roofline. Where the peaks cannot be measured, there is none."""
    measured = [planned for planned in cells if planned.cell.latencies and planned.target.device == "cpu"]
    if not measured:
        return cells, None
    try:
        peak = _peak(context)
    except WorkerError as error:
        context.talk.warn(error.one_line)
        return cells, None
    calls_s = dispatch_times(context, measured)
    forms = {(planned.cell.precision, planned.cell.int8_form) for planned in measured}
    facts = {form: graph_facts(variants[form].onnx_path) for form in forms}
    placed = {planned.cell.name for planned in measured}
    return [
        _placed(planned, peak, facts, calls_s.get(planned.backend.name, {})) if planned.cell.name in placed else planned
        for planned in cells
    ], peak


def _peak(context: Context) -> Peak:
    """Measured once per machine and number of threads."""
    threads = context.recipe.measure.threads
    code = ("measure/roofline.py", "measure/roofline_child.py")
    peak_key = key("peak", code=code, packages=("numpy",), threads=threads, machine=context.environment.id)

    def make(folder: Path) -> None:
        with context.talk.stage("peaks of this machine"):
            peak = measure_peak(threads, pick_cores(threads))
        (folder / PEAK).write_text(peak.model_dump_json(), encoding="utf-8")

    return Peak.model_validate_json((context.store.build(peak_key, make).path / PEAK).read_text(encoding="utf-8"))


def _placed(planned: PlannedCell, peak: Peak, facts: dict[Form, GraphFacts], calls_s: Mapping[int, float]) -> PlannedCell:
    of_graph = facts[planned.cell.precision, planned.cell.int8_form]
    points = (_point(latency, peak, of_graph, calls_s.get(latency.batch)) for latency in planned.cell.latencies)
    return planned.changed(rooflines=tuple(points))


def _point(latency: Latency, peak: Peak, facts: GraphFacts, dispatch_s: float | None) -> RooflinePoint:
    needed = cost(
        flops_per_image=facts.flops,
        weight_bytes=facts.weight_bytes,
        activation_bytes_per_image=facts.activation_bytes,
        batch=latency.batch,
    )
    found = roofline(peak, needed, latency.p50_s.value, dispatch_s=dispatch_s)
    return RooflinePoint(
        batch=latency.batch,
        flops=needed.flops,
        bytes=needed.bytes,
        floor_s=found.floor_s,
        share=found.share,
        bound=found.bound,
        sentence=found.sentence,
        dispatch_s=dispatch_s,
    )
