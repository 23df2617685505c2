"""`record.json`: writing it, reading it, and its JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deploycnn.disk import write_atomic
from deploycnn.errors import RecordError
from deploycnn.record import SCHEMA_VERSION, Record

RECORD_NAME = "record.json"


def record_path(run: Path) -> Path:
    """The record of a run: `run` is its folder, or the file itself."""
    return run / RECORD_NAME if run.is_dir() else run


def write_record(folder: Path, record: Record) -> Path:
    """Writes the record whole or leaves the old one. Gives back its path.

    Raises:
        StoreError: disk full, not writable.
    """
    path = folder / RECORD_NAME
    write_atomic(path, record.model_dump_json(indent=1) + "\n")
    return path


def read_record(run: Path) -> Record:
    """The record of a run.

    Args:
        run: folder of the run, or the record's file under whatever name.

    Raises:
        RecordError: there is none, it is damaged, or another version's; names the version or the field.
    """
    path = record_path(run)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        what = f"{run} holds no {RECORD_NAME}" if run.is_dir() else f"there is no run {run}"
        raise RecordError(what, remedy="give the folder of a finished run, or its record.json") from error
    except (OSError, UnicodeDecodeError) as error:
        found = str(getattr(error, "strerror", None) or "it is no text")
        raise RecordError(f"the record {path} cannot be read", found=found, remedy="give the folder of a finished run") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"the record {path} is damaged", found=f"not JSON: {error}", remedy="copy it again, or run again") from error
    _check_version(path, document)
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(
            f"the record {path} is damaged", found=f"{where or 'it'}: {first['msg']}", remedy="copy it again, or run again"
        ) from error


def _check_version(path: Path, document: Any) -> None:
    """Only this version is read; the first one is the current one, so there is nothing yet to convert."""
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise RecordError(f"{path} is not a record of deploycnn", found="it names no schema_version", remedy="give a run's record.json")
    if version == SCHEMA_VERSION:
        return
    remedy = (
        "read it with the newer deploycnn that wrote it, or upgrade this one"
        if version > SCHEMA_VERSION
        else "run the recipe again with this deploycnn"
    )
    raise RecordError(
        f"the record {path} has schema version {version}", found=f"this deploycnn reads version {SCHEMA_VERSION}", remedy=remedy
    )


def record_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `record.json`."""
    schema = Record.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
