"""What an artifact costs before its first answer, and after how many images that is earned back."""

from __future__ import annotations

import math

from deploycnn import units
from deploycnn.record import Cell, Record
from deploycnn.types import Value


class Cost(Value):
    """Of one artifact at one batch size. Seconds."""

    cell: str
    build_s: float  # from variant to artifact, tuning included
    load_s: float
    first_run_s: float
    image_s: float  # median time of a run over its images

    @property
    def start_s(self) -> float:
        """Everything before the first answer."""
        return self.build_s + self.load_s + self.first_run_s

    def total_s(self, images: float) -> float:
        """Building, loading and answering so many images, one run after the other."""
        return self.start_s + images * self.image_s


def cost(cell: Cell, batch: int) -> Cost | None:
    """None where it was not built, loaded and measured."""
    latency = cell.latency(batch)
    if cell.artifact is None or cell.loading is None or latency is None:
        return None
    return Cost(
        cell=cell.name,
        build_s=cell.artifact.build_s,
        load_s=cell.loading.load_s,
        first_run_s=cell.loading.first_run_s,
        image_s=latency.p50_s.value / batch,
    )


def costs(record: Record, batch: int) -> list[Cost]:
    """Of every cell that has one, in the record's order."""
    return [found for cell in record.cells if (found := cost(cell, batch))]


def break_even_images(one: Cost, other: Cost) -> float:
    """Images from which on `one` has cost less in total than `other`: 0 at once, inf never."""
    more_s = one.start_s - other.start_s
    saved_s = other.image_s - one.image_s
    if saved_s <= 0:
        return 0.0 if more_s < 0 and saved_s == 0 else math.inf
    return max(0.0, more_s / saved_s)


def energy(cell: Cell) -> str:
    """Net energy of an image, with its batch size; "not available here" where nothing counted it."""
    if cell.energy is None:
        return "not available here"
    return f"{units.significant(1e3 * cell.energy.joules_per_image)} mJ (batch {cell.energy.batch}, {cell.energy.source})"
