"""Cells that did not get to the end, and what to do about each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploycnn.record import Record
from deploycnn.report import remarks, rows
from deploycnn.report.remarks import Remark, cell_name


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Artifacts that wait for one kind of machine."""

    target: str
    why: str
    command: str
    artifacts: tuple[rows.DeferredRow, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failed cell, with the last lines that its worker wrote."""

    name: str
    stage: str
    reason: str
    remedy: str
    log_tail: str


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """See the module."""

    waiting: tuple[Waiting, ...]
    failures: tuple[Failure, ...]
    not_passed: tuple[Remark, ...]  # ran, but were not proved or lost too much
    skipped: tuple[Remark, ...]


def outcomes(record: Record, folder: Path | None) -> Outcomes:
    """By kind, reasons that are shared said once."""
    deferred = rows.deferred_rows(record)
    where = folder.as_posix() if folder else "RUN"
    failures = [
        Failure(
            name=cell_name(cell),
            stage=cell.outcome.stage,
            reason=remarks.plain(cell.outcome.reason),
            remedy=cell.outcome.remedy,
            log_tail=cell.outcome.log_tail,
        )
        for cell in record.cells
        if cell.outcome.state == "failed"
    ]
    ran = record.model_copy(update={"cells": tuple(cell for cell in record.cells if cell.outcome.state == "done")})
    return Outcomes(
        waiting=tuple(
            Waiting(
                target=remark.who,
                why=remark.why,
                command=f"deploycnn resume {where}",
                artifacts=tuple(row for row in deferred if row.target == remark.who),
            )
            for remark in remarks.waiting(record)
        ),
        failures=tuple(failures),
        not_passed=tuple(remarks.not_passed(ran)),
        skipped=tuple(remarks.skipped(record)),
    )
