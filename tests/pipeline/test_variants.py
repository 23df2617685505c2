"""Variants of a run: one for each precision and form, from the cache the second time; one failure is its cells' alone."""

from __future__ import annotations

from deploycnn.pipeline.planning import plan
from deploycnn.pipeline.variants import make_variants, variant_facts
from deploycnn.precision import precision_class

BACKENDS = {"torch": {}, "onnxruntime": {}}


def sections(*precisions, **more):
    return {"backends": BACKENDS, "precisions": list(precisions), "targets": ["cpu"], **more}


def test_each_form_is_made_once_and_reused(context_with, small_graph, small_images, said):
    context = context_with(**sections("fp32", "fp16", "int8"))
    cells = plan(context.recipe, has_program=True)
    variants, after = make_variants(context, small_graph, small_images, cells)
    assert {precision for precision, _ in variants} == {"fp32", "fp16", "int8"}
    assert after == cells
    for facts in variant_facts(variants):
        made = variants[facts.precision, facts.int8_form]
        assert facts.size_bytes == made.onnx_path.stat().st_size
    again, _ = make_variants(context, small_graph, small_images, cells)
    assert {form: variant.sha256 for form, variant in again.items()} == {form: variant.sha256 for form, variant in variants.items()}
    assert said.getvalue().count("reused") == 3


def test_a_variant_that_cannot_be_made_fails_its_cells_and_no_others(context_with, small_graph, small_images, said, monkeypatch):
    from deploycnn.errors import PrecisionError

    def refuses(self, *arguments):
        raise PrecisionError("it cannot be halved", remedy="use bf16")

    monkeypatch.setattr(precision_class("fp16"), "make", refuses)
    context = context_with(**sections("fp32", "fp16"))
    variants, after = make_variants(context, small_graph, small_images, plan(context.recipe, has_program=True))
    assert {precision for precision, _ in variants} == {"fp32"}
    outcomes = {planned.cell.name: planned.cell.outcome for planned in after}
    assert outcomes["onnxruntime/fp32/cpu"].state == "done"
    failure = outcomes["onnxruntime/fp16/cpu"]
    assert failure.state == "failed"
    assert (failure.stage, failure.remedy) == ("precision", "use bf16")
    assert "it cannot be halved" in said.getvalue()


def test_quantisation_aware_training_of_an_onnx_file_says_what_to_do(context_with, small_graph, small_images):
    context = context_with(**sections("fp32", "int8-qat"))
    _, after = make_variants(context, small_graph, small_images, plan(context.recipe, has_program=True))
    failure = next(p.cell.outcome for p in after if p.cell.precision == "int8-qat" and p.cell.backend == "onnxruntime")
    assert failure.state == "failed"
    assert "cannot be trained" in failure.reason
    assert "int8-auto" in failure.remedy
