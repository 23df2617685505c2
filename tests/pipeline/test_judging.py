"""The jury of a search: validation images and their labels, a clock, a folder that outlives the attempt."""

from __future__ import annotations

import numpy as np
import pytest

from deploycnn.errors import DeployError
from deploycnn.pipeline import judging
from deploycnn.pipeline.judging import forget, jury_for, search_folder
from deploycnn.pipeline.planning import plan

DIGEST = "ab" * 32


@pytest.fixture
def context(context_with):
    measure = {"batches": [1], "block_s": 0.001}
    return context_with(backends={"torch": {}, "onnxruntime": {}}, precisions=["fp32", "int8-auto"], targets=["cpu"], measure=measure)


@pytest.fixture
def cells(context):
    return [planned for planned in plan(context.recipe, has_program=True) if planned.cell.precision == "int8-auto" and planned.runs_here]


def test_it_sees_validation_images_and_no_test_image(context, cells, small_graph, small_images):
    jury = jury_for(context, small_images, small_graph.variant, cells, DIGEST)
    train, chosen_N = small_images.dataset.train, small_images.splits.validation_N
    assert np.array_equal(jury.images_NCHW, train.images_NCHW[chosen_N])
    perfect_NK = np.eye(10, dtype=np.float32)[train.labels_N[chosen_N]]
    assert jury.assess(perfect_NK, perfect_NK).top1.value == 1
    assert jury.assess(np.roll(perfect_NK, 1, axis=1), perfect_NK).drop.value == 1
    assert jury.measured_on == "onnxruntime, batch 1"


def test_what_was_judged_is_kept_until_it_is_forgotten(context, cells, small_graph, small_images):
    jury = jury_for(context, small_images, small_graph.variant, cells, DIGEST)
    (jury.folder / "judgements.json").write_text("{}")
    assert jury.folder == search_folder(context, DIGEST)
    assert (search_folder(context, DIGEST) / "judgements.json").exists()
    assert search_folder(context, "cd" * 32) != jury.folder
    forget(context, DIGEST)
    assert not (search_folder(context, DIGEST) / "judgements.json").exists()


def test_without_a_cell_that_runs_here_nothing_is_timed(context, small_graph, small_images):
    jury = jury_for(context, small_images, small_graph.variant, [], DIGEST)
    assert jury.ratio(small_graph.variant) is None
    assert jury.measured_on == ""


def test_a_candidate_that_does_not_compile_has_no_time_and_says_so(context, cells, small_graph, small_images, said, monkeypatch):
    def fails(*arguments):
        raise DeployError("no such kernel", remedy="none")

    monkeypatch.setattr(judging, "_measured_ratio", fails)
    jury = jury_for(context, small_images, small_graph.variant, cells, DIGEST)
    assert jury.ratio(small_graph.variant) is None
    assert "no such kernel" in said.getvalue()


@pytest.mark.slow
def test_a_graph_takes_as_long_as_itself(context, cells, small_graph, small_images):
    ratio = jury_for(context, small_images, small_graph.variant, cells, DIGEST).ratio(small_graph.variant)
    assert ratio is not None
    assert ratio.low <= ratio.value <= ratio.high
    assert 0.5 < ratio.value < 2
