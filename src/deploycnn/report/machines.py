"""A record that several machines worked on, as one record for each of them: latencies of two machines are not compared."""

from __future__ import annotations

from deploycnn.record import Record, Session


def parts(record: Record) -> tuple[Record, ...]:
    """The run itself, then what each `resume` finished, with the reference as it was measured there.

    A record that was never resumed is its own only part.
    """
    if not record.sessions:
        return (record,)
    return (_of_the_run(record), *(_of(record, session) for session in record.sessions))


def machine(part: Record) -> str:
    """The machine that a part was measured on, in one line."""
    return next((environment.summary for environment in part.environments.values()), "a machine that is not known")


def _of_the_run(record: Record) -> Record:
    finished = {name for session in record.sessions for name in session.finished}
    first, *_ = record.environments.items()
    cells = tuple(cell for cell in record.cells if cell.name not in finished)
    return record.model_copy(update={"environments": dict([first]), "cells": cells, "sessions": ()})


def _of(record: Record, session: Session) -> Record:
    finished = tuple(cell for cell in record.cells if cell.name in session.finished)
    reference = session.reference
    return record.model_copy(
        update={
            "deploycnn_version": session.deploycnn_version,
            "created": session.created,
            "command": session.command,
            "environments": {session.machine: record.environments[session.machine]},
            "reference": reference.name if reference else None,
            "cells": (reference, *finished) if reference else finished,
            "noise_floor": session.noise_floor,
            "stage_s": session.stage_s,
            "gpus": session.gpus,
            "doubts": session.doubts,
            "notes": session.notes,
            "sessions": (),
        }
    )
