"""Which cells a run has: every backend at every precision on every target, and why some are skipped before any work."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from pydantic import ValidationError

from deploycnn.backends import Backend, backend_class
from deploycnn.errors import RecipeError
from deploycnn.pipeline.training import check_framework
from deploycnn.precision import precision_class
from deploycnn.recipe import Recipe
from deploycnn.record import Cell
from deploycnn.types import Deferred, Done, Int8Form, Outcome, Readiness, Skipped, Target

REFERENCE_PRECISION = "fp32"


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell on its way through the stages. Stages return changed copies."""

    backend: Backend
    readiness: Readiness
    cell: Cell

    @property
    def target(self) -> Target:
        return self.cell.target

    @property
    def alive(self) -> bool:
        """Whether it still goes on: neither skipped nor failed."""
        return self.cell.outcome.state in ("done", "deferred")

    @property
    def runs_here(self) -> bool:
        return self.cell.outcome.state == "done"

    def changed(self, **updates: object) -> PlannedCell:
        """A copy whose cell has other values."""
        return replace(self, cell=self.cell.model_copy(update=updates))


def make_backends(recipe: Recipe) -> dict[str, Backend]:
    """The recipe's backends with their options. Raises RecipeError for an unknown one or a wrong option."""
    backends: dict[str, Backend] = {}
    for name, values in recipe.backends.items():
        kind = backend_class(name)
        try:
            backends[name] = kind(kind.Options.model_validate(values))
        except ValidationError as error:
            first = error.errors()[0]
            option = ".".join(str(part) for part in first["loc"])
            known = ", ".join(kind.Options.model_fields) or "none"
            raise RecipeError(
                f"backends.{name}.{option} is not an option that {name} takes so",
                found=f"{first['input']!r}: {first['msg']}",
                remedy=f"options of {name}: {known}",
            ) from error
    return backends


def check_recipe(recipe: Recipe) -> None:
    """Everything that a recipe names is there. Raises RecipeError before any work is done."""
    asked = [recipe.precisions, *(backend.options.precisions or () for backend in make_backends(recipe).values())]
    for precision in itertools.chain.from_iterable(asked):
        precision_class(precision)
    check_framework(recipe)


def plan(recipe: Recipe, *, has_program: bool) -> list[PlannedCell]:
    """Every cell of the run, the reference first.

    Args:
        has_program: whether the model came from PyTorch, so that PyTorch itself is the reference.
    """
    backends = make_backends(recipe)
    reference = "torch" if has_program else "onnxruntime"
    cpu = Target(device="cpu")
    cells = [_reference_cell(backends.get(reference) or backend_class(reference)(), cpu)]
    for name, backend in backends.items():
        for target in recipe.targets:
            readiness = backend.probe(target)
            for precision in backend.options.precisions or recipe.precisions:
                if (name, precision, target) == (reference, REFERENCE_PRECISION, cpu):
                    continue
                cells.append(_planned(backend, precision, target, readiness))
    return cells


def _reference_cell(backend: Backend, target: Target) -> PlannedCell:
    return _planned(backend, REFERENCE_PRECISION, target, backend.probe(target))


def _planned(backend: Backend, precision: str, target: Target, readiness: Readiness) -> PlannedCell:
    form = backend.int8_form(target) if precision_class(precision).quantised else None
    cell = Cell(
        backend=backend.name,
        precision=precision,
        target=target,
        int8_form=form,
        outcome=_first_outcome(backend, precision, target, readiness),
    )
    return PlannedCell(backend=backend, readiness=readiness, cell=cell)


def _first_outcome(backend: Backend, precision: str, target: Target, readiness: Readiness) -> Outcome:
    if readiness.state == "unavailable":
        return Skipped(reason=readiness.reason, remedy=readiness.remedy)
    refusal = backend.refuses(precision, target)
    if refusal:
        return refusal
    if readiness.state == "build-only":
        return Deferred(waits_for=readiness.reason)
    return Done()


def forms_needed(cells: list[PlannedCell]) -> list[tuple[str, Int8Form | None]]:
    """The variants that these cells are compiled from, without repeats, in order."""
    return list(dict.fromkeys((planned.cell.precision, planned.cell.int8_form) for planned in cells if planned.alive))
