"""What becomes of a cell that waited for another machine, now that this is the machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from deploycnn.backends import Backend
from deploycnn.environment import Gpu
from deploycnn.pipeline.bundle import BundledCell
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.types import Artifact, Deferred, Done, Readiness, Target


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A cell on its way, and the name that it had while it waited."""

    was: str
    planned: PlannedCell  # done: to be finished here; deferred: waits on, with the reason of this machine
    rebuild: str = ""  # why the artifact does not fit here and is built again, "" where it fits

    @property
    def line(self) -> str:
        """What is said about it."""
        outcome = self.planned.cell.outcome
        if outcome.state == "deferred":
            return f"{self.was} still waits: {outcome.waits_for}"
        renamed = f" as {self.planned.cell.name}" if self.planned.cell.name != self.was else ""
        return f"{self.was}{renamed}: " + (f"built again: {self.rebuild}" if self.rebuild else "its artifact fits")


def decide(
    bundled: BundledCell, backend: Backend, gpus: tuple[Gpu, ...], *, batches: Collection[int], damage: str, taken: Collection[str]
) -> Decision:
    """Whether the cell can be finished here, on which target, and whether its artifact can be used as it is.

    A capability that is not here becomes `cuda`, the GPU that is: the cell then says so by its name.

    Args:
        gpus: of this machine, for the wording.
        batches: that will be measured.
        damage: what is wrong with the artifact's files, "" where they are whole.
        taken: names of cells that the record has, or will have.
    """
    cell = bundled.cell
    target, readiness = _where(backend, cell.target, gpus)
    planned = PlannedCell(backend=backend, readiness=readiness, cell=cell)
    moved = cell.model_copy(update={"target": target})
    reason = _obstacle(backend, planned, moved.name if moved.name != cell.name else "", target, taken)
    if reason:
        return Decision(was=cell.name, planned=planned.changed(outcome=Deferred(waits_for=reason)))
    why = damage or _misfit(cell.artifact, target, readiness, backend, gpus, batches)
    planned = planned.changed(target=target, outcome=Done(), notes=(f"built again: {why}",) if why else cell.notes)
    return Decision(was=cell.name, planned=planned.changed(artifact=None, folder=None) if why else planned, rebuild=why)


def _where(backend: Backend, target: Target, gpus: tuple[Gpu, ...]) -> tuple[Target, Readiness]:
    """The target to run on, and whether that works: the one asked for, else the GPU that is here."""
    asked = backend.probe(target)
    if asked.state == "ready" or target.capability is None:
        return target, asked
    plain = Target(device=target.device)
    here = backend.probe(plain)
    if here.state == "ready":
        return plain, here
    if not gpus:
        return target, asked
    reasons = dict.fromkeys(reason for reason in (asked.reason, here.reason) if reason)
    return target, here.model_copy(update={"reason": "; ".join(reasons)})


def _obstacle(backend: Backend, planned: PlannedCell, new_name: str, target: Target, taken: Collection[str]) -> str:
    """Why the cell cannot be finished here, "" where it can."""
    cell, readiness = planned.cell, planned.readiness
    if readiness.state == "unavailable" and readiness.remedy:
        return f"{readiness.reason}; {readiness.remedy}"
    if readiness.state != "ready":
        return readiness.reason
    if new_name in taken:
        return f"no sm{cell.target.capability} GPU is here, and {new_name} is a cell of its own"
    if refusal := backend.refuses(cell.precision, target):
        return "; ".join(part for part in (refusal.reason, refusal.remedy) if part)
    if cell.int8_form is not None and (form := backend.int8_form(target)) != cell.int8_form:
        return f"{backend.name} needs the int8 form {form} here, and the bundle has {cell.int8_form}; run the recipe on this machine"
    return ""


def _misfit(
    artifact: Artifact | None, target: Target, readiness: Readiness, backend: Backend, gpus: tuple[Gpu, ...], batches: Collection[int]
) -> str:
    """Why the artifact does not fit this machine, "" where it does."""
    if artifact is None:
        return "nothing was built for it"
    if target != artifact.target:
        here = ", ".join(f"{gpu.name} (sm{gpu.capability})" for gpu in gpus) or "another GPU"
        return f"it was built for {artifact.target}, here is {here}"
    if readiness.version != artifact.backend_version:
        return f"it was built by {_version(backend, artifact.backend_version)}, here is {_version(backend, readiness.version)}"
    options = backend.options.model_dump(mode="json")
    if changed := sorted(name for name in {*options, *artifact.options} if options.get(name) != artifact.options.get(name)):
        return f"it was built with other options: {', '.join(changed)}"
    if artifact.batches is not None and not set(batches) & set(artifact.batches):
        return f"it runs none of the batch sizes {', '.join(map(str, sorted(batches)))}"
    return ""


def _version(backend: Backend, version: str) -> str:
    """`torch 2.14.1`; versions that carry a name already stay as they are."""
    return version if version[:1].isalpha() else f"{backend.name} {version or 'of an unknown version'}"
