"""Values of a stage in its cache folder: plain JSON files, with file names instead of paths."""

from __future__ import annotations

from pathlib import Path

from deploycnn.types import Artifact, Value, Variant

VARIANT = "variant.json"
ARTIFACT = "artifact.json"


def save(folder: Path, name: str, value: Value) -> None:
    """Writes a value as JSON."""
    (folder / name).write_text(value.model_dump_json(indent=1), encoding="utf-8")


def save_variant(folder: Path, variant: Variant, name: str = VARIANT) -> None:
    """Writes a variant whose files lie in `folder`; the folder can then be moved."""
    program = Path(variant.program_path.name) if variant.program_path else None
    save(folder, name, variant.model_copy(update={"onnx_path": Path(variant.onnx_path.name), "program_path": program}))


def read_variant(folder: Path, name: str = VARIANT) -> Variant:
    """The variant of `folder`, with whole paths."""
    variant = Variant.model_validate_json((folder / name).read_text(encoding="utf-8"))
    program = folder / variant.program_path if variant.program_path else None
    return variant.model_copy(update={"onnx_path": folder / variant.onnx_path, "program_path": program})


def read_artifact(folder: Path) -> Artifact:
    """The artifact of `folder`."""
    return Artifact.model_validate_json((folder / ARTIFACT).read_text(encoding="utf-8"))
