"""What artifacts cost before the first answer, and when that is earned back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Record
from deploycnn.report import numbers
from deploycnn.report.costs import Cost, break_even_images, costs
from deploycnn.report.html.values import Number
from deploycnn.report.remarks import cell_name
from deploycnn.report.rows import verdict


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One artifact."""

    name: str
    shipped: bool
    build: Number
    load: Number
    first_run: Number
    start_share: float  # of the longest start, logarithmic, for a bar
    break_even: tuple[Number, ...]  # against each baseline


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Quickest start first. Baselines: the reference, and the proved artifact that starts soonest."""

    baselines: tuple[str, ...]
    rows: tuple[CostRow, ...]


def cost_table(record: Record, batch: int | None, shipped: str | None) -> CostTable | None:
    """None where nothing was measured."""
    found = sorted(costs(record, batch), key=lambda one: one.start_s) if batch is not None else []
    if batch is None or not found:
        return None
    proved = {cell.name for cell in record.cells if verdict(record, cell) == "pass"}
    soonest = next((one for one in found if one.cell in proved), None)
    reference = next((one for one in found if one.cell == record.reference), None)
    baselines = list({one.cell: one for one in (reference, soonest) if one}.values())
    longest_s = found[-1].start_s
    return CostTable(
        baselines=tuple(_name(record, one) for one in baselines),
        rows=tuple(_row(record, one, baselines, batch, longest_s, shipped) for one in found),
    )


def _name(record: Record, one: Cost) -> str:
    cell = record.cell(one.cell)
    assert cell is not None, "costs come from the record's cells"
    return cell_name(cell)


def _row(record: Record, one: Cost, baselines: list[Cost], batch: int, longest_s: float, shipped: str | None) -> CostRow:
    cell = record.cell(one.cell)
    assert cell is not None, "costs come from the record's cells"
    floor_s = longest_s / 1e4
    return CostRow(
        name=cell_name(cell),
        shipped=one.cell == shipped,
        build=Number(text=units.seconds(one.build_s), tip=numbers.build_tip(cell), sort=one.build_s),
        load=Number(text=units.seconds(one.load_s), tip="one load in a fresh worker, its imports included; n = 1", sort=one.load_s),
        first_run=Number(text=units.seconds(one.first_run_s), tip="the first run after loading; n = 1", sort=one.first_run_s),
        start_share=max(0.01, math.log(max(one.start_s, floor_s) / floor_s) / math.log(longest_s / floor_s)),
        break_even=tuple(_break_even(one, baseline, batch) for baseline in baselines),
    )


def _break_even(one: Cost, baseline: Cost, batch: int) -> Number:
    if one.cell == baseline.cell:
        return Number(text="–", tip="set against itself", sort=-1.0)
    images = break_even_images(one, baseline)
    figures = (
        f"start {units.seconds(one.start_s)} against {units.seconds(baseline.start_s)}, then "
        f"{units.seconds(one.image_s)} against {units.seconds(baseline.image_s)} an image at batch {batch} (medians)"
    )
    if math.isinf(images):
        return Number(text="never", tip=f"it saves no time on an image\n{figures}")
    if images == 0:
        return Number(text="at once", tip=figures, sort=0.0)
    return Number(text=f"{_rounded(images)} images", tip=f"after {units.seconds(one.total_s(images))}\n{figures}", sort=images)


def _rounded(images: float) -> str:
    """Two digits: it stands on medians of one machine."""
    if images < 1e6:
        return units.significant(math.ceil(images), 2) if images >= 10 else f"{math.ceil(images)}"
    return f"{units.significant(images / 1e6, 2)} million"
