"""`report.md`: the verdict and the tables as GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from deploycnn import units
from deploycnn.record import Record
from deploycnn.report import low_precision, remarks, rows
from deploycnn.report.answers import answer_rows
from deploycnn.report.costs import energy
from deploycnn.report.diagnosis import bound_rows
from deploycnn.report.recommend import Recommendation


def markdown(record: Record, recommendation: Recommendation, charts: Sequence[str] = ()) -> str:
    """The report of one run.

    Args:
        charts: names of SVG files beside it, see svg_files.
    """
    parts = [f"# {rows.headline(record)}", _verdict(recommendation), _charts(charts), _accuracy(record)]
    parts += [_latency(record, batch) for batch in rows.batches(record)]
    parts += [
        _list("Slower than fp32, and why", low_precision.slower(record)),
        _bounds(record),
        _costs(record),
        _answers(record),
        _evidence(record),
        *map(_choice, low_precision.choices(record)),
        _calibration(record),
        _deferred(record),
        _list("Not recommended, because", remarks.not_passed(record)),
        _list("Skipped", remarks.skipped(record)),
        _list("Doubts about the latencies", remarks.doubts(record)),
        _facts(record),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _charts(charts: Sequence[str]) -> str:
    words = {"report-tradeoff": "Accuracy against latency, with the Pareto front", "report-latency": "Distributions of latency"}
    return "\n\n".join(f"![{next(text for stem, text in words.items() if name.startswith(stem))}]({name})" for name in charts)


def table(headings: list[str], lines: list[list[str]], *, text_columns: int) -> str:
    """A Markdown table whose first `text_columns` columns are text and the others numbers."""
    sides = [":--" if i < text_columns else "--:" for i in range(len(headings))]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in (headings, sides, *lines))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _verdict(recommendation: Recommendation) -> str:
    if recommendation.ship:
        return f"**Ship `{recommendation.ship}`**: {recommendation.because}."
    return f"**Ship nothing**: {recommendation.because}."


def _accuracy(record: Record) -> str:
    headings = ["artifact", "verdict", "top-1", "change", "agreement", "size", "build"]
    lines = [
        [f"{row.name} {row.precision} {row.target}", row.verdict, row.top1, row.change, row.agreement, row.size, row.build]
        for row in rows.accuracy_rows(record)
    ]
    return "## Accuracy\n\nAgainst the fp32 reference on the same images.\n\n" + table(headings, lines, text_columns=2)


def _latency(record: Record, batch: int) -> str:
    latency = next(found for cell in record.cells if (found := cell.latency(batch)))
    headings = ["artifact", "p50", "95 % CI", "p90", "p99", "images/s", "ratio"]
    lines = [
        [f"{row.name} {row.precision} {row.target}", row.p50, row.spread, row.p90, row.p99, row.rate, row.ratio]
        for row in rows.latency_rows(record, batch)
    ]
    boundary = latency.boundary.replace("-", " ")
    about = f"{latency.threads} thread(s), {boundary}; ratio is time over {record.reference}, paired by round."
    return f"## Latency, batch {batch}\n\n{about}\n\n" + table(headings, lines, text_columns=1)


def _bounds(record: Record) -> str:
    lines = [[row.name, str(row.batch), row.peak, row.call, row.sentence] for row in bound_rows(record)]
    headings = ["artifact", "batch", "share of peak", "share of the call", "why it is as fast as it is"]
    return "## What bounds each artifact\n\n" + table(headings, lines, text_columns=1) if lines else ""


def _costs(record: Record) -> str:
    """Cold start and memory of every artifact that was loaded here."""
    lines = []
    for cell in record.cells:
        if cell.artifact is None or cell.loading is None:
            continue
        loading = cell.loading
        times = [units.seconds(value_s) for value_s in (cell.artifact.build_s, loading.load_s, loading.first_run_s)]
        device = units.size(loading.device_peak_bytes) if loading.device_peak_bytes is not None else rows.NOTHING
        lines.append([cell.name, *times, units.size(loading.resident_bytes), units.size(loading.peak_bytes), device, energy(cell)])
    headings = ["artifact", "compile", "load", "first run", "resident", "peak", "device peak", "energy per image"]
    about = "One start in a fresh process each, imports included. Memory is the whole process's, runtime included. Energy is net of idle."
    return f"## Cold start and memory\n\n{about}\n\n{table(headings, lines, text_columns=1)}" if lines else ""


def _answers(record: Record) -> str:
    found = answer_rows(record)
    if not found:
        return ""
    headings = ["artifact", "class that lost most", "right to wrong", "wrong to right", "mean confidence", "ECE"]
    lines = [[row.who, row.worst_class, row.lost, row.won, row.confidence, row.ece] for row in found]
    kinds = [(row, images) for row in found for images in (("right to wrong", row.lost_images), ("wrong to right", row.won_images))]
    numbers = "\n".join(f"- `{row.who}`, {kind}: images {images}" for row, (kind, images) in kinds if images)
    about = "In brackets the change against the reference. ECE is the expected calibration error."
    return "\n\n".join(part for part in ("## Answers that changed", about, table(headings, lines, text_columns=2), numbers) if part)


def _evidence(record: Record) -> str:
    found = low_precision.evidence_rows(record)
    lines = [[row.who, row.asked, row.found, row.state, remarks.plain(row.source)] for row in found]
    headings = ["artifact", "asked for", "layers found", "verdict", "who says so"]
    return "## Precision, asked for and found\n\n" + table(headings, lines, text_columns=5) if lines else ""


def _choice(found: low_precision.ChoiceTable) -> str:
    headings = ["ONNX node", "kind", "left in", "multiply-adds", "logit error alone in int8"]
    lines = [[row.node, row.op, row.precision, row.share, row.alone] for row in found.rows]
    parts = [f"## Layers of {found.title}: {found.summary}", table(headings, lines, text_columns=3) if lines else ""]
    return "\n\n".join(part for part in (*parts, "\n".join(f"- {step}" for step in found.steps)) if part)


def _calibration(record: Record) -> str:
    lines = [f"- {what}: {text}" for what, text in low_precision.audit(record)]
    lines += [f"- spread, {low_precision.spread_line(row)}; each draw {row.draws}" for row in low_precision.spreads(record)]
    return "## Calibration images\n\n" + "\n".join(lines) if lines else ""


def _deferred(record: Record) -> str:
    lines = [[f"{row.name} {row.precision} {row.target}", row.evidence, row.size, row.build] for row in rows.deferred_rows(record)]
    if not lines:
        return ""
    waits = "\n".join(f"- `{remark.who}` waits: {remark.why}" for remark in remarks.waiting(record))
    about = "`resume` on a machine that can run them validates and measures them."
    headings = ["artifact", "evidence", "size", "build"]
    return f"## Built here, to be run elsewhere\n\n{about}\n\n{table(headings, lines, text_columns=2)}\n\n{waits}"


def _list(title: str, found: list[remarks.Remark]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- `{remark.who}`: {remark.text}" for remark in found) if found else ""


def _facts(record: Record) -> str:
    data = record.data
    lines = [
        f"- images: {data.name} from {data.source}, {data.n_train:,} training, {data.n_validation:,} validation, "
        f"{data.n_calibration:,} calibration, {data.n_test:,} test; digest `{data.sha256[:16]}`",
        f"- model: {record.model.name} ({record.model.source}), graph digest `{record.model.graph_sha256[:16]}`",
        *(f"- machine: {environment.summary}" for environment in record.environments.values()),
        f"- made by deploycnn {record.deploycnn_version} at {record.created} with `{record.command}`",
        *(f"- note: {note}" for note in (*data.notes, *record.model.notes, *record.notes)),
    ]
    took = ", ".join(f"{stage} {units.seconds(time_s)}" for stage, time_s in record.stage_s.items())
    return "## Facts\n\n" + "\n".join(lines) + (f"\n- took: {took}" if took else "")
