"""The spread over calibration images: other draws, of training images only, the same again from the cache."""

from __future__ import annotations

import numpy as np

from deploycnn.pipeline import calibration
from deploycnn.pipeline.calibration import calibration_spreads
from deploycnn.types import Int8Form

FORM = Int8Form.CPU_U8S8_REDUCED


def test_five_draws_are_judged_on_validation_and_reused(context_with, small_graph, small_images, said):
    context = context_with(validate={"calibration_seeds": 5})
    made = {("fp32", None): small_graph.variant, ("int8", FORM): small_graph.variant, ("int8-auto", FORM): small_graph.variant}
    (spread,) = calibration_spreads(context, small_graph, small_images, made)
    assert (spread.precision, spread.int8_form, spread.seeds) == ("int8", FORM, (0, 1, 2, 3, 4))
    assert (spread.n_calibration, spread.n_images, len(spread.top1)) == (64, 100, 5)
    assert all(0 <= top1 <= 1 for top1 in (*spread.top1, spread.reference_top1))
    assert said.getvalue().count("spread over 5 draws") == 1
    assert calibration_spreads(context, small_graph, small_images, made) == (spread,)
    assert said.getvalue().count("spread over 5 draws") == 1, "the second one came from the cache"


def test_draws_differ_and_hold_training_images_only(context_with, small_graph, small_images, monkeypatch):
    drawn = []
    real = calibration.data.stratified

    def watched(labels_N, count, seed):
        chosen = real(labels_N, count, seed)
        drawn.append(small_images.splits.train_N[chosen])
        return chosen

    monkeypatch.setattr(calibration.data, "stratified", watched)
    calibration_spreads(context_with(validate={"calibration_seeds": 3}), small_graph, small_images, {("int8", FORM): small_graph.variant})
    assert len(drawn) == 3
    assert len({tuple(chosen.tolist()) for chosen in drawn}) == 3
    parts = small_images.splits
    for chosen in drawn:
        assert not np.isin(chosen, np.concatenate([parts.validation_N, parts.calibration_N])).any()


def test_it_can_be_switched_off(context_with, small_graph, small_images):
    made = {("int8", FORM): small_graph.variant}
    assert calibration_spreads(context_with(validate={"calibration_seeds": 0}), small_graph, small_images, made) == ()
    assert calibration_spreads(context_with(), small_graph, small_images, {("fp32", None): small_graph.variant}) == ()


def test_what_goes_wrong_is_a_warning_and_no_end(context_with, small_graph, small_images, said, tmp_path):
    broken = small_graph.variant.model_copy(update={"onnx_path": tmp_path / "gone.onnx"})
    graph = type(small_graph)(variant=broken, facts=small_graph.facts, reused=())
    assert calibration_spreads(context_with(), graph, small_images, {("int8", FORM): broken}) == ()
    assert "warning" in said.getvalue()
