"""The flipped images of a run are the right ones, each kept once."""

from __future__ import annotations

import numpy as np
import pytest

from deploycnn.errors import RecordError
from deploycnn.pipeline.flips import MOST_OF_A_CELL, keep_flips
from deploycnn.recipe import ValidateOptions
from deploycnn.report.flips import FLIPS_NAME, read_flips
from deploycnn.validate.accuracy import judge

N, K = 400, 4


@pytest.fixture
def answered():
    """Images, labels, logits of a reference that is always right, and of artifacts that are wrong on chosen images."""
    labels_N = np.arange(N) % K
    images_NCHW = np.random.default_rng(0).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8)
    right_NK = np.eye(K, dtype=np.float32)[labels_N]

    def wrong_on(*images):
        logits_NK = right_NK.copy()
        logits_NK[list(images)] = np.roll(logits_NK[list(images)], 1, axis=1)
        return logits_NK

    return images_NCHW, labels_N, right_NK, wrong_on


def kept(folder, answered, logits_NK, reference_NK=None):
    images_NCHW, labels_N, right_NK, _ = answered
    reference_NK = right_NK if reference_NK is None else reference_NK
    classes = tuple("abcd")
    accuracies = {name: judge(logits, reference_NK, labels_N, classes, ValidateOptions()) for name, logits in logits_NK.items()}
    keep_flips(folder, images_NCHW, labels_N, accuracies, logits_NK, reference_NK)
    return read_flips(folder)


def test_each_flip_has_its_pixels_and_both_answers(tmp_path, answered):
    images_NCHW, labels_N, right_NK, wrong_on = answered
    logits_NK = {"torch/fp32/cpu": right_NK, "ort/int8/cpu": wrong_on(7, 250), "ort/int8/cuda:sm89": wrong_on(7, 9)}
    flips = kept(tmp_path, answered, logits_NK)
    assert flips.image_F.tolist() == [7, 9, 250]
    assert np.array_equal(flips.images_FCHW, images_NCHW[[7, 9, 250]])
    assert np.array_equal(flips.label_F, labels_N[[7, 9, 250]])
    assert set(flips.cells) == {"ort/int8/cpu", "ort/int8/cuda:sm89"}
    cell = flips.cells["ort/int8/cpu"]
    assert flips.image_F[cell.row_M].tolist() == [7, 250]
    assert cell.reference_M.tolist() == labels_N[[7, 250]].tolist()
    assert cell.answer_M.tolist() == ((labels_N[[7, 250]] + 1) % K).tolist()


@pytest.mark.parametrize(("n_lost", "n_won", "kept_lost", "kept_won"), [(100, 100, 12, 12), (100, 3, 21, 3), (2, 100, 2, 22), (5, 0, 5, 0)])
def test_no_more_are_kept_than_a_person_looks_at(tmp_path, answered, n_lost, n_won, kept_lost, kept_won):
    _, labels_N, _, wrong_on = answered
    flips = kept(tmp_path, answered, {"a/int8/cpu": wrong_on(*range(n_lost))}, wrong_on(*range(200, 200 + n_won)))
    cell = flips.cells["a/int8/cpu"]
    lost_M = cell.reference_M == labels_N[flips.image_F[cell.row_M]]
    assert (int(lost_M.sum()), int((~lost_M).sum())) == (kept_lost, kept_won)
    assert len(lost_M) <= MOST_OF_A_CELL


def test_an_answer_of_nan_is_none(tmp_path, answered):
    _, _, right_NK, _ = answered
    broken_NK = right_NK.copy()
    broken_NK[5] = np.nan
    flips = kept(tmp_path, answered, {"a/fp16/cpu": broken_NK})
    assert flips.cells["a/fp16/cpu"].answer_M.tolist() == [-1]


def test_a_run_without_flips_has_an_empty_file_and_an_old_run_none(tmp_path, answered):
    assert read_flips(tmp_path) is None
    flips = kept(tmp_path, answered, {"torch/fp32/cpu": answered[2]})
    assert flips.cells == {}
    assert len(flips.image_F) == 0


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"no archive"])
def test_a_damaged_file_is_named(tmp_path, answered, damage):
    kept(tmp_path, answered, {"a/int8/cpu": answered[3](1)})
    path = tmp_path / FLIPS_NAME
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match=FLIPS_NAME):
        read_flips(tmp_path)
