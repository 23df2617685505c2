"""report.html says what the record holds, whole, in one small file that needs nothing from elsewhere."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from deploycnn.pipeline.reporting import write_reports
from deploycnn.recordfile import read_record
from deploycnn.report.chart_style import _INK
from deploycnn.report.flips import FLIPS_NAME, CellFlips, Flips, write_flips
from deploycnn.report.palette import DARK, LIGHT
from deploycnn.samples import SAMPLES_NAME
from deploycnn.types import Interval

LIMIT_BYTES = 1_500_000
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Elements with their attributes, text by element, and whether every tag is closed by its own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.faults: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.faults += [f"<{tag}> stays open" for tag in self._open]

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data

    def having(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture
def html(run_folder):
    write_reports(run_folder, read_record(run_folder))
    return (run_folder / "report.html").read_text(encoding="utf-8")


def test_it_is_one_small_file_that_asks_for_nothing(html):
    assert len(html.encode()) < LIMIT_BYTES
    page = Page(html)
    asked_for = [*page.having("src"), *page.having("href"), *re.findall(r"url\(([^)]*)\)", html), *re.findall(r"@import\s+(\S+)", html)]
    assert all(place.startswith(("#", "data:")) for place in asked_for)
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert "default-src 'none'" in html


def test_it_is_well_formed_and_every_reference_inside_holds(html):
    page = Page(html)
    assert page.faults == []
    ids = page.having("id")
    assert len(ids) == len(set(ids))
    targets = {place.removeprefix("#") for place in page.having("href") if place.startswith("#")}
    assert targets | set(page.having("aria-labelledby")) <= set(ids)


def test_it_can_be_read_aloud(html):
    page = Page(html)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("caption") == tags.count("table") >= 4
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.elements if tag == "th")
    charts = [attributes for tag, attributes in page.elements if tag == "svg" and "aria-hidden" not in attributes]
    assert charts
    assert all(attributes["aria-label"] for attributes in charts)
    assert all(attributes.get("aria-label") for _, attributes in page.elements if attributes.get("role") == "img")
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize(
    "fact",
    [
        "Ship",
        "What the others lost on",
        "synthetic10, not of cifar10",
        "other processes kept 1.5 cores busy",
        "no sm89 GPU",
        "deploycnn resume",
        "<b>not</b> supported: Erf",
        "</pre>last words",
        "no Q/DQ form",
        "int8 is simulated",
        "2" * 64,
        "deploycnn run --remeasure",
        "max_drop_pp: 1.0",
        "Right to wrong",
        "nothing (NaN)",
        "Compute-bound on paper",
    ],
)
def test_every_fact_is_on_it_and_escaped(html, fact):
    assert fact in " ".join(Page(html).text.split())


def test_each_number_says_what_stands_behind_it(html):
    page = Page(html)
    cells = [attributes for tag, attributes in page.elements if tag == "td" and attributes.get("data-sort")]
    figures = [attributes for attributes in cells if "right" in attributes.get("class", "")]
    assert len(figures) > 60
    assert all(attributes.get("title") for attributes in figures)
    behind_p50 = next(attributes["title"] for attributes in figures if attributes["title"].startswith("p50"))
    for words in ("95 % interval", "4,000 runs in 40 blocks, 20 rounds, 2 processes", "batch 1, 1 thread, host to host"):
        assert words in behind_p50
    assert any("paired on the same 1,000 images" in attributes["title"] for attributes in figures)


def test_what_the_device_alone_took_stands_beside_the_median(run_folder, make_latency):
    record = read_record(run_folder)
    device = make_latency(1, 4.5e-5, boundary="device")
    cells = tuple(
        cell.model_copy(update={"device_latencies": (device,)}) if cell.name == "onnxruntime/int8/cpu" else cell for cell in record.cells
    )
    write_reports(run_folder, record.model_copy(update={"cells": cells}))
    page = Page((run_folder / "report.html").read_text(encoding="utf-8"))
    assert any("on the device alone 45.0 µs, 95 % interval" in tip for tip in page.having("title"))


def test_each_artifact_stands_in_every_chart_that_it_belongs_to(html, run_folder):
    page = Page(html)
    marks = [
        attributes["data-cell"]
        for _, attributes in page.elements
        if attributes.get("class", "").startswith("mark") and "data-cell" in attributes
    ]
    for cell in read_record(run_folder).cells:
        # Trade-off and distribution for each batch size, roofline for one; each at two widths.
        assert marks.count(cell.name) == 4 * len(cell.latencies) + 2 * len(cell.rooflines)


@pytest.mark.parametrize("missing", [(SAMPLES_NAME,), (FLIPS_NAME,), (SAMPLES_NAME, FLIPS_NAME)])
def test_a_record_alone_is_enough(run_folder, missing):
    for name in missing:
        (run_folder / name).unlink()
    write_reports(run_folder, read_record(run_folder))
    page = Page((run_folder / "report.html").read_text(encoding="utf-8"))
    assert page.faults == []
    assert "Ship" in page.text
    assert ("Every run, not an average" in page.text) == (SAMPLES_NAME not in missing)
    assert ("flipped images are not beside the record" in page.text) == (FLIPS_NAME in missing)


@pytest.mark.parametrize("n_cells", [0, 1])
def test_next_to_nothing_still_makes_a_page(tmp_path, make_record, make_cell, n_cells):
    write_reports(tmp_path, make_record(*[make_cell("torch", "fp32", None)] * n_cells))
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.faults == []
    assert "Ship nothing" in page.text


def test_many_large_images_do_not_make_it_large(run_folder, make_record):
    """As bad as can be: noise, which no format makes smaller, large, and more of it than anyone looks at."""
    record = read_record(run_folder)
    images_FCHW = np.random.default_rng(1).integers(0, 256, (300, 3, 160, 160), dtype=np.uint8)
    names = [cell.name for cell in record.cells if cell.accuracy and cell.accuracy.right_to_wrong]
    cells = {
        name: CellFlips(row_M=np.arange(i * 24, i * 24 + 24), answer_M=np.ones(24, np.int64), reference_M=np.zeros(24, np.int64))
        for i, name in enumerate(names)
    }
    flips = Flips(image_F=np.arange(300), images_FCHW=images_FCHW, label_F=np.zeros(300, np.int64), cells=cells)
    write_flips(run_folder, flips)
    # Each artifact flips other images, so that none is shown once for all.
    changed = [
        cell.model_copy(update={"accuracy": cell.accuracy.model_copy(update={"right_to_wrong": tuple(range(i, i + 24))})})
        if cell.accuracy and cell.name in names
        else cell
        for i, cell in enumerate(record.cells)
    ]
    write_reports(run_folder, record.model_copy(update={"cells": tuple(changed)}))
    assert (run_folder / "report.html").stat().st_size < LIMIT_BYTES


def test_grayscale_images_are_shown(run_folder):
    images_FCHW = np.zeros((3, 1, 28, 28), np.uint8)
    cells = {"onnxruntime/int8/cpu": CellFlips(row_M=np.array([0]), answer_M=np.array([1]), reference_M=np.array([0]))}
    write_flips(run_folder, Flips(image_F=np.array([3, 4, 5]), images_FCHW=images_FCHW, label_F=np.zeros(3, np.int64), cells=cells))
    write_reports(run_folder, read_record(run_folder))
    assert "data:image/png;base64," in (run_folder / "report.html").read_text(encoding="utf-8")


def test_charts_are_files_that_a_pull_request_shows(run_folder):
    write_reports(run_folder, read_record(run_folder))
    text = (run_folder / "report.md").read_text(encoding="utf-8")
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert names == ["report-tradeoff.svg", "report-latency.svg"]
    for name in names:
        root = ET.fromstring((run_folder / name).read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme:dark" in "".join(root.itertext())
        assert "onnxruntime int8" in "".join(root.itertext())


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_stand_out(theme):
    """WCAG 2.2: 4.5 for text; marks carry shapes and names too, so 1.8 is enough to see them."""
    ink = _INK[theme]
    for name in ("ink", "soft", "ship"):
        assert contrast(ink[name], ink["paper"]) >= 4.5, name
    for colour in LIGHT if theme == "light" else DARK:
        assert contrast(colour, ink["paper"]) >= 1.8, colour


def test_a_resumed_run_has_a_part_for_each_machine(run_folder, make_cell, make_record):
    from deploycnn.record import Session

    record = read_record(run_folder)
    (only_machine,) = record.environments
    waiting = next(cell for cell in record.cells if cell.outcome.state == "deferred")
    finished = make_cell("tensorrt", "int8", 2e-5, target="cuda:sm89", machine="other")
    session = Session(
        machine="other",
        folder="resumed/1",
        deploycnn_version="0.1.0",
        created="2026-12-01T00:00:00+00:00",
        command="deploycnn resume",
        finished={finished.name: waiting.name},
        reference=make_cell("torch", "fp32", 2e-4, machine="other"),
        noise_floor={"1": Interval(value=1.0, low=0.99, high=1.01)},
    )
    cells = tuple(finished if cell.name == waiting.name else cell for cell in record.cells)
    environments = {**record.environments, "other": record.environments[only_machine]}
    write_reports(run_folder, record.model_copy(update={"cells": cells, "environments": environments, "sessions": (session,)}))
    page = Page((run_folder / "report.html").read_text(encoding="utf-8"))
    assert page.faults == []
    assert page.having("data-part") == ["1", "2"]
    ids = page.having("id")
    assert len(ids) == len(set(ids))
    assert {"m1-verdict", "m2-verdict"} <= set(ids)
    text = (run_folder / "report.md").read_text(encoding="utf-8")
    assert "report-tradeoff-1.svg" in text
    assert "report-tradeoff-2.svg" in text
