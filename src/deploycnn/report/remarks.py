"""Why cells are not a plain pass, said once for all cells that share the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from deploycnn.record import Cell, Record
from deploycnn.types import Value


class Remark(Value):
    """One reason and the cells that it is true of."""

    who: str  # `onnxruntime fp16 cpu`, `openvino cuda:sm89 (fp32, fp16, int8)`
    why: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Reason and remedy in one clause."""
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


def skipped(record: Record) -> list[Remark]:
    """Cells that no work was done for, in the record's order."""
    reasons = [(cell, cell.outcome.reason, cell.outcome.remedy) for cell in record.cells if cell.outcome.state == "skipped"]
    return _grouped(reasons)


def not_passed(record: Record) -> list[Remark]:
    """Cells that failed, or ran and did not pass, in the record's order."""
    reasons = [(cell, *found) for cell in record.cells if (found := _why_not(cell))]
    return _grouped(reasons)


def waiting(record: Record) -> list[Remark]:
    """What built artifacts wait for; `who` is a target."""
    by_target: dict[str, list[str]] = {}
    for cell in record.cells:
        if cell.outcome.state == "deferred":
            reasons = by_target.setdefault(str(cell.target), [])
            if cell.outcome.waits_for not in reasons:
                reasons.append(cell.outcome.waits_for)
    return [Remark(who=target, why="; ".join(map(plain, reasons))) for target, reasons in by_target.items()]


def doubts(record: Record) -> list[Remark]:
    """Doubts about the machine, then about rows of latencies: the ones of one kind together, the first one in full."""
    found = [Remark(who="all", why=doubt.what, remedy=doubt.remedy) for doubt in record.doubts]
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for cell in record.cells:
        for latency in cell.latencies:
            for doubt in latency.doubts:
                who = f"{cell_name(cell)} batch {latency.batch}"
                rows.setdefault((doubt.kind, doubt.remedy), []).append((who, doubt.what))
    for (_, remedy), hits in rows.items():
        who, what = hits[0]
        more = f" (and {len(hits) - 1} more rows)" if len(hits) > 2 else f" (and {hits[1][0]})" if len(hits) == 2 else ""
        found.append(Remark(who=who, why=what + more, remedy=remedy))
    return found


def cell_name(cell: Cell) -> str:
    """`onnxruntime int8`, with the target where it is not the CPU."""
    return f"{cell.backend} {cell.precision}" + ("" if str(cell.target) == "cpu" else f" {cell.target}")


def _why_not(cell: Cell) -> tuple[str, str] | None:
    """(reason, remedy) of a cell that was to run here and did not pass, None for any other."""
    outcome = cell.outcome
    if outcome.state == "failed":
        return f"failed in {outcome.stage}: {outcome.reason}", outcome.remedy
    if outcome.state != "done":
        return None
    checks = [check for check in (cell.evidence, cell.accuracy.verdict if cell.accuracy else None) if check and check.state != "pass"]
    if not checks:
        return None
    return "; ".join(check.reason for check in checks), "; ".join(dict.fromkeys(check.remedy for check in checks if check.remedy))


def _grouped(reasons: Iterable[tuple[Cell, str, str]]) -> list[Remark]:
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell, why, remedy in reasons:
        cells.setdefault((plain(why), plain(remedy)), []).append(cell)
    return [Remark(who=together(found), why=why, remedy=remedy) for (why, remedy), found in cells.items()]


def together(cells: list[Cell]) -> str:
    """`tvm int8 cpu` for one; `openvino cuda:sm89 (fp32, fp16, int8)` for several of one backend on one target."""
    precisions: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        precisions.setdefault((cell.backend, str(cell.target)), []).append(cell.precision)
    parts = [
        f"{backend} {found[0]} {target}" if len(found) == 1 else f"{backend} {target} ({', '.join(found)})"
        for (backend, target), found in precisions.items()
    ]
    return ", ".join(parts)


_OBJECT = re.compile(r"\{[^{}]*\}")
_LAYERS = re.compile(r": (?P<names>[^:;]+?)(?: and (?P<more>\d+) more)? of (?P<all>\d+) layers")


def plain(text: str) -> str:
    """A reason for people: compilers' JSON becomes its kind, a list of layers its first one and a count."""
    return _LAYERS.sub(_first_layer, _OBJECT.sub(_kind_of, text))


def _first_layer(match: re.Match[str]) -> str:
    first, *others = match["names"].split(", ")
    more = len(others) + int(match["more"] or 0)
    return f": {first} {f'and {more} more ' if more else ''}of {match['all']} layers"


def _kind_of(match: re.Match[str]) -> str:
    """`{"kind":"llvm","mcpu":"znver3"}` is `llvm (znver3)`; what is no JSON stays as it is."""
    try:
        document = json.loads(match[0])
    except json.JSONDecodeError:
        return match[0]
    kind = document.get("kind")
    processor = document.get("mcpu") or document.get("arch")
    if not isinstance(kind, str):
        return "a device of its own description"
    return f"{kind} ({processor})" if isinstance(processor, str) else kind
