"""How a comparison is shown: fits the terminal, is well-formed, carries every cell and reason, loads nothing."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from deploycnn.report.compare_html import render_html
from deploycnn.report.compare_markdown import render_markdown
from deploycnn.report.compare_terminal import render_terminal
from deploycnn.report.compare_values import Change, Comparison, HistoryPoint, HistoryRow, MachineShift, RunFacts
from deploycnn.types import Interval


def a_change(cell: str, verdict: str, ratio: float = 1.0, **more: object) -> Change:
    figures = {
        "base": Interval(value=5.24e-5, low=5.2e-5, high=5.3e-5),
        "new": Interval(value=5.24e-5 * ratio, low=5e-5, high=9e-5),
        "ratio": Interval(value=ratio, low=ratio - 0.02, high=ratio + 0.02),
        "p_value": 0.04,
    }
    return Change.model_validate({"cell": cell, "metric": "p50", "batch": 1, "verdict": verdict, **figures, **more})


def a_side(name: str) -> RunFacts:
    return RunFacts(
        name=name,
        created="2026-01-01T00:00:00+00:00",
        command="deploycnn run quickstart --set 'train.epochs=5'",
        model="lenet",
        data="synthetic10",
        machines=("a processor, 2 cores",),
        version="0.1.0",
    )


CHANGES = (
    a_change("torch/fp32/cpu", "same"),
    a_change("onnxruntime/fp32/cpu", "faster", 0.8),
    a_change("onnxruntime/int8/cpu", "slower", 1.31, regression=True),
    a_change("openvino/int8+fp16/cuda:sm120", "inconclusive", 1.04, open=True, reason="the interval is too wide to tell"),
    Change(cell="tvm/fp32/cpu", metric="p50", verdict="incomparable", reason="failed in compile: <op> | 'Erf' is not supported"),
    a_change("onnxruntime/fp32/cpu", "slower", 1.02, batch=32),
    Change(
        cell="onnxruntime/int8/cpu",
        metric="top1",
        base=Interval(value=0.7, low=0.69, high=0.71),
        new=Interval(value=0.69, low=0.68, high=0.7),
        difference=Interval(value=-0.01, low=-0.013, high=-0.007),
        p_value=1e-6,
        verdict="worse",
    ),
    Change(
        cell="onnxruntime/int8/cpu",
        metric="size",
        base=Interval(value=248_000, low=248_000, high=248_000),
        new=Interval(value=1e6, low=1e6, high=1e6),
        ratio=Interval(value=4.03, low=4.03, high=4.03),
        verdict="worse",
        regression=True,
    ),
)


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(
        base=a_side("monday"),
        new=a_side("tuesday <b>"),
        metrics=("p50", "top1", "size"),
        fail_above=None,
        confidence=0.95,
        changes=CHANGES,
        added=("null/fp32/cpu",),
        machine_shifts=(MachineShift(batch=1, measured_by="control", ratio=Interval(value=1.05, low=1.04, high=1.06)),),
        noise_floors=((1, 0.012),),
        notes=("packages changed: numpy 2.4.5 to 2.4.6",),
        history=(
            HistoryRow(
                cell="torch/fp32/cpu",
                metric="p50",
                batch=1,
                points=(
                    HistoryPoint(run="saturday", created="", value=Interval(value=5e-5, low=4e-5, high=6e-5)),
                    HistoryPoint(run="sunday", created="", value=None),
                    HistoryPoint(run="monday", created="", value=Interval(value=5.5e-5, low=5.4e-5, high=5.6e-5)),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("width", [80, 100, 200])
def test_terminal_fits_and_says_all(comparison: Comparison, width: int) -> None:
    text = io.StringIO()
    render_terminal(comparison, Console(file=text, width=width, color_system=None))
    said = text.getvalue()
    assert max(map(len, said.splitlines())) <= width
    whole = " ".join(said.split())
    for words in (
        "52.4 µs",
        "+31.0 %",
        "+29.0 to +33.0",
        "incomparable",
        "inconclusive",
        "-1.00 pp",
        "248 kB",
        "+303.0 %",
        "not supported",
    ):
        assert words in whole
    assert "5.0 % slower in the new run (by control)" in whole
    assert said.count("✗ ") == 2
    assert "Regression: onnxruntime/int8/cpu, batch 1; onnxruntime/int8/cpu." in whole
    if width == 80:
        assert all("…" not in line for line in said.splitlines())


def test_markdown_is_a_comment_with_whole_tables(comparison: Comparison) -> None:
    text = render_markdown(comparison)
    assert text.startswith("### ❌ Regression")
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| artifact")]
    assert len(tables) == 4  # p50 at two batch sizes, top1, size
    for lines in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert widths == {7}
    assert text.count("<details>") == text.count("</details>") == 1
    assert "**🔴 slower**" in text
    assert "<b>" not in text  # names are text, here too
    assert "- `tvm fp32`: failed in compile" in text


def test_markdown_of_no_regression_says_so(comparison: Comparison) -> None:
    fine = comparison.model_copy(update={"changes": CHANGES[:2]})
    assert render_markdown(fine).startswith("### ✅ No regression in 2 comparisons")


class _Balance(HTMLParser):
    """Counts tags that stay open, and notes what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "script":
            self.outside.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_is_whole_alone_and_small(comparison: Comparison) -> None:
    page = render_html(comparison)
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.outside == []
    assert "<b>" not in page  # names are text
    assert page.count('class="interval"') == 7
    assert page.count('class="history"') == 1
    assert len(page) < 30_000
    text = " ".join(parser.text)
    for words in ("Regression", "+31.0 %", "'Erf' is not supported", "packages changed"):
        assert words in text


def test_html_without_history_and_with_odd_figures(comparison: Comparison) -> None:
    endless = a_change("torch/fp32/cpu", "inconclusive").model_copy(update={"ratio": Interval(value=1.0, low=0.0, high=float("inf"))})
    page = render_html(comparison.model_copy(update={"history": (), "changes": (endless,)}))
    assert "nan" not in page.lower().replace("finance", "")
    assert "<h2>History" not in page
