"""What a call alone costs: each backend's run of a graph of next to nothing, timed as artifacts are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deploycnn.backends import Backend
from deploycnn.errors import DeployError, Unsupported
from deploycnn.measure.dispatch import SHAPE_CHW, dispatch_variant
from deploycnn.pipeline.compiling import source_of
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.types import CompileRequest, Target, Value
from deploycnn.workers import Worker

DISPATCH = "dispatch.json"
BLOCKS = 10  # of measure.block_s each
WARM_UP_S = 0.5
PROGRAM_BACKENDS = ("torch", "inductor")  # take the PyTorch program, which costs an import of torch to write


class Dispatch(Value):
    """One backend on one target."""

    p50_s: Mapping[int, float]  # median of a run, by batch size; empty where the backend cannot hold such a graph
    reason: str = ""  # why it is empty


def dispatch_times(context: Context, measured: list[PlannedCell]) -> Mapping[str, Mapping[int, float]]:
    """Median seconds of a call, by backend and batch size. A backend whose call could not be timed is left out, with a warning."""
    found: dict[str, Mapping[int, float]] = {}
    for planned in measured:
        backend = planned.backend
        if backend.name in found:
            continue
        try:
            dispatch = _kept(context, backend, planned.target)
        except DeployError as error:
            context.talk.warn(f"what a call of {backend.name} costs is not known: {error.one_line}")
            dispatch = Dispatch(p50_s={})
        found[backend.name] = dispatch.p50_s
    return {name: times for name, times in found.items() if times}


def _kept(context: Context, backend: Backend, target: Target) -> Dispatch:
    """Timed once per backend, its version and options, machine, threads and batch sizes."""
    measure = context.recipe.measure
    dispatch_key = key(
        "dispatch",
        code=("measure/dispatch.py", "measure/clock.py", "pipeline/dispatching.py", "backends/_contract.py", source_of(backend.name)),
        packages=backend.packages,
        backend=backend.name,
        options=backend.options.model_dump(mode="json"),
        target=str(target),
        batches=measure.batches,
        threads=measure.threads,
        block_s=measure.block_s,
        machine=context.environment.id,
    )

    def make(folder: Path) -> None:
        with context.talk.stage(f"calls of {backend.name}"):
            try:
                dispatch = Dispatch(p50_s=_timed(context, backend, target, folder))
            except Unsupported as error:  # that will be so the next time too
                dispatch = Dispatch(p50_s={}, reason=error.one_line)
        (folder / DISPATCH).write_text(dispatch.model_dump_json(), encoding="utf-8")

    return Dispatch.model_validate_json((context.store.build(dispatch_key, make).path / DISPATCH).read_text(encoding="utf-8"))


def _timed(context: Context, backend: Backend, target: Target, folder: Path) -> dict[int, float]:
    """Compiled in one worker and run in another, as every artifact is: a compiler's leftovers do not slow the call."""
    recipe, options = context.recipe, backend.options.model_dump(mode="json")
    measure, limits = recipe.measure, recipe.limits
    sources, artifact_folder = folder / "graph", folder / "artifact"
    for made in (sources, artifact_folder):
        made.mkdir()
    request = CompileRequest(
        variant=dispatch_variant(sources, program=backend.name in PROGRAM_BACKENDS),
        target=target,
        batches=measure.batches,
        threads=measure.threads,
        folder=artifact_folder,
        cache_folder=context.store.shared(f"backends/{backend.name}"),
    )
    log = context.log(f"{backend.name}/dispatch", "measure")
    name = f"{backend.name}/dispatch/{target}"
    with Worker(name, log_path=log, threads=measure.threads, memory_bytes=context.memory_bytes) as worker:
        artifact = worker.compile(backend.name, options, request, timeout_s=limits.compile_s)
    times_s = {}
    with Worker(name, log_path=log, threads=measure.threads, memory_bytes=context.memory_bytes) as worker:
        worker.load(backend.name, options, artifact, artifact_folder, timeout_s=limits.load_s)
        for batch in measure.batches:
            if artifact.batches is not None and batch not in artifact.batches:
                continue
            worker.set_batch(np.zeros((batch, *SHAPE_CHW), dtype=np.uint8), timeout_s=limits.run_s)
            worker.warm_up(timeout_s=limits.run_s, limit_s=WARM_UP_S)
            blocks = [worker.block(measure.block_s, timeout_s=limits.run_s) for _ in range(BLOCKS)]
            times_s[batch] = float(np.median(np.concatenate(blocks))) / 1e9
    return times_s
