"""The images behind the numbers: what artifacts answer differently from the reference, kept beside the record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deploycnn.record import Accuracy
from deploycnn.report.flips import CellFlips, Flips, write_flips

MOST_OF_A_CELL = 24  # a person looks at no more; the record counts them all


def keep_flips(
    folder: Path,
    images_NCHW: np.ndarray,
    labels_N: np.ndarray,
    accuracies: Mapping[str, Accuracy],
    logits_NK: Mapping[str, np.ndarray],
    reference_NK: np.ndarray,
) -> None:
    """Writes the flips of every cell, half of them right-to-wrong where there are as many.

    Args:
        folder: of the run.
        images_NCHW: uint8, all test images.
        labels_N: their classes.
        accuracies: by cell name; says which images flipped.
        logits_NK: by cell name, of the same images.
        reference_NK: logits of the reference.

    Raises:
        StoreError: the disk said no.
    """
    chosen = {name: _chosen(accuracy) for name, accuracy in accuracies.items()}
    image_F = np.unique(np.concatenate([np.zeros(0, np.int64), *chosen.values()]))
    cells = {
        name: CellFlips(
            row_M=np.searchsorted(image_F, image_M),
            answer_M=_answers(logits_NK[name][image_M]),
            reference_M=_answers(reference_NK[image_M]),
        )
        for name, image_M in chosen.items()
        if len(image_M)
    }
    images_FCHW = np.ascontiguousarray(images_NCHW[image_F])
    write_flips(folder, Flips(image_F=image_F, images_FCHW=images_FCHW, label_F=labels_N[image_F].astype(np.int64), cells=cells))


def _chosen(accuracy: Accuracy) -> np.ndarray:
    """(M,) int64 indices of test images, the lost ones first."""
    lost, won = accuracy.right_to_wrong, accuracy.wrong_to_right
    n_lost = min(len(lost), max(MOST_OF_A_CELL // 2, MOST_OF_A_CELL - len(won)))
    return np.array([*lost[:n_lost], *won[: MOST_OF_A_CELL - n_lost]], dtype=np.int64)


def _answers(logits_MK: np.ndarray) -> np.ndarray:
    """(M,) int64 classes, -1 where a logit is NaN or inf."""
    finite_M = np.isfinite(logits_MK).all(axis=1)
    return np.where(finite_M, np.where(finite_M[:, None], logits_MK, 0).argmax(axis=1), -1)
