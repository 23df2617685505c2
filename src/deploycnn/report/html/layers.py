"""What each layer ran in, by the backend's own word: the precision map."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn.record import Cell, Record
from deploycnn.report.layer_words import short
from deploycnn.report.low_precision import asked
from deploycnn.report.remarks import cell_name, plain
from deploycnn.types import Evidence, LayerEvidence


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
    asked: str
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
    rows = tuple(_row(record, cell) for cell in record.cells if cell.artifact is not None)
    if not any(row.layers for row in rows):
        return None
    kinds = dict.fromkeys(layer.text for row in rows for layer in row.layers)
    return LayerMap(rows=rows, most=max(len(row.layers) for row in rows), kinds=tuple(kinds))


def _row(record: Record, cell: Cell) -> LayerRow:
    said = cell.ran or (cell.artifact.evidence if cell.artifact else None)
    return LayerRow(
        name=cell_name(cell),
        asked=(wanted := asked(record, cell)),
        state=cell.evidence.state if cell.evidence else "unproven",
        reason=_reason(cell),
        layers=tuple(_layer(layer, said, wanted) for layer in said.layers) if said else (),
        simulated=bool(said and said.simulated),
    )


def _reason(cell: Cell) -> str:
    if cell.evidence is None:
        return "nothing was checked"
    if cell.outcome.state == "deferred" and cell.evidence.state == "unproven":
        return "it can only say so where it runs"
    return plain(cell.evidence.reason)


def _layer(layer: LayerEvidence, said: Evidence, wanted: str) -> Layer:
    text = short(layer.precision)
    return Layer(
        text=text,
        kind=f"p-{text}" if text in ("fp32", "tf32", "fp16", "bf16", "int8") else "p-other",
        op=layer.op,
        tip=f"{layer.name}\nasked for {wanted}, {layer.op} in {layer.precision}\nsays {plain(said.source)} ({plain(said.provider)})",
    )
