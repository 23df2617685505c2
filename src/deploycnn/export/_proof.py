"""The proof that a graph computes what its model computes, at several batch sizes, on real images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deploycnn.errors import DeployError, ExportError
from deploycnn.graph import Runner

if TYPE_CHECKING:
    import numpy as np
    import onnx

TOLERANCE = 1e-4  # largest difference of a logit, times the largest logit where that is above 1
PROOF_BATCHES = (1, 3, 64, 65)
EXAMPLE_BATCH = 2  # what graphs are traced with; 3 is one more


def check_sample(x_NCHW: np.ndarray, shape_CHW: tuple[int, int, int]) -> None:
    """Refuses a sample that could prove nothing: empty, of another shape or type, or one image repeated.

    Raises:
        ExportError: which of these it is.
    """
    found = f"{x_NCHW.dtype} of shape {x_NCHW.shape}"
    if x_NCHW.dtype.name != "uint8" or x_NCHW.shape[1:] != tuple(shape_CHW):
        wanted = "x".join(map(str, shape_CHW))
        raise ExportError("the sample images do not fit the model", found=found, remedy=f"give uint8 images of {wanted}")
    if len(x_NCHW) < 2 or not (x_NCHW != x_NCHW[:1]).any():
        raise ExportError("the sample images prove nothing", found=f"{len(x_NCHW)} images, no two different", remedy="give real images")


def repeated(x_NCHW: np.ndarray, count: int) -> np.ndarray:
    """`count` images: the sample, over again where it is shorter."""
    import numpy as np

    return np.ascontiguousarray(np.resize(x_NCHW, (count, *x_NCHW.shape[1:])))


def difference(logits_NK: np.ndarray, reference_NK: np.ndarray) -> float:
    """Largest absolute difference over the larger of 1 and the largest reference logit; inf where not finite."""
    import numpy as np

    if not np.isfinite(logits_NK).all() or not np.isfinite(reference_NK).all():
        return float("inf")
    return float(np.abs(logits_NK - reference_NK).max() / max(1.0, float(np.abs(reference_NK).max())))


def prove(
    model: onnx.ModelProto,
    reference: Callable[[np.ndarray], np.ndarray],
    x_NCHW: np.ndarray,
    batches: tuple[int, ...],
    what: str,
    error: type[DeployError] = ExportError,
    tolerance: float = TOLERANCE,
) -> float:
    """Runs the graph at every batch size and compares logits with `reference` on the same images.

    Args:
        model: the graph, uint8 pixels in.
        reference: pixels (N, C, H, W) to logits (N, K).
        x_NCHW: real images, as many classes as possible: random noise gives 100 % agreement to wrong graphs.
        batches: sizes to run; each starts at the first image.
        what: names the graph in messages.
        error: kind of DeployError to raise.
        tolerance: see TOLERANCE.

    Returns:
        The largest difference found.

    Raises:
        DeployError: it does not run at one of the sizes, or the logits differ.
    """
    worst = 0.0
    with Runner(model, what, error=error) as runner:
        for batch in batches:
            pixels_NCHW = repeated(x_NCHW, batch)
            logits_NK, reference_NK = runner.run(pixels_NCHW)[0], reference(pixels_NCHW)
            if logits_NK.shape != reference_NK.shape:
                found = f"logits of shape {logits_NK.shape} where the model gives {reference_NK.shape}"
                raise error(
                    f"{what} is wrong at batch {batch}", found=found, remedy="keep the batch dimension: flatten(1), never view(n, -1)"
                )
            apart = difference(logits_NK, reference_NK)
            if not apart <= tolerance:
                found = f"largest logit difference {apart:.2g}, allowed {tolerance:.0e}, of the largest logit"
                raise error(f"{what} does not compute what the model computes at batch {batch}", found=found, remedy="report the model")
            worst = max(worst, apart)
    return worst
