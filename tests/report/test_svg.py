"""Charts stand on arithmetic that can be checked: scales, ticks, names that do not touch, fronts, break-even."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploycnn.report.chart_style import file_css
from deploycnn.report.costs import Cost, break_even_images
from deploycnn.report.layer_words import short
from deploycnn.report.palette import backend_colours, looks
from deploycnn.report.pareto import front
from deploycnn.report.svg import Drawing, Scale, padded, round_text, seconds_tick
from deploycnn.report.svg_cost import cumulative
from deploycnn.report.svg_lines import spread
from deploycnn.report.svg_scatter import scatter
from deploycnn.types import Verdict

POSITIVE = st.floats(1e-9, 1e9)


@given(low=POSITIVE, factor=st.floats(1.05, 1e8), log=st.booleans(), most=st.integers(2, 9))
def test_ticks_are_round_ascending_inside_and_not_too_many(low, factor, log, most):
    scale = Scale(low, low * factor, 0, 100, log=log)
    ticks = scale.ticks(most)
    assert ticks == sorted(set(ticks))
    assert 1 <= len(ticks) <= most + 1
    for tick in ticks:
        assert scale.low * 0.998 <= tick <= scale.high * 1.002
        digits = f"{tick:.6e}".split("e")[0].rstrip("0").replace(".", "")
        assert len(digits) <= 5


@given(low=POSITIVE, factor=st.floats(1.001, 1e6), log=st.booleans(), share=st.floats(-1, 2))
def test_a_scale_stays_inside_its_pixels(low, factor, log, share):
    scale = Scale(low, low * factor, 10, 90, log=log)
    assert 10 - 1e-6 <= scale(low + share * low * (factor - 1)) <= 90 + 1e-6
    assert scale(scale.low) == pytest.approx(10)
    assert scale(scale.high) == pytest.approx(90)


def test_one_value_still_has_a_scale():
    assert Scale(5, 5, 0, 100)(5) == pytest.approx(50)
    assert Scale(5, 5, 0, 100, log=True)(5) == pytest.approx(50)
    assert padded([3.0], log=True)[0] < 3 < padded([3.0], log=True)[1]


def test_a_logarithm_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="logarithmic"):
        Scale(0, 1, 0, 100, log=True)


@given(st.lists(st.floats(0, 400), max_size=30), st.floats(5, 20))
def test_names_are_pushed_apart_and_no_further(heights, least):
    heights = sorted(heights)
    placed = spread(heights, least)
    assert len(placed) == len(heights)
    assert all(after - before >= least - 1e-6 for before, after in itertools.pairwise(placed))
    if all(after - before >= least for before, after in itertools.pairwise(heights)):
        assert placed == pytest.approx(heights)
    if placed:
        assert sum(placed) == pytest.approx(sum(heights), abs=1e-5)


@pytest.mark.parametrize(
    ("text", "shorter"), [("20.0 µs", "20 µs"), ("1.50 ms", "1.5 ms"), ("100 µs", "100 µs"), ("1,000", "1,000"), ("0.0500", "0.05")]
)
def test_idle_zeros_go(text, shorter):
    assert round_text(text) == shorter
    assert seconds_tick(2e-5) == "20 µs"


def test_what_is_drawn_is_escaped_xml():
    drawing = Drawing(100, 50, 'a "title" & <more>')
    drawing.open_mark("a <tip> & more", data_cell='x"y')
    drawing.text(1, 2, "<text> & more")
    drawing.close()
    root = ET.fromstring(drawing.render_file(file_css()))
    assert root.attrib["aria-label"] == 'a "title" & <more>'
    assert "a <tip> & more" in "".join(root.itertext())
    assert "<text> & more" in "".join(root.itertext())


# --- what is chosen to be drawn -------------------------------------------------------------


def test_the_front_holds_proved_artifacts_that_nothing_beats(make_record, make_cell, make_accuracy):
    record = make_record(
        make_cell("torch", "fp32", 4e-4, accuracy=make_accuracy(0.70)),
        make_cell("a", "int8", 1e-4, accuracy=make_accuracy(0.69)),
        make_cell("b", "fp32", 2e-4, accuracy=make_accuracy(0.70)),
        make_cell("c", "fp16", 3e-4, accuracy=make_accuracy(0.70)),  # as accurate as b, slower
        make_cell("d", "int8", 1e-5, evidence=Verdict(state="unproven", reason="says nothing")),
        make_cell("e", "int8", 1e-5, accuracy=make_accuracy(0.72, "fail", "other logits")),
    )
    assert [cell.name for cell in front(record, 1)] == ["a/int8/cpu", "b/fp32/cpu"]


def cost(start_s, image_s):
    return Cost(cell="x", build_s=start_s, load_s=0, first_run_s=0, image_s=image_s)


@pytest.mark.parametrize(
    ("one", "other", "images"),
    [
        (cost(11, 1e-3), cost(1, 2e-3), 10_000),
        (cost(1, 1e-3), cost(1, 2e-3), 0),
        (cost(0.5, 1e-3), cost(1, 2e-3), 0),
        (cost(11, 2e-3), cost(1, 1e-3), math.inf),
        (cost(11, 1e-3), cost(1, 1e-3), math.inf),
        (cost(0.5, 1e-3), cost(1, 1e-3), 0),
    ],
)
def test_break_even_is_where_the_totals_meet(one, other, images):
    found = break_even_images(one, other)
    assert found == pytest.approx(images)
    if 0 < found < math.inf:
        assert one.total_s(found) == pytest.approx(other.total_s(found))


def test_colours_say_the_backend_shapes_the_precision_and_hollow_the_verdict(make_record, make_cell):
    record = make_record(
        make_cell("torch", "fp32"),
        make_cell("onnxruntime", "fp32"),
        make_cell("onnxruntime", "int8", evidence=Verdict(state="fail", reason="ran in float")),
        make_cell("openvino", "int8"),
    )
    look = looks(record)
    assert backend_colours(record) == {"torch": 0, "onnxruntime": 1, "openvino": 2}
    assert look["onnxruntime/fp32/cpu"].colour == look["onnxruntime/int8/cpu"].colour
    assert look["onnxruntime/int8/cpu"].corners == look["openvino/int8/cpu"].corners != look["torch/fp32/cpu"].corners
    assert [one.solid for one in look.values()] == [True, True, False, True]


def test_more_backends_than_colours_never_take_the_reference_s(make_record, make_cell):
    record = make_record(make_cell("torch", "fp32"), *(make_cell(f"backend{i}", "fp32") for i in range(12)))
    colours = backend_colours(record)
    assert [name for name, colour in colours.items() if colour == 0] == ["torch"]
    assert max(colours.values()) <= 7


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("float32", "fp32"),
        ("FP32", "fp32"),
        ("f32", "fp32"),
        ("half", "fp16"),
        ("f16", "fp16"),
        ("bf16", "bf16"),
        ("u8", "int8"),
        ("int8", "int8"),
        ("QInt8", "int8"),
        ("i8", "int8"),
        ("tf32", "tf32"),
        ("int8 x float32", "int8 x float32"),
    ],
)
def test_backends_words_for_their_numbers_become_the_recipe_s(word, shown):
    assert short(word) == shown


@pytest.mark.parametrize("width", [358, 860, 1160])
@pytest.mark.parametrize("n", [2, 30])
def test_no_two_names_of_the_trade_off_touch(make_record, make_cell, make_accuracy, width, n):
    cells = [make_cell(f"backend{i}", "fp32", 1e-4 * (1 + i / 100), accuracy=make_accuracy(0.7 + (i % 3) / 1000)) for i in range(n)]
    svg = scatter(make_record(*cells), 1, cells[0].name, width).render()
    names = re.findall(r'<text x="([-.\d]+)" y="([-.\d]+)" class="name[^"]*" text-anchor="middle">([^<]+)<', svg)
    assert any(name == "backend0 fp32" for _, _, name in names)
    boxes = [(float(x) - 3.2 * len(name), float(x) + 3.2 * len(name), float(y)) for x, y, name in names]
    for i, (left, right, y) in enumerate(boxes):
        assert left >= -3
        assert right <= width + 3
        for other_left, other_right, other_y in boxes[:i]:
            assert right <= other_left or other_right <= left or abs(y - other_y) >= 12


def test_the_lines_of_cost_are_those_that_can_be_told_apart(make_record, make_cell):
    cells = [make_cell("torch", "fp32", 3e-4), *(make_cell(f"b{i}", "fp32", 1e-4 * (i + 1)) for i in range(12))]
    svg = cumulative(make_record(*cells), 1, "b0/fp32/cpu", 1160).render()
    names = re.findall(r'class="name[^"]*">([^<]+)<', svg)
    assert len(names) == 8
    assert {"torch fp32", "b0 fp32"} <= set(names)
    assert cumulative(make_record(make_cell("torch", "fp32")), 1, None, 1160) is None
