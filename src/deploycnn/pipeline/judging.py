"""Who judges for a precision that searches: the validation part, and a clock over artifacts made on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from deploycnn import stats
from deploycnn.errors import DeployError
from deploycnn.pipeline.context import Context, plain_name
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.precision import Jury
from deploycnn.record import Accuracy
from deploycnn.types import CompileRequest, Interval, Variant
from deploycnn.validate.accuracy import judge
from deploycnn.workers import Worker

if TYPE_CHECKING:
    from deploycnn.pipeline.preparing import Images

ROUNDS = 15  # of one block of each side; enough for an interval, and a second or two


def jury_for(context: Context, images: Images, graph: Variant, cells: list[PlannedCell], digest: str) -> Jury:
    """The jury for one variant.

    Args:
        graph: the fp32 variant that times are compared with.
        cells: that the variant is made for; the first one that runs here measures.
        digest: of the variant's key, which names the folder of what was judged already.
    """
    validation_N = images.splits.validation_N
    images_NCHW = np.ascontiguousarray(images.dataset.train.images_NCHW[validation_N])
    labels_N = images.dataset.train.labels_N[validation_N]

    def assess(logits_NK: np.ndarray, reference_NK: np.ndarray) -> Accuracy:
        return judge(logits_NK, reference_NK, labels_N, images.dataset.classes, context.recipe.validate_)

    here = next((planned for planned in cells if planned.runs_here), None)
    batch = context.recipe.measure.batches[0]
    return Jury(
        images_NCHW=images_NCHW,
        assess=assess,
        ratio=_ratio(context, here, graph, images_NCHW[:batch]) if here else _nothing,
        measured_on=f"{here.cell.backend}, batch {batch}" if here else "",
        folder=search_folder(context, digest),
    )


def search_folder(context: Context, digest: str) -> Path:
    """Where judgements are kept while a search goes on."""
    return context.store.shared(f"search/{digest[:16]}")


def forget(context: Context, digest: str) -> None:
    """Removes what a finished search kept."""
    shutil.rmtree(search_folder(context, digest), ignore_errors=True)


def _nothing(variant: Variant) -> Interval | None:
    return None


def _ratio(context: Context, planned: PlannedCell, graph: Variant, x_NCHW: np.ndarray) -> Callable[[Variant], Interval | None]:
    """Measures a variant against the graph on the backend of a cell; None where it does not compile or run there."""

    def measured(variant: Variant) -> Interval | None:
        try:
            return _measured_ratio(context, planned, graph, variant, x_NCHW)
        except DeployError as error:
            context.talk.warn(f"{planned.cell.name}: the speed of a candidate is not known: {error.one_line}")
            return None

    return measured


def _measured_ratio(context: Context, planned: PlannedCell, graph: Variant, variant: Variant, x_NCHW: np.ndarray) -> Interval:
    """Blocks of both in turn, each in a process of its own; the ratio is taken round by round."""
    limits, measure = context.recipe.limits, context.recipe.measure
    x_NCHW = x_NCHW[: graph.fixed_batch] if graph.fixed_batch else x_NCHW
    with ExitStack() as stack:
        sides = []
        for side, made_of in (("graph", graph), ("candidate", variant)):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="deploycnn-")))
            name = f"{planned.cell.name} {side}"
            log = context.log(plain_name(planned.cell.name), f"search-{side}")
            worker = stack.enter_context(Worker(name, log_path=log, threads=measure.threads, memory_bytes=context.memory_bytes))
            request = CompileRequest(
                variant=made_of,
                target=planned.target,
                batches=(len(x_NCHW),),
                threads=measure.threads,
                folder=folder,
                cache_folder=context.store.shared(f"backends/{planned.backend.name}"),
            )
            options = planned.backend.options.model_dump(mode="json")
            artifact = worker.compile(planned.backend.name, options, request, timeout_s=limits.compile_s)
            worker.load(planned.backend.name, options, artifact, folder, timeout_s=limits.load_s)
            worker.set_batch(x_NCHW, timeout_s=limits.run_s)
            worker.warm_up(timeout_s=limits.run_s)
            sides.append(worker)
        rounds = [[float(np.median(worker.block(measure.block_s, timeout_s=limits.run_s))) for worker in sides] for _ in range(ROUNDS)]
    log_R2 = np.log(rounds)
    return stats.paired_ratio_interval(log_R2[:, 1] - log_R2[:, 0], np.zeros(ROUNDS, int), confidence=measure.confidence)
