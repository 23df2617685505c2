"""`debug`: node by node, where an artifact leaves the fp32 reference.

Three computations of the same images are compared, tensor by tensor: the fp32 graph, the variant's file computed operator by
operator on ONNX Runtime, and the variant with its tensors as its output, compiled by the artifact's own backend. Where the second
leaves the first it is the precision's doing; where the third leaves the second it is the compiler's.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from deploycnn.backends import create
from deploycnn.disk import disk_errors, write_atomic
from deploycnn.environment import environment
from deploycnn.errors import EXIT_ENVIRONMENT, EXIT_OK, BackendError, DeployError, RecordError
from deploycnn.graph import Exposed, Runner, common_tensors, exposing, load_graph, parted, quantised_limits, save_graph
from deploycnn.pipeline.console import Talk, stdout_console
from deploycnn.pipeline.context import memory_limit, plain_name
from deploycnn.pipeline.debugged_files import chosen_cell, find_graph, images_of
from deploycnn.recipe import Recipe, parse_recipe
from deploycnn.record import Cell, Record
from deploycnn.recordfile import RECORD_NAME, read_record
from deploycnn.report.node_table import NodeRow, node_chart, node_table, sentence
from deploycnn.store import Store, cache_root
from deploycnn.types import CompileRequest, Variant
from deploycnn.validate.nodes import NodeFigures, difference, figures, tolerance_of
from deploycnn.workers import Worker

FOLDER = "debug"
COLUMNS = 80
MOST_BYTES = 256e6  # of one computation's tensors; fewer images are taken where they are larger
MOST_FLOATS = 2**28  # of one image: more than that nobody can lay side by side


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """What the command line says."""

    artifact: str
    images: int = 32
    tolerance: float | None = None  # relative error; None: by precision
    data: Path | None = None  # where the data set is


@dataclass(frozen=True, kw_only=True, eq=False)
class _Subject:
    """What is debugged, and on which images."""

    recipe: Recipe
    cell: Cell
    folder: Path  # of the run
    cache: Path  # what backends keep
    graph_path: Path
    variant_path: Path
    tensors: tuple[Exposed, ...]
    x_NCHW: np.ndarray
    batch: int


def debug_run(run: Path, options: DebugOptions, talk: Talk) -> int:
    """Prints the table, leaves it and a chart in the run's folder. Returns the exit code.

    Returns:
        0; 6 where the artifact cannot run here, so that only its file was compared.

    Raises:
        RecordError: no such run or artifact, or a file that is nowhere any more.
        DataError: the images are not here.
        StoreError: the disk said no.
    """
    record = read_record(run)
    folder = run if run.is_dir() else run.parent
    cell = chosen_cell(record, options.artifact)
    subject = _subject(record, cell, folder, options, talk)
    reference = _reference(subject)
    file, why_no_file = _file(subject)
    ran, why_not_ran = _ran(subject, talk)
    tolerance = options.tolerance or tolerance_of(cell.precision, subject.recipe.validate_.logit_tolerance)
    found = _figures(subject, reference, file, ran)
    rows = [_row(row, tolerance) for row in found]
    said = [
        *_wrapped([f"{cell.name} against the fp32 graph on {len(subject.x_NCHW)} images; tolerance {tolerance:g}"]),
        "",
        node_table(rows).rstrip("\n"),
        "",
        *_wrapped([sentence(rows, tolerance), *_explained(cell, why_no_file, why_not_ran), *_as_built(subject, reference, talk)]),
    ]
    stem = folder / FOLDER / plain_name(cell.name)
    with disk_errors(folder):
        write_atomic(stem.with_suffix(".txt"), "\n".join(said) + "\n")
        write_atomic(stem.with_suffix(".svg"), node_chart(rows, tolerance, f"Relative error of {cell.name}, node by node"))
    console = stdout_console()
    for line in said:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"Table and chart: {stem}.txt, {stem.name}.svg", markup=False, soft_wrap=True)
    return EXIT_ENVIRONMENT if cell.outcome.state == "deferred" else EXIT_OK


def _subject(record: Record, cell: Cell, folder: Path, options: DebugOptions, talk: Talk) -> _Subject:
    assert cell.artifact is not None, "chosen_cell gives no other"
    store = Store(cache_root(), warn=talk.warn)
    graph_path = find_graph(folder, store, record.model.graph_sha256, "the fp32 graph")
    variant_path = find_graph(folder, store, cell.artifact.parent_sha256, f"the {cell.precision} variant")
    tensors = common_tensors(load_graph(graph_path), load_graph(variant_path))
    floats = sum(exposed.size for exposed in tensors)
    if floats > MOST_FLOATS:
        raise RecordError(f"the graph has {floats:,} floats an image", remedy="debug it on smaller images")
    allowed = cell.artifact.batches
    most = max(1, int(MOST_BYTES / (4 * max(floats, 1))))
    x_NCHW = images_of(record, folder, store, min(options.images, most), options.data, talk)
    batch = min(len(x_NCHW), 8) if allowed is None else next((size for size in reversed(allowed) if size <= len(x_NCHW)), allowed[0])
    return _Subject(
        recipe=parse_recipe(record.recipe, source=f"the recipe in {folder / RECORD_NAME}"),
        cell=cell,
        folder=folder,
        cache=store.shared(f"backends/{cell.backend}"),
        graph_path=graph_path,
        variant_path=variant_path,
        tensors=tensors,
        x_NCHW=x_NCHW,
        batch=batch,
    )


# --- three computations -----------------------------------------------------------------------


def _reference(subject: _Subject) -> list[np.ndarray]:
    model = exposing(load_graph(subject.graph_path), subject.tensors, own_names=True)
    with Runner(model, "the fp32 graph with all its tensors", optimised=False) as runner:
        return parted(runner.logits(subject.x_NCHW, subject.batch), subject.tensors)


def _file(subject: _Subject) -> tuple[list[np.ndarray] | None, str]:
    """The variant's tensors operator by operator, or why there are none."""
    model = exposing(load_graph(subject.variant_path), subject.tensors)
    try:
        with Runner(model, "the variant with all its tensors", optimised=False, error=BackendError) as runner:
            return parted(runner.logits(subject.x_NCHW, subject.batch), subject.tensors), ""
    except BackendError as error:
        return None, error.one_line


def _ran(subject: _Subject, talk: Talk) -> tuple[list[np.ndarray] | None, str]:
    """The tensors as the artifact's backend computes them, or why it cannot show them."""
    cell = subject.cell
    if cell.outcome.state == "deferred":
        return None, f"it cannot run here: {cell.outcome.waits_for}"
    try:
        with TemporaryDirectory(prefix="deploycnn-") as where:
            exposed_NF = _compiled_and_run(subject, Path(where), talk)
    except DeployError as error:
        return None, error.one_line
    return parted(exposed_NF, subject.tensors), ""


def _compiled_and_run(subject: _Subject, where: Path, talk: Talk) -> np.ndarray:
    cell, artifact = subject.cell, subject.cell.artifact
    assert artifact is not None
    path = where / "exposing.onnx"
    model = exposing(load_graph(subject.variant_path), subject.tensors)
    fixed = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    variant = Variant(
        precision=cell.precision,
        int8_form=cell.int8_form,
        onnx_path=path,
        sha256=save_graph(model, path, BackendError),
        input=artifact.input,
        output_name=model.graph.output[0].name,
        classes=("",) * sum(exposed.size for exposed in subject.tensors),
        fixed_batch=fixed or None,
    )
    options = dict(artifact.options)
    if "tune" in options:  # a search for speed changes no numbers
        options["tune"] = False
    (where / "artifact").mkdir()
    request = CompileRequest(
        variant=variant,
        target=cell.target,
        batches=(subject.batch,),
        threads=subject.recipe.measure.threads,
        folder=where / "artifact",
        cache_folder=subject.cache,
    )
    limits = subject.recipe.limits
    with talk.stage(f"{cell.backend} compiles and runs the graph with its tensors") as progress, _worker(subject, "exposing") as worker:
        made = worker.compile(cell.backend, options, request, timeout_s=limits.compile_s, progress=progress)
        worker.load(cell.backend, options, made, where / "artifact", timeout_s=limits.load_s)
        return worker.predict(subject.x_NCHW, batch=subject.batch, timeout_s=limits.run_s)


def _worker(subject: _Subject, what: str) -> Worker:
    name = subject.cell.name
    log = subject.folder / FOLDER / f"{plain_name(name)}-{what}.log"
    memory_bytes = memory_limit(subject.recipe, environment())
    return Worker(name, log_path=log, threads=subject.recipe.measure.threads, memory_bytes=memory_bytes)


# --- what is said -----------------------------------------------------------------------------


def _figures(
    subject: _Subject, reference: list[np.ndarray], file: list[np.ndarray] | None, ran: list[np.ndarray] | None
) -> list[NodeFigures]:
    limits = quantised_limits(load_graph(subject.variant_path))
    return [
        figures(
            (exposed.node, exposed.op, exposed.tensor),
            reference[index],
            file[index] if file else None,
            ran[index] if ran else None,
            subject.cell.precision,
            limits.get(exposed.tensor),
            scaled=_scaled(subject.cell),
        )
        for index, exposed in enumerate(subject.tensors)
    ]


def _scaled(cell: Cell) -> bool:
    """Whether channels of the variant may be scaled against each other, which only int8-auto does."""
    return cell.precision == "int8-auto"


def _row(row: NodeFigures, tolerance: float) -> NodeRow:
    last = row.ran or row.file
    return NodeRow(
        node=row.node,
        op=row.op,
        cosine=last.cosine if last else None,
        file_error=row.file.relative_error if row.file else None,
        ran_error=row.ran.relative_error if row.ran else None,
        saturated=row.saturated,
        subnormal=row.subnormal,
        infinite=max(row.overflow, *(side.nonfinite for side in (row.file, row.ran) if side), 0.0),
        low=row.low,
        high=row.high,
        beyond=row.error > tolerance,
    )


def _wrapped(paragraphs: Sequence[str]) -> list[str]:
    """Lines of at most 80 characters; what follows the first of a paragraph hangs."""
    return [line for text in paragraphs for line in textwrap.wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)]


def _explained(cell: Cell, why_no_file: str, why_not_ran: str) -> list[str]:
    said = [
        "file: relative error of the variant's ONNX file, operator by operator; ran: of the file compiled by the backend with its tensors "
        "as outputs, which keeps it from fusing over them; sat, sub, inf: values beyond the int8 range, too small, not finite in its type."
    ]
    if _scaled(cell):
        said.append("int8-auto may scale channels against each other: the best factor of each channel was taken out before comparing.")
    if why_no_file:
        said.append(f"file: nothing here computes it: {why_no_file}")
    if why_not_ran:
        said.append(f"ran: {cell.name} shows no tensors of its own: {why_not_ran}")
    return said


def _as_built(subject: _Subject, reference: Sequence[np.ndarray], talk: Talk) -> list[str]:
    """The logits of the artifact as it was built, with nothing exposed and everything fused."""
    cell, limits = subject.cell, subject.recipe.limits
    if cell.outcome.state == "deferred" or cell.artifact is None:
        return []
    place = subject.folder / (cell.folder or "")
    try:
        backend = create(cell.backend, dict(cell.artifact.options))
        with talk.stage(f"{cell.name} as it was built"), _worker(subject, "as-built") as worker:
            options = backend.options.model_dump(mode="json")
            worker.load(cell.backend, options, cell.artifact, place, timeout_s=limits.load_s)
            logits_NK = worker.predict(subject.x_NCHW, batch=subject.batch, timeout_s=limits.run_s)
    except DeployError as error:
        return [f"as built: {error.one_line}"]
    if logits_NK.shape != reference[-1].shape:
        return [f"as built: logits of shape {logits_NK.shape}"]
    apart = difference(logits_NK, reference[-1])
    return [f"as built, everything fused: relative logit error {apart.relative_error:.1e}, cosine {apart.cosine:.5f}"]
