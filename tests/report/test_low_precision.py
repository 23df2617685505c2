"""What the reports say about int8: layers, calibration images, their spread, why it is slow, and what answers changed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deploycnn.environment import environment
from deploycnn.pipeline.reporting import write_reports
from deploycnn.recipe import RecommendOptions
from deploycnn.record import CalibrationFacts, CalibrationSpread, RooflinePoint, VariantFacts
from deploycnn.report import low_precision
from deploycnn.report.answers import SHOWN, answer_rows
from deploycnn.report.markdown import markdown
from deploycnn.report.recommend import recommend
from deploycnn.report.terminal import render
from deploycnn.types import Evidence, Int8Form, Interval, LayerChoice, LayerEvidence

FORM = Int8Form.CPU_U8S8_REDUCED


def ran_in(*precisions, **changes):
    layers = tuple(LayerEvidence(name=f"layer{i}", op="Conv", precision=precision) for i, precision in enumerate(precisions))
    return Evidence(source="profiler", provider="CPU", layers=layers, **changes)


def choice(node, precision, share, alone):
    return LayerChoice(node=node, op="Conv", macs_share=share, alone=alone, precision=precision)


@pytest.fixture
def record(make_record, make_cell):
    found = make_record(
        make_cell("torch", "fp32", 2e-4, ran=ran_in("float32", "float32")),
        make_cell("onnxruntime", "fp32", 1e-4, ran=ran_in("float32", "float32")),
        make_cell("onnxruntime", "int8", 2e-4, ran=ran_in("int8", "int8"), int8_form=FORM),
        make_cell("onnxruntime", "int8-auto", 9e-5, ran=ran_in("int8", "float32"), int8_form=FORM),
        variants=(
            VariantFacts(precision="int8", int8_form=FORM, sha256="4" * 64, size_bytes=1),
            VariantFacts(
                precision="int8-auto",
                int8_form=FORM,
                sha256="5" * 64,
                size_bytes=1,
                notes=("plain int8: loses 7.00 pp",),
                layers=(choice("node_conv2d_2", "float32", 0.25, 0.31), choice("node_conv2d", "int8", 0.75, 0.02)),
            ),
        ),
        calibration_spreads=(
            CalibrationSpread(
                precision="int8",
                int8_form=FORM,
                n_calibration=512,
                n_images=5000,
                reference_top1=0.7412,
                top1=(0.74, 0.7424, 0.739, 0.741, 0.7402),
                seeds=(0, 1, 2, 3, 4),
            ),
        ),
    )
    facts = CalibrationFacts(n_images=100, per_class={"cat": 98, "dog": 2}, missing=("emu",), sha256="6" * 64)
    return found.model_copy(update={"data": found.data.model_copy(update={"calibration": facts})})


def texts(record, folder):
    """What each kind of report says, in one line."""
    recommendation = recommend(record, RecommendOptions())
    stream = io.StringIO()
    render(record, recommendation, Console(file=stream, width=80, force_terminal=False, highlight=False))
    write_reports(folder, record)
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    raw = {"terminal": stream.getvalue(), "markdown": markdown(record, recommendation), "html": html}
    return {kind: " ".join(text.split()) for kind, text in raw.items()}


def test_every_report_says_what_int8_rests_on(record, tmp_path):
    said = texts(record, tmp_path)
    for text in said.values():
        assert "1 of 2 layers in float, 75.0 % of the multiply-adds in int8" in text
        assert "takes 2.00x the time of fp32" in text
        assert "5 draws of 512 images, 5,000 validation images" in text
        assert "73.90 %" in text
        assert "0.34 pp" in text
    for kind in ("markdown", "html"):
        for fact in ("node_conv2d_2", "0.31", "plain int8: loses 7.00 pp", "2 to 98 a class; none of emu", "6" * 64):
            assert fact in said[kind], (kind, fact)
        assert "1 fp32, 1 int8" in said[kind], "what int8-auto asked for"
    assert "| onnxruntime int8 | int8 | 2 int8 | pass | profiler, CPU |" in said["markdown"]


def test_nothing_is_said_where_there_is_nothing_to_say(make_record, make_cell, tmp_path):
    plain = make_record(make_cell("torch", "fp32"))
    assert low_precision.audit(plain) == []
    assert low_precision.spreads(plain) == []
    assert low_precision.choices(plain) == []
    assert low_precision.slower(plain) == []
    for text in texts(plain, tmp_path).values():
        assert "Calibration images" not in text
        assert "Slower than fp32" not in text


def test_an_int8_auto_that_needed_no_repair_says_so(record):
    plain = record.variants[1].model_copy(update={"layers": ()})
    (table,) = low_precision.choices(record.model_copy(update={"variants": (plain,)}))
    assert table.rows == ()
    assert "every layer is int8" in table.summary


# --- slower, and why --------------------------------------------------------------------------


def on_a_cpu_with(record, *instruction_sets):
    here = environment()
    changed = here.model_copy(update={"cpu": here.cpu.model_copy(update={"instruction_sets": instruction_sets})})
    return record.model_copy(update={"environments": {here.id: changed}})


def point(bound, share):
    return RooflinePoint(batch=1, flops=1e6, bytes=1e5, floor_s=share * 2e-4, share=share, bound=bound, sentence="")


@pytest.mark.parametrize(
    ("sets", "changes", "words"),
    [
        (("avx2",), {}, "no VNNI"),
        (("avx2", "avx512_vnni"), {}, "the machine gives no reason"),
        (("neon", "dotprod"), {}, "the machine gives no reason"),
        (("avx_vnni",), {"rooflines": (point("launch", 0.1),)}, "dispatch-bound"),
        (("avx_vnni",), {"rooflines": (point("compute", 0.1),)}, "too small: at this machine's peaks the work takes 20.0 µs of 200 µs"),
        (("avx_vnni",), {"rooflines": (point("compute", 0.6),)}, "the machine gives no reason"),
        (("avx_vnni",), {"ran": ran_in("float32", simulated=True)}, "int8 is simulated"),
        (("avx_vnni",), {"ran": ran_in("float32")}, "no native int8 kernels: the layers ran in fp32"),
    ],
)
def test_slower_int8_is_printed_with_the_reason_that_the_machine_gives(make_record, make_cell, sets, changes, words):
    """CASES P6."""
    changes = {"ran": ran_in("int8"), **changes}
    record = make_record(make_cell("onnxruntime", "fp32", 1e-4), make_cell("onnxruntime", "int8", 2e-4, **changes))
    found = low_precision.slower(on_a_cpu_with(record, *sets))
    assert [remark.who for remark in found] == ["onnxruntime int8 batch 1", "onnxruntime int8 batch 32"]
    assert words in found[0].why
    assert ("no VNNI" in found[0].why) == (words == "no VNNI")


@pytest.mark.parametrize(("precision", "has"), [("fp16", "avx512_fp16"), ("bf16", "amx_bf16")])
def test_a_cpu_without_that_arithmetic_is_the_reason_and_not_the_size(make_record, make_cell, precision, has):
    kind = {"fp16": "float16", "bf16": "bfloat16"}[precision]
    slow = make_cell("tvm", precision, 6e-3, ran=ran_in(kind), rooflines=(point("compute", 0.01),))
    record = make_record(make_cell("tvm", "fp32", 1e-4), slow)
    without = low_precision.slower(on_a_cpu_with(record, "avx2"))[0].why
    assert f"no {precision} arithmetic" in without
    assert "too small" not in without
    assert "arithmetic" not in low_precision.slower(on_a_cpu_with(record, "avx2", has))[0].why


def test_faster_or_no_different_is_not_called_slower(make_record, make_cell, make_latency):
    close = make_cell("onnxruntime", "int8", latencies=(make_latency(1, 1.01e-4),))
    faster = make_cell("openvino", "int8", 5e-5)
    record = make_record(make_cell("onnxruntime", "fp32", 1e-4), make_cell("openvino", "fp32", 1e-4), close, faster)
    assert low_precision.slower(record) == []


def test_ratios_that_are_paired_decide_before_medians_do(make_record, make_cell, make_latency):
    """Medians that a busy machine blurred; by round int8 is slower, beyond both intervals."""

    def row(ratio):
        return (make_latency(1, 1e-4, share=0.5, ratio=Interval(value=ratio, low=ratio - 0.01, high=ratio + 0.01)),)

    fp32, int8 = make_cell("onnxruntime", "fp32", latencies=row(0.5)), make_cell("onnxruntime", "int8", latencies=row(0.6))
    assert len(low_precision.slower(make_record(fp32, int8))) == 1


# --- answers ----------------------------------------------------------------------------------


def test_answers_show_flips_by_number_class_confidence_and_calibration_error(make_record, make_cell, make_accuracy):
    changed = make_accuracy(0.68).model_copy(
        update={"right_to_wrong": tuple(range(10, 30)), "mean_confidence": 0.75, "ece": 0.09, "wrong_to_right": ()}
    )
    reference, row = answer_rows(make_record(make_cell("torch", "fp32"), make_cell("onnxruntime", "int8", accuracy=changed)))
    assert (reference.lost, reference.confidence, reference.ece) == ("reference", "80.00 %", "5.00 %")
    assert (row.lost, row.won) == ("20", "0")
    assert row.lost_images.startswith("10, 11, 12")
    assert row.lost_images.endswith(f"and {20 - SHOWN} more")
    assert row.won_images == ""
    assert row.worst_class == "cat -2.0 pp"
    assert row.confidence == "75.00 % (-5.00 pp)"
    assert row.ece == "9.00 % (+4.00 pp)"


def test_a_class_that_gains_is_not_called_a_loss(make_record, make_cell, make_accuracy):
    record = make_record(make_cell("torch", "fp32"), make_cell("onnxruntime", "int8", accuracy=make_accuracy(0.71)))
    assert answer_rows(record)[1].worst_class == "none lost"


def test_answers_are_in_markdown_and_html(record, tmp_path):
    said = texts(record, tmp_path)
    assert "`onnxruntime int8`, right to wrong: images 3, 5" in said["markdown"]
    assert "80.00 % (0.00 pp)" in said["markdown"]
    assert 'title="images 3, 5"' in said["html"]
    assert "80.00 % (0.00 pp)" in said["html"]
