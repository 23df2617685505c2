"""A comparison as GitHub-flavoured Markdown, fit for a pull-request comment."""

from __future__ import annotations

from deploycnn.errors import EXIT_OK
from deploycnn.report.compare_rows import Group, Row, groups, headline, reasons, remarks
from deploycnn.report.compare_values import Comparison
from deploycnn.report.markdown import table

_MARKS = {"faster": "🟢", "better": "🟢", "slower": "🟡", "worse": "🟡", "incomparable": "⚪", "inconclusive": "❔"}


def render_markdown(comparison: Comparison) -> str:
    """Conclusion first, then the tables; what differs between the runs is folded away."""
    mark = "✅" if comparison.exit_code == EXIT_OK else "❌"
    parts = [f"### {mark} {_plain(comparison.conclusion)}", _plain(headline(comparison))]
    parts += [_group(group) for group in groups(comparison)]
    if why := reasons(comparison):
        parts.append("\n".join(f"- {', '.join(f'`{name}`' for name in names)}: {_plain(reason)}" for reason, names in why.items()))
    said = [f"- {_plain(remark)}" for remark in remarks(comparison)]
    machines = {machine for run in (comparison.base, comparison.new) for machine in run.machines}
    said += [f"- machine: {_plain(machine)}" for machine in sorted(machines)]
    sides = (("base", comparison.base), ("new", comparison.new))
    said += [f"- {side}: {_plain(run.name)}, {run.created}, `{_plain(run.command)}`" for side, run in sides]
    parts.append("<details><summary>About these runs</summary>\n\n" + "\n".join(said) + "\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _group(group: Group) -> str:
    headings = ["artifact", "verdict", "base", "new", "change", "95 % CI"]
    parts = [f"**{group.title}**", table(headings, [_line(row) for row in group.rows], text_columns=2)]
    return "\n\n".join(parts)


def _line(row: Row) -> list[str]:
    verdict = f"{'🔴' if row.regression else _MARKS.get(row.verdict, '')} {row.verdict}".strip()
    return [_plain(row.name), f"**{verdict}**" if row.regression else verdict, row.base, row.new, row.change, row.interval]


def _plain(text: str) -> str:
    """Text that stays text: Markdown would take `<op>` for HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
