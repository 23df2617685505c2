"""A comparison as one self-contained HTML file: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape

from deploycnn.report.compare_rows import Group, groups, headline, remarks, row_of, shown
from deploycnn.report.compare_svg import history_svg, interval_svg, reach
from deploycnn.report.compare_values import Change, Comparison, HistoryRow

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; --dim: #6e7781 }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #f85149; --warn: #d29922; --dim: #8b949e } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem }
.tables { overflow-x: auto } table { border-collapse: collapse; margin: .5rem 0 1.5rem }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child, th.text, .text { text-align: left } td.because { white-space: normal; color: var(--dim); min-width: 12rem }
.faster, .better { color: var(--good) } .slower, .worse { color: var(--warn) } .regression { color: var(--bad); font-weight: 600 }
.incomparable, .inconclusive, .note { color: var(--dim) } .conclusion { font-size: 1.2rem; font-weight: 600 }
svg { stroke: currentColor; fill: currentColor; vertical-align: middle } svg .zero { stroke: var(--line) } svg path { fill: none }
figure { display: inline-block; margin: 0 1.5rem 1rem 0 } figcaption { font-size: .85rem }
"""


def render_html(comparison: Comparison) -> str:
    """The whole page."""
    title = escape(headline(comparison))
    tables = "".join(_group(group) for group in groups(comparison))
    notes = "".join(f"<li>{escape(remark)}</li>" for remark in remarks(comparison))
    runs = "".join(
        f"<li>{side}: {escape(run.name)}, {escape(run.created)}, <code>{escape(run.command)}</code>, {escape('; '.join(run.machines))}</li>"
        for side, run in (("base", comparison.base), ("new", comparison.new))
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><h1>{title}</h1>"
        f'<p class="conclusion {"regression" if comparison.exit_code else "better"}">{escape(comparison.conclusion)}</p>'
        f'<div class="tables">{tables}</div>{_histories(comparison)}<ul class="note">{notes}{runs}</ul></body></html>\n'
    )


def _group(group: Group) -> str:
    headings = ("artifact", "base", "new", "change", "95 % CI", "", "p", "verdict", "because")
    head = "".join(f"<th{' class=text' if heading in ('verdict', 'because') else ''}>{escape(heading)}</th>" for heading in headings)
    scale = reach(list(group.changes))
    body = "".join(_line(change, scale) for change in group.changes)
    return f"<h2>{escape(group.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n"


def _line(change: Change, scale: float) -> str:
    row = row_of(change)
    kind = "regression" if change.regression else change.verdict
    cells = [row.name, row.base, row.new, row.change, row.interval]
    plain = "".join(f"<td>{escape(text)}</td>" for text in cells)
    verdict = f"{row.verdict} (regression)" if change.regression else row.verdict
    return (
        f'<tr>{plain}<td class="{kind}">{interval_svg(change, scale)}</td><td>{escape(row.p_value)}</td>'
        f'<td class="text {kind}">{escape(verdict)}</td><td class="text because">{escape(row.reason)}</td></tr>'
    )


def _histories(comparison: Comparison) -> str:
    if not comparison.history:
        return ""
    return "<h2>History</h2>" + "".join(_history(row) for row in comparison.history)


def _history(row: HistoryRow) -> str:
    batch = f", batch {row.batch}" if row.batch is not None else ""
    known = [point.value for point in row.points if point.value is not None]
    ends = f"{shown(row.metric, known[0])} to {shown(row.metric, known[-1])}"
    return f"<figure>{history_svg(row)}<figcaption>{escape(f'{row.cell}, {row.metric}{batch}: {ends}')}</figcaption></figure>"
