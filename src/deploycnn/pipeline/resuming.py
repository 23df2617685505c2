"""`resume`: what a run deferred is finished on the machine that it waited for, and goes into the same record.

The reference is validated and measured here too, so that every ratio is within one machine; accuracy is held against the logits
that the run left. Nothing of the first machine's cache is needed, and nothing of the run is overwritten but its record and reports:
what is made here lies in `resumed/N/`, the record as it was before among it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from deploycnn import __version__, data
from deploycnn.backends import create
from deploycnn.disk import disk_errors, lock, make_folder
from deploycnn.environment import environment
from deploycnn.errors import EXIT_ENVIRONMENT, EXIT_NOTHING_TO_SHIP, EXIT_OK, DataError, RecipeError, RecordError
from deploycnn.pipeline.bundle import BUNDLE_NAME, Bundle, BundledCell, bundled_images, bundled_variants, faults, read_bundle
from deploycnn.pipeline.compiling import Form, compile_cells
from deploycnn.pipeline.console import Talk, stdout_console
from deploycnn.pipeline.context import Context, memory_limit
from deploycnn.pipeline.deciding import Decision, decide
from deploycnn.pipeline.measuring import Measured, measure_cells
from deploycnn.pipeline.merging import machine_key, merge, names_now, pending
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.preparing import HeldOut
from deploycnn.pipeline.reporting import show, write_reports
from deploycnn.pipeline.run import Stopwatch
from deploycnn.pipeline.validating import Validated, keep_flips_of, validate_cells
from deploycnn.recipe import Recipe, parse_recipe
from deploycnn.record import Cell, Record, Session
from deploycnn.recordfile import RECORD_NAME, read_record, write_record
from deploycnn.store import Store, cache_root
from deploycnn.types import Deferred, Variant

SESSIONS = Path("resumed")
EARLIER = "record-before.json"


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """What the command line says."""

    out: Path | None = None  # where the run is copied to first; None: it is resumed in its own folder
    data: Path | None = None  # where the data set is, for a bundle without images
    command: str = "deploycnn resume"


def resume_run(run: Path, options: ResumeOptions, talk: Talk) -> int:
    """Finishes what can be finished on this machine, prints the merged report. Returns the exit code.

    Returns:
        0; 1 where nothing of what was finished is fit to ship; 6 where this machine can finish none of it.

    Raises:
        RecordError: no run, no bundle, or files of it that are missing or damaged, all named.
        DataError: the bundle has no images, and `data` not the right ones.
        StoreError: another process works on the folder, or the disk said no.
    """
    out = _settled(run, options.out)
    with lock(out / ".lock", "resuming a run", wait_s=0):
        record, bundle = read_record(out), read_bundle(out)
        damage = faults(out, bundle)
        _check_whole(out, bundle, damage)
        if not pending(record, bundle):
            talk.say("nothing of this run waits for another machine")
            return EXIT_OK
        recipe = parse_recipe(record.recipe, source=f"the recipe in {out / RECORD_NAME}")
        context = _context(out, recipe, len(record.sessions) + 1, talk)
        talk.say(f"resume {out} on {context.environment.summary}")
        decisions = _decisions(context, record, bundle, damage)
        finishing = any(decision.planned.runs_here for decision in decisions)
        if finishing:
            with disk_errors(out):
                merged = _finish(context, options, record, bundle, decisions, damage)
        else:
            talk.warn("this machine can finish none of them")
            merged = merge(record, bundle, {decision.was: decision.planned.cell for decision in decisions}, None, context.environment)
        with disk_errors(out):
            write_record(out, merged)
            recommendation = write_reports(out, merged)
    show(merged, stdout_console())
    stdout_console().print(f"Record and reports: {out}", soft_wrap=True)
    if not finishing:
        return EXIT_ENVIRONMENT
    return EXIT_OK if recommendation.ship else EXIT_NOTHING_TO_SHIP


# --- the folder -----------------------------------------------------------------------------


def _settled(run: Path, out: Path | None) -> Path:
    """The folder to work in: the run's own, or `out` with a copy of it. A copy that was begun to be resumed is gone on with."""
    folder = run if run.is_dir() else run.parent
    read_bundle(folder)
    if out is None or out.resolve() == folder.resolve():
        return folder
    if (out / BUNDLE_NAME).is_file() and (out / BUNDLE_NAME).read_bytes() == (folder / BUNDLE_NAME).read_bytes():
        return out
    if out.exists() and any(out.iterdir()):
        raise RecipeError(f"the run is to be copied to {out}", found="other files are there", remedy="choose an empty folder, or none")
    half = out.with_name(f".{out.name}.half")
    with disk_errors(out):
        shutil.rmtree(half, ignore_errors=True)
        make_folder(out.parent)
        shutil.copytree(folder, half, ignore=shutil.ignore_patterns(".lock*"))
        if out.exists():
            out.rmdir()
        half.rename(out)
    return out


def _check_whole(out: Path, bundle: Bundle, damage: Mapping[str, str]) -> None:
    """Artifacts that are damaged are built again; without what they are built from, nothing can be done."""
    needed = {name: why for name, why in damage.items() if not _of_an_artifact(bundle, name)}
    if needed:
        found = "; ".join(f"{name}: {why}" for name, why in needed.items())
        raise RecordError(f"the bundle in {out} is damaged", found=found, remedy="copy the run's folder again, whole")


def _of_an_artifact(bundle: Bundle, name: str) -> bool:
    return any(name.startswith(f"{bundled.cell.folder}/") for bundled in (bundle.reference, *bundle.cells))


def _context(out: Path, recipe: Recipe, number: int, talk: Talk) -> Context:
    session = SESSIONS / str(number)
    with disk_errors(out):
        shutil.rmtree(out / session, ignore_errors=True)  # of an attempt that was stopped; what it finished is in the cache
    return Context(
        recipe=recipe,
        store=Store(cache_root(), warn=talk.warn),
        talk=talk,
        environment=environment(),
        out=out,
        session=session,
        memory_bytes=memory_limit(recipe, environment()),
    )


# --- what is to be done -----------------------------------------------------------------------


def _decisions(context: Context, record: Record, bundle: Bundle, damage: Mapping[str, str]) -> list[Decision]:
    """What becomes of every cell that waits, each said in a line."""
    waiting = pending(record, bundle)
    names = names_now(record, bundle)
    taken = {cell.name for cell in record.cells} - {names[bundled.cell.name] for bundled in waiting}
    taken |= {bundled.cell.name for bundled in waiting}
    decisions = []
    for bundled in waiting:
        decision = _decision(context, bundled, damage, taken)
        taken.add(decision.planned.cell.name)
        context.talk.say(decision.line)
        decisions.append(decision)
    return decisions


def _decision(context: Context, bundled: BundledCell, damage: Mapping[str, str], taken: set[str]) -> Decision:
    cell, recipe = bundled.cell, context.recipe
    backend = create(cell.backend, recipe.backends.get(cell.backend, {}))
    broken = "; ".join(f"{name}: {why}" for name, why in damage.items() if name.startswith(f"{cell.folder}/"))
    gpus = context.environment.gpus
    return decide(bundled, backend, gpus, batches=recipe.measure.batches, damage=broken, taken=taken)


def _held_out(context: Context, options: ResumeOptions, record: Record, bundle: Bundle) -> HeldOut:
    """The very images that the run was validated on, from the bundle or from the data set."""
    facts, classes = bundle.images, record.data.classes
    if facts.file is not None and options.data is None:
        return bundled_images(context.out, facts.file, facts.sha256, classes)
    root = options.data or context.recipe.data.root
    context.talk.say(f"test images: {record.data.name} under {root}" + ("" if options.data else "; --data DIR names another place"))
    wanted = context.recipe.data.model_copy(update={"name": record.data.name, "root": root, "fallback": None})
    with context.talk.stage(f"data {wanted.name}") as progress:
        dataset = data.load_dataset(wanted, context.store, progress, context.talk.warn)
    if dataset.test.sha256 != facts.sha256 or dataset.classes != classes:
        raise DataError(
            f"the run was validated on {facts.n_images:,} images of {record.data.name}, digest {facts.sha256[:12]}",
            found=f"{len(dataset.test):,} images from {dataset.source}, digest {dataset.test.sha256[:12]}",
            remedy="name the folder of the same data set with --data, or raise limits.bundle_mb and run again",
        )
    test = dataset.test
    return HeldOut(images_NCHW=test.images_NCHW, labels_N=test.labels_N, sha256=test.sha256, classes=classes)


# --- doing it ---------------------------------------------------------------------------------


def _finish(
    context: Context, options: ResumeOptions, record: Record, bundle: Bundle, decisions: list[Decision], damage: Mapping[str, str]
) -> Record:
    """Compiles what does not fit, validates and measures, and merges."""
    watch = Stopwatch()
    context.folder.mkdir(parents=True)
    held_out = _held_out(context, options, record, bundle)
    variants = bundled_variants(context.out, bundle)
    reference = _decision(context, bundle.reference, damage, set())
    chosen = [decision for decision in (reference, *decisions) if decision.planned.runs_here]
    with watch.stage("compile"):
        cells = [_built(context, variants, decision) for decision in chosen]
    with watch.stage("validate"):
        validated = _validated(context, held_out, variants, cells, np.load(context.out / bundle.logits, allow_pickle=False))
    with watch.stage("measure"):
        measured = measure_cells(context, held_out, validated.cells, reference.planned.cell.name)
    key = machine_key(record, context.environment)
    by_was = {decision.was: decision.planned.cell for decision in decisions}
    by_was |= {decision.was: _placed(planned, key) for decision, planned in zip(chosen, measured.cells, strict=True)}
    here = by_was.pop(reference.was, None)
    session = Session(
        machine=key,
        folder=context.session.as_posix(),
        deploycnn_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=options.command,
        finished={cell.name: was for was, cell in by_was.items() if cell.outcome.state != "deferred"},
        reference=here if here is not None and here.outcome.state == "done" else None,
        noise_floor=measured.noise_floor,
        stage_s=watch.stage_s,
        gpus=measured.gpus,
        doubts=measured.doubts,
        notes=tuple(_notes(decisions, reference, here, measured)),
    )
    shutil.copyfile(context.out / RECORD_NAME, context.folder / EARLIER)
    return merge(record, bundle, by_was, session, context.environment)


def _built(context: Context, variants: dict[Form, Variant], decision: Decision) -> PlannedCell:
    """The cell with an artifact that fits. What cannot be built here waits on."""
    if not decision.rebuild:
        return decision.planned
    (planned,) = compile_cells(context, variants, [decision.planned])
    outcome = planned.cell.outcome
    if outcome.state == "skipped":
        return planned.changed(outcome=Deferred(waits_for="; ".join(part for part in (outcome.reason, outcome.remedy) if part)))
    return planned


def _validated(
    context: Context, held_out: HeldOut, variants: dict[Form, Variant], cells: list[PlannedCell], reference_NK: np.ndarray
) -> Validated:
    """Like `validate_cells`; an artifact of the bundle that does not run here after all is built again, once."""
    validated = validate_cells(context, held_out, variants, cells, reference_NK)
    done, logits_NK = [], dict(validated.logits_NK)
    for before, after in zip(cells, validated.cells, strict=True):
        outcome = after.cell.outcome
        if outcome.state == "failed" and before.runs_here and Path(before.cell.folder or "").parts[:1] != context.session.parts[:1]:
            why = f"as it was it failed here: {outcome.reason}"
            context.talk.say(f"{before.cell.name}: built again: {why}")
            (again,) = compile_cells(context, variants, [before.changed(notes=(f"built again: {why}",))])
            second = validate_cells(context, held_out, variants, [again], reference_NK)
            (after,), logits_NK = second.cells, {**logits_NK, **second.logits_NK}
        done.append(after)
    validated = Validated(cells=done, logits_NK=logits_NK, reference_NK=reference_NK)
    keep_flips_of(context, held_out, validated)
    return validated


def _placed(planned: PlannedCell, key: str) -> Cell:
    """The cell as the record keeps it: with the machine that it was finished on."""
    cell = planned.cell
    return cell if cell.outcome.state == "deferred" else cell.model_copy(update={"machine": key})


def _notes(decisions: list[Decision], reference: Decision, here: Cell | None, measured: Measured) -> Iterator[str]:
    """What a reader of the report must know about this session."""
    by_reason: dict[str, list[str]] = {}
    for decision in decisions:
        if decision.rebuild:
            by_reason.setdefault(decision.rebuild, []).append(decision.was)
    yield from (f"built again: {', '.join(names)}: {why}" for why, names in by_reason.items())
    outcome = here.outcome if here else reference.planned.cell.outcome
    if outcome.state == "failed":
        yield f"no ratios: the reference failed here in {outcome.stage}: {outcome.reason}"
    if outcome.state == "deferred":
        yield f"no ratios: the reference cannot run here: {outcome.waits_for}"
    if here and here.accuracy and here.accuracy.verdict.state == "fail":
        yield f"the reference answers otherwise here than where the run began: {here.accuracy.verdict.reason}"
    if measured.note:
        yield measured.note
