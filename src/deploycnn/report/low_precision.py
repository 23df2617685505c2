"""Low precision, explained: which layer was left in what, what calibrated it, how much that matters, why it is slow where it is."""

from __future__ import annotations

from deploycnn import units
from deploycnn.record import CalibrationSpread, Cell, Latency, Record, VariantFacts
from deploycnn.report.layer_words import kinds_found
from deploycnn.report.remarks import Remark, cell_name
from deploycnn.types import Value

SMALL_SHARE = 0.25  # of the time: below it arithmetic is not what a run spends its time on
# Any of these instruction sets: products of that precision need no detour on a CPU.
ARITHMETIC = {
    "int8": ("avx_vnni", "avx512_vnni", "amx_int8", "neon", "dotprod", "i8mm"),
    "fp16": ("avx512_fp16", "fp16"),
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
}
WITHOUT = {
    "int8": "no VNNI: this CPU adds 8-bit products in several instructions, where float takes one",
    "fp16": "this CPU has no fp16 arithmetic: every value is converted to float32 and back",
    "bf16": "this CPU has no bf16 arithmetic: every value is converted to float32 and back",
}


# --- layers that int8-auto chose -------------------------------------------------------------


class ChoiceRow(Value):
    """One layer."""

    node: str
    op: str
    share: str  # of the multiply-adds
    alone: str  # relative logit error with this layer alone in int8
    precision: str


class ChoiceTable(Value):
    """One variant whose precision was chosen layer by layer."""

    title: str
    summary: str
    rows: tuple[ChoiceRow, ...]  # most sensitive first; empty where plain int8 was good enough
    steps: tuple[str, ...]  # what each step of the search brought


def choices(record: Record) -> list[ChoiceTable]:
    """A table for each int8-auto variant."""
    return [_choice(variant) for variant in record.variants if variant.precision == "int8-auto"]


def _choice(variant: VariantFacts) -> ChoiceTable:
    in_float = [layer for layer in variant.layers if layer.precision != "int8"]
    in_int8 = sum(layer.macs_share for layer in variant.layers if layer.precision == "int8")
    summary = "every layer is int8: plain int8 kept the limits"
    if variant.layers:
        summary = f"{len(in_float)} of {len(variant.layers)} layers in float, {units.percent(in_int8, 1)} of the multiply-adds in int8"
    return ChoiceTable(
        title=_form(variant.precision, variant.int8_form),
        summary=summary,
        rows=tuple(
            ChoiceRow(
                node=layer.node,
                op=layer.op,
                share=units.percent(layer.macs_share, 1),
                alone=units.significant(layer.alone, 2),
                precision={"float32": "fp32"}.get(layer.precision, layer.precision),
            )
            for layer in variant.layers
        ),
        steps=variant.notes,
    )


def _form(precision: str, form: object) -> str:
    return f"{precision} ({form})" if form else precision


# --- calibration images ----------------------------------------------------------------------


def audit(record: Record) -> list[tuple[str, str]]:
    """(what, text) about the images that int8 ranges were taken from; empty where nothing was calibrated."""
    facts = record.data.calibration
    if facts is None or not any(variant.precision.startswith("int8") for variant in record.variants):
        return []
    counts = list(facts.per_class.values())
    balance = f"{min(counts)} to {max(counts)} a class" if counts else "no classes"
    missing = f"; none of {', '.join(facts.missing)}" if facts.missing else ""
    return [
        ("images", f"{facts.n_images:,}, taken out of the training images by seed"),
        ("class balance", balance + missing),
        ("by class", ", ".join(f"{name} {count}" for name, count in facts.per_class.items())),
        ("digest", f"SHA-256 {facts.sha256} over the pixels"),
        ("disjoint", "compared by their pixels: no image of them trains, validates or tests"),
    ]


class SpreadRow(Value):
    """One int8 variant made again from other draws of calibration images."""

    variant: str
    lowest: str
    highest: str
    spread: str
    reference: str
    draws: str  # top-1 of each, in the order of their seeds
    about: str


def spreads(record: Record) -> list[SpreadRow]:
    """A row for each variant that was made again."""
    return [_spread(found) for found in record.calibration_spreads]


def _spread(found: CalibrationSpread) -> SpreadRow:
    lowest, highest = min(found.top1), max(found.top1)
    return SpreadRow(
        variant=_form(found.precision, found.int8_form),
        lowest=units.percent(lowest),
        highest=units.percent(highest),
        spread=units.points(highest - lowest).removeprefix("+"),
        reference=units.percent(found.reference_top1),
        draws=", ".join(units.percent(top1) for top1 in found.top1),
        about=f"{len(found.top1)} draws of {found.n_calibration:,} images, {found.n_images:,} validation images",
    )


def spread_line(row: SpreadRow) -> str:
    """A spread in one sentence."""
    return f"{row.variant}: top-1 {row.lowest} to {row.highest} ({row.spread}) over {row.about}; fp32 {row.reference} on them"


# --- asked for, found ------------------------------------------------------------------------


class EvidenceRow(Value):
    """One built artifact: what its layers were asked to run in, and what they ran in."""

    who: str
    asked: str
    found: str
    state: str
    source: str


def evidence_rows(record: Record) -> list[EvidenceRow]:
    """A row per artifact, in the record's order."""
    rows = []
    for cell in record.cells:
        if cell.artifact is None:
            continue
        said = cell.ran or cell.artifact.evidence
        rows.append(
            EvidenceRow(
                who=f"{cell_name(cell)}",
                asked=asked(record, cell),
                found=", ".join(f"{count} {kind}" for kind, count in kinds_found(said).items()) or "not said",
                state=cell.evidence.state if cell.evidence else "unproven",
                source=f"{said.source}, {said.provider}" if said else "",
            )
        )
    return rows


def asked(record: Record, cell: Cell) -> str:
    """The precision that a cell's layers were asked to run in: `int8`, or `3 fp32, 7 int8` where each layer has its own."""
    for variant in record.variants:
        if (variant.precision, variant.int8_form) == (cell.precision, cell.int8_form) and variant.layers:
            in_int8 = sum(layer.precision == "int8" for layer in variant.layers)
            in_float = len(variant.layers) - in_int8
            return f"{in_float} fp32, {in_int8} int8" if in_float else "int8"
    return cell.precision.split("-")[0]


# --- slower than fp32 ------------------------------------------------------------------------


def slower(record: Record) -> list[Remark]:
    """Low precision that is slower than fp32 of the same backend and target, at each batch size, with the reason the machine gives."""
    found = []
    for cell in record.cells:
        full = record.cell(f"{cell.backend}/fp32/{cell.target}")
        if cell.precision == "fp32" or full is None:
            continue
        for latency in cell.latencies:
            other = full.latency(latency.batch)
            if other is not None and latency.streams == 1 and _is_slower(latency, other):
                times = units.ratio(latency.p50_s.value / other.p50_s.value)
                text = f"takes {times} the time of fp32: {'; '.join(_reasons(record, cell, latency))}"
                found.append(Remark(who=f"{cell_name(cell)} batch {latency.batch}", why=text))
    return found


def _is_slower(mine: Latency, full: Latency) -> bool:
    """Beyond both intervals: of the ratios to the reference, which are paired by round, where both have one."""
    if mine.ratio and full.ratio:
        return mine.ratio.low > full.ratio.high
    return mine.p50_s.low > full.p50_s.high


def _reasons(record: Record, cell: Cell, latency: Latency) -> list[str]:
    reasons = []
    wanted = "int8" if cell.precision.startswith("int8") else cell.precision
    said = cell.ran or (cell.artifact.evidence if cell.artifact else None)
    found = kinds_found(said)
    if said and said.simulated:
        reasons.append(f"{wanted} is simulated in float arithmetic")
    elif found and wanted not in found:
        reasons.append(f"no native {wanted} kernels: the layers ran in {' and '.join(found)}, with conversions around them")
    machine = record.environments.get(cell.machine or "")
    sets = machine.cpu.instruction_sets if machine else ()
    if wanted in ARITHMETIC and cell.target.device == "cpu" and sets and not set(ARITHMETIC[wanted]) & set(sets):
        reasons.append(WITHOUT[wanted])
    point = next((point for point in cell.rooflines if point.batch == latency.batch), None)
    if point is not None and point.bound == "launch":
        reasons.append("dispatch-bound: the calls take the time, not the arithmetic")
    elif point is not None and point.share < SMALL_SHARE and not reasons:
        reasons.append(
            f"too small: at this machine's peaks the work takes {units.seconds(point.floor_s)} of {units.seconds(latency.p50_s.value)}, "
            "so there is little that lower precision can shorten, and rounding between the layers is added"
        )
    return reasons or ["the machine gives no reason; its kernels for these layers are slower than the float ones"]
