"""One record out of a run's and what was finished of it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from deploycnn.environment import Environment
from deploycnn.pipeline.bundle import Bundle, BundledCell
from deploycnn.record import Cell, Record, Session


def names_now(record: Record, bundle: Bundle) -> dict[str, str]:
    """The name that each cell of the bundle has in the record: another one where it was finished on another GPU."""
    names = {bundled.cell.name: bundled.cell.name for bundled in bundle.cells}
    for session in record.sessions:
        names |= {was: name for name, was in session.finished.items()}
    return names


def pending(record: Record, bundle: Bundle) -> list[BundledCell]:
    """Cells of the bundle that wait, or that failed when they were to be finished."""
    states = {cell.name: cell.outcome.state for cell in record.cells}
    names = names_now(record, bundle)
    return [bundled for bundled in bundle.cells if states.get(names[bundled.cell.name]) in ("deferred", "failed")]


def machine_key(record: Record, machine: Environment) -> str:
    """Key of this machine in the record's environments; the same machine with other packages has a key of its own."""
    keys = [machine.id, *(f"{machine.id}-{number}" for number in range(2, len(record.environments) + 3))]
    return next(key for key in keys if record.environments.get(key, machine) == machine)


def merge(record: Record, bundle: Bundle, cells: Mapping[str, Cell], session: Session | None, machine: Environment) -> Record:
    """The record with `cells` in the places of those that waited.

    Args:
        cells: by the name that each had in the bundle. Of those that still wait only the reason is taken.
        session: what was measured; None: nothing.
    """
    names = names_now(record, bundle)
    by_name = {names[was]: cell for was, cell in cells.items()}
    merged = tuple(_merged(cell, by_name.get(cell.name)) for cell in record.cells)
    if session is None:
        return record.model_copy(update={"cells": merged})
    again = set(session.finished.values())
    earlier = (_without(old, again) for old in record.sessions)
    return record.model_copy(
        update={
            "cells": merged,
            "environments": {**record.environments, session.machine: machine},
            "sessions": (*earlier, session),
        }
    )


def _merged(cell: Cell, found: Cell | None) -> Cell:
    if found is None:
        return cell
    return cell.model_copy(update={"outcome": found.outcome}) if found.outcome.state == "deferred" else found


def _without(session: Session, again: set[str]) -> Session:
    """An earlier session that no longer holds what was done again."""
    return session.model_copy(update={"finished": {name: was for name, was in session.finished.items() if was not in again}})
