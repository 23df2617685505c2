"""The table of nodes: 80 columns whatever the numbers, the first node beyond the tolerance in words, a chart that is XML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from deploycnn.report.node_table import NodeRow, node_chart, node_table, sentence


def row(name: str, error: float | None, **more: object) -> NodeRow:
    figures = {"cosine": 0.99, "saturated": 0.0, "subnormal": 0.0, "infinite": 0.0, "low": -1.0, "high": 1.0, "beyond": False, "op": "Conv"}
    return NodeRow.model_validate({**figures, "node": name, "file_error": error, "ran_error": error, **more})


ROWS = [row("first", 1e-6), row("second", 0.02, beyond=True, saturated=0.031), row("third", 0.5, beyond=True)]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 123456.0, -1.234e-5, 3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.0123, 0.999, 1.0])
def test_no_line_is_longer_than_80_characters(value: float, share: float) -> None:
    long = row("a_very_long_name_of_a_node_that_an_exporter_made", abs(value), op="ConvTranspose", cosine=-1.0, low=value, high=value)
    long = long.model_copy(update={"saturated": share, "subnormal": share, "infinite": share, "beyond": True})
    lines = node_table([long, row("x", None, cosine=None)]).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80, lines


def test_the_first_node_beyond_is_named_with_its_reason_and_what_was_before() -> None:
    said = sentence(ROWS, 0.01)
    assert "second (Conv)" in said
    assert "2.0e-02" in said
    assert "3.1 %" in said
    assert "1.0e-06" in said
    assert "third" not in said
    marked = [line for line in node_table(ROWS).splitlines() if line.startswith(">")]
    assert [line.split()[1] for line in marked] == ["second", "third"]
    assert "No node" in sentence(ROWS[:1], 0.01)


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [row("exact", 0.0)], [row("unknown", None)], [row("broken", float("inf"))]])
def test_the_chart_is_an_svg_file_with_names_and_tolerance(rows: list[NodeRow]) -> None:
    text = node_chart(rows, 0.01, "errors of onnxruntime/int8/cpu")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "tolerance 0.01" in text
    assert rows[0].node in text
