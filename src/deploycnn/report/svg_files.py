"""Charts as files of their own, for Markdown: a pull request shows them, with colours for light and dark."""

from __future__ import annotations

from collections.abc import Mapping

from deploycnn.record import Record
from deploycnn.report.chart_style import file_css
from deploycnn.report.recommend import Recommendation
from deploycnn.report.rows import batches
from deploycnn.report.svg_distribution import distributions
from deploycnn.report.svg_scatter import scatter
from deploycnn.samples import Samples

WIDTH = 860  # of a Markdown page's column


def chart_files(record: Record, recommendation: Recommendation, samples: Mapping[str, Samples], suffix: str = "") -> dict[str, str]:
    """SVG by file name, at the batch size judged; without those that there is nothing to draw of.

    Args:
        suffix: of the names, where several machines measured one run.
    """
    measured = batches(record)
    batch = recommendation.batch if recommendation.batch in measured else next(iter(measured), None)
    if batch is None:
        return {}
    drawings = {
        f"report-tradeoff{suffix}.svg": scatter(record, batch, recommendation.ship, WIDTH),
        f"report-latency{suffix}.svg": distributions(record, samples, batch, recommendation.ship, WIDTH),
    }
    return {name: drawing.render_file(file_css()) for name, drawing in drawings.items() if drawing is not None}
