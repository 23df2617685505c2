"""The top of the page: what to ship, its figures, and what every other artifact lost on."""

from __future__ import annotations

from dataclasses import dataclass

from deploycnn import units
from deploycnn.record import Cell, Record
from deploycnn.report import numbers, remarks
from deploycnn.report.html.values import Number
from deploycnn.report.recommend import Candidate, Recommendation, figure_text
from deploycnn.types import Interval


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure of what is shipped."""

    label: str
    number: Number
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One artifact that is not shipped."""

    name: str
    figure: str
    why: str
    share: float  # of the widest bar, 0 where it has no place in the ranking
    eligible: bool


@dataclass(frozen=True, kw_only=True)
class VerdictView:
    """See the module."""

    ship: str  # "" where nothing is
    file: str
    because: str
    objective: str
    limits: tuple[str, ...]
    caveats: tuple[str, ...]
    banners: tuple[str, ...]
    tiles: tuple[Tile, ...]
    rivals: tuple[Rival, ...]
    unbuilt: int  # artifacts that were skipped or wait, listed further down


def verdict_view(record: Record, recommendation: Recommendation, judged: int | None) -> VerdictView:
    """What stands at the top."""
    cell = record.cell(recommendation.ship) if recommendation.ship else None
    at = f" at batch {recommendation.batch}" if recommendation.batch is not None else ""
    return VerdictView(
        ship=remarks.cell_name(cell) if cell else "",
        file=cell.folder or "" if cell else "",
        because=recommendation.because,
        objective=recommendation.objective + at,
        limits=recommendation.limits,
        caveats=recommendation.caveats,
        banners=tuple(_banners(record)),
        tiles=tuple(_tiles(record, cell, judged)) if cell else (),
        rivals=tuple(_rivals(record, recommendation)),
        unbuilt=sum(cell.outcome.state in ("skipped", "deferred") for cell in record.cells),
    )


def _banners(record: Record) -> list[str]:
    """What a reader must know before any figure."""
    data = record.data
    found = []
    if data.name != data.asked:
        found.append(
            f"These are figures of {data.name}, not of {data.asked}: {data.asked} was not to be had, and the recipe allows this one."
        )
    if data.official is False:
        found.append(f"The files of {data.name} are not the ones that its publisher gives out.")
    found += [f"{doubt.what[:1].upper()}{doubt.what[1:]}: {doubt.remedy}." for doubt in record.doubts]
    return found


def _tiles(record: Record, cell: Cell, judged: int | None) -> list[Tile]:
    tiles = []
    latency = cell.latency(judged) if judged is not None else None
    if latency is not None:
        p50, p99 = latency.p50_s, latency.p99_s
        tiles.append(_tile("median latency", units.seconds(p50.value), numbers.median_tip(cell, latency), _range(p50)))
        tail = units.seconds(p99.value) if p99 else "not known"
        note = _range(p99) if p99 else f"{latency.n_samples:,} runs are too few"
        tiles.append(_tile("p99 latency", tail, numbers.percentile_tip(latency, "p99", p99), note))
        rate = latency.images_per_s
        tiles.append(_tile("images/s", units.significant(rate.value), numbers.rate_tip(latency), f"batch {latency.batch}"))
        if latency.ratio is not None:
            faster = latency.ratio.value < 1
            factor = 1 / latency.ratio.value if faster else latency.ratio.value
            label = "times faster" if faster else "times slower"
            tiles.append(_tile(label, units.significant(factor), numbers.ratio_tip(latency, record.reference), f"than {record.reference}"))
    if cell.accuracy is not None:
        accuracy = cell.accuracy
        change = f"{units.points(-accuracy.drop.value)} against fp32"
        tiles.append(_tile("top-1", units.percent(accuracy.top1.value), numbers.change_tip(accuracy), change))
    if cell.artifact is not None:
        build = f"built in {units.seconds(cell.artifact.build_s)}"
        tiles.append(_tile("on disk", units.size(cell.artifact.size_bytes), numbers.size_tip(cell), build))
    return tiles


def _tile(label: str, text: str, tip: str, note: str) -> Tile:
    return Tile(label=label, number=Number(text=text, tip=tip), note=note)


def _range(interval: Interval) -> str:
    return f"{units.seconds(interval.low)} to {units.seconds(interval.high)}"


def _rivals(record: Record, recommendation: Recommendation) -> list[Rival]:
    """Ranked ones first; skipped and deferred cells have a section of their own."""
    elsewhere = {cell.name for cell in record.cells if cell.outcome.state in ("skipped", "deferred")}
    listed = [one for one in recommendation.candidates if one.cell not in elsewhere]
    widest = max((one.figure or 0.0 for one in listed), default=0.0)
    groups: dict[str, list[Candidate]] = {}
    for one in listed:
        if one.cell != recommendation.ship:
            key = one.cell if one.low is not None else one.lost_on  # whoever is out for the same reason is out together
            groups.setdefault(key, []).append(one)
    return [_rival(record, group, recommendation, widest) for group in groups.values()]


def _rival(record: Record, group: list[Candidate], recommendation: Recommendation, widest: float) -> Rival:
    cells = [cell for one in group if (cell := record.cell(one.cell))]
    figures = sorted(one.figure for one in group if one.figure is not None)
    texts = dict.fromkeys(figure_text(figure, recommendation.objective) for figure in (figures[0], figures[-1])) if figures else {}
    return Rival(
        name=remarks.cell_name(cells[0]) if len(cells) == 1 else remarks.together(cells),
        figure=" to ".join(texts),
        why=group[0].lost_on,
        share=figures[-1] / widest if figures and widest else 0.0,
        eligible=group[0].low is not None,
    )
