"""What each layer ran in, by the backend's own word: the precision map."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploycnn.record import Cell, Record
from deploycnn.report.remarks import cell_name, plain
from deploycnn.types import Evidence, LayerEvidence

_SHORT = (
    (r"u?int8|[uiq]?u?8|qint8|s8|i8", "int8"),
    (r"tfloat32|tf32", "tf32"),
    (r"bfloat16|bf16", "bf16"),
    (r"float16|fp16|f16|half", "fp16"),
    (r"float32|fp32|f32|float", "fp32"),
)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One convolution or matrix product."""

    text: str  # fp32, fp16, bf16, int8, or the backend's own word
    kind: str  # CSS class: p-fp32 ...
    op: str
    tip: str


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One artifact."""

    name: str
    state: str  # pass, fail, unproven
    reason: str
    layers: tuple[Layer, ...]
    simulated: bool


@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """Rows, and how many layers the longest one has."""

    rows: tuple[LayerRow, ...]
    most: int
    kinds: tuple[str, ...]  # precisions that occur


def layer_map(record: Record) -> LayerMap | None:
    """Artifacts that were built, with what their session or compiler says; None where nothing says anything."""
    rows = tuple(_row(cell) for cell in record.cells if cell.artifact is not None)
    if not any(row.layers for row in rows):
        return None
    kinds = dict.fromkeys(layer.text for row in rows for layer in row.layers)
    return LayerMap(rows=rows, most=max(len(row.layers) for row in rows), kinds=tuple(kinds))


def _row(cell: Cell) -> LayerRow:
    said = cell.ran or (cell.artifact.evidence if cell.artifact else None)
    return LayerRow(
        name=cell_name(cell),
        state=cell.evidence.state if cell.evidence else "unproven",
        reason=_reason(cell),
        layers=tuple(_layer(layer, said) for layer in said.layers) if said else (),
        simulated=bool(said and said.simulated),
    )


def _reason(cell: Cell) -> str:
    if cell.evidence is None:
        return "nothing was checked"
    if cell.outcome.state == "deferred" and cell.evidence.state == "unproven":
        return "it can only say so where it runs"
    return plain(cell.evidence.reason)


def _layer(layer: LayerEvidence, said: Evidence) -> Layer:
    text = short(layer.precision)
    return Layer(
        text=text,
        kind=f"p-{text}" if text in ("fp32", "tf32", "fp16", "bf16", "int8") else "p-other",
        op=layer.op,
        tip=f"{layer.name}\n{layer.op} in {layer.precision}\nsays {plain(said.source)} ({plain(said.provider)})",
    )


def short(precision: str) -> str:
    """The recipe's word for what a backend calls its numbers; the backend's own word where there is none."""
    for pattern, name in _SHORT:
        if re.fullmatch(pattern, precision.strip().lower()):
            return name
    return precision
