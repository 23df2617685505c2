"""The page as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from deploycnn.record import Record
from deploycnn.report import rows
from deploycnn.report.answers import answer_rows
from deploycnn.report.chart_style import palette_css
from deploycnn.report.flips import Flips
from deploycnn.report.html.accuracy import class_map
from deploycnn.report.html.charts import charts, legend
from deploycnn.report.html.diagnosis import diagnoses
from deploycnn.report.html.facts import facts
from deploycnn.report.html.flips import flip_sheet
from deploycnn.report.html.layers import layer_map
from deploycnn.report.html.money import cost_table
from deploycnn.report.html.outcomes import outcomes
from deploycnn.report.html.precision import precision_view
from deploycnn.report.html.table import artifact_table
from deploycnn.report.html.verdict import verdict_view
from deploycnn.report.machines import machine
from deploycnn.report.recommend import Recommendation
from deploycnn.samples import Samples

TEMPLATE = "page.html.j2"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one machine measured of a run; see report.machines."""

    record: Record
    recommendation: Recommendation
    samples: Mapping[str, Samples]  # raw latencies by row; empty where they are not at hand: then there are no distributions
    flips: Flips | None  # flipped images, None where they are not at hand


def render_page(parts: Sequence[Part], folder: Path | None = None) -> str:
    """The report as HTML.

    Args:
        parts: one, or one for each machine that worked on the run; the last one shows first.
        folder: of the run, named in commands; None: its name is left open.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("deploycnn.report.html", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    views = [_view(part, folder, f"m{number}-" if len(parts) > 1 else "") for number, part in enumerate(parts, 1)]
    title = views[-1]["verdict"]
    return environment.get_template(TEMPLATE).render(
        parts=views,
        machines=[machine(part.record) for part in parts],
        title=f"Ship {title.ship}" if title.ship else "Ship nothing",
        headline=rows.headline(parts[-1].record),
        record=parts[-1].record,
        style=_text("style.css") + palette_css(),
        script=_text("script.js"),
    )


def _view(part: Part, folder: Path | None, prefix: str) -> dict[str, Any]:
    """What the template needs of one part. `prefix` keeps identifiers apart."""
    record, recommendation = part.record, part.recommendation
    batches = rows.batches(record)
    judged = recommendation.batch if recommendation.batch in batches else (batches[0] if batches else None)
    return {
        "p": prefix,
        "headline": rows.headline(record),
        "verdict": verdict_view(record, recommendation, judged),
        "charts": charts(record, part.samples, recommendation.ship, judged),
        "legend": legend(record),
        "diagnoses": diagnoses(record),
        "table": artifact_table(record, recommendation.ship, judged),
        "classes": class_map(record),
        "flips": flip_sheet(record, part.flips),
        "layers": layer_map(record),
        "precision": precision_view(record),
        "answers": answer_rows(record),
        "costs": cost_table(record, judged, recommendation.ship),
        "outcomes": outcomes(record, folder),
        "facts": facts(record, folder),
        "batches": batches,
        "judged": judged,
    }


def _text(name: str) -> str:
    return files("deploycnn.report.html").joinpath("templates", name).read_text(encoding="utf-8")
