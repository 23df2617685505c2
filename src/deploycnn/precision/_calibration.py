"""Calibration images, checked, and the range of every activation on them.

Ranges do not depend on how the images are batched: batches have one size, the last one is filled up and the filling
left out, and histograms are counted in a second pass over bins that the first pass fixed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.precision._tensors import float_tensors, observed
from deploycnn.precision._thresholds import BINS, entropy_threshold, percentile_range
from deploycnn.recipe import CalibrateOptions
from deploycnn.types import ProgressCallback, Value

if TYPE_CHECKING:
    import numpy as np
    import onnx

MINIMUM_IMAGES = 16
Ranges = Mapping[str, tuple[float, float]]  # lowest and highest value of each tensor, zero included


class CalibrationAudit(Value):
    """Which images ranges were taken from."""

    n_images: int
    per_class: Mapping[str, int]
    missing: tuple[str, ...]  # classes without an image
    sha256: str  # over the pixels


def audit_calibration(images_NCHW: np.ndarray, labels_N: np.ndarray, classes: tuple[str, ...]) -> CalibrationAudit:
    """Class balance and digest of a calibration set.

    Raises:
        PrecisionError: all images are of one class although there are several.
    """
    import numpy as np

    counts = np.bincount(labels_N, minlength=len(classes))
    per_class = {name: int(count) for name, count in zip(classes, counts, strict=True)}
    present = [name for name, count in per_class.items() if count]
    if len(present) < 2 <= len(classes):
        found = f"{len(labels_N)} images, " + (f"all of class {present[0]}" if present else "none of any class")
        raise PrecisionError("the calibration set shows one class only", found=found, remedy="take images of every class")
    digest = hashlib.sha256(np.ascontiguousarray(images_NCHW).tobytes()).hexdigest()
    missing = tuple(name for name, count in per_class.items() if not count)
    return CalibrationAudit(n_images=len(labels_N), per_class=per_class, missing=missing, sha256=digest)


def usable_images(images_NCHW: np.ndarray, shape_CHW: tuple[int, int, int]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The images that ranges may be taken from, and a note naming those that were left out.

    An image of one flat colour says nothing about activations and is left out.

    Raises:
        PrecisionError: another type or shape, too few images, or one image over and over; says the count.
    """
    if images_NCHW.dtype.name != "uint8" or images_NCHW.ndim != 4 or images_NCHW.shape[1:] != tuple(shape_CHW):
        wanted = f"uint8 of shape (N, {', '.join(map(str, shape_CHW))})"
        found = f"{images_NCHW.dtype} of shape {images_NCHW.shape}"
        raise PrecisionError("the calibration images do not fit the graph", found=found, remedy=f"give {wanted}")
    remedy = f"set data.calibration to {MINIMUM_IMAGES} or more; 512 is usual"
    if len(images_NCHW) < MINIMUM_IMAGES:
        found = f"{len(images_NCHW)} images, at least {MINIMUM_IMAGES} are needed"
        raise PrecisionError("the calibration set is too small", found=found, remedy=remedy)
    flat_N = (images_NCHW == images_NCHW[:, :, :1, :1]).all(axis=(1, 2, 3))
    kept_NCHW = images_NCHW[~flat_N]
    names = ", ".join(str(index) for index in flat_N.nonzero()[0][:10])
    if len(kept_NCHW) < MINIMUM_IMAGES:
        found = f"{int(flat_N.sum())} of {len(images_NCHW)} images are of one flat colour: numbers {names}"
        raise PrecisionError("the calibration set is too small", found=found, remedy=remedy)
    if not (kept_NCHW != kept_NCHW[:1]).any():
        found = f"{len(kept_NCHW)} times the same image"
        raise PrecisionError("the calibration set shows one image only", found=found, remedy="take different images")
    note = f"calibration images of one flat colour were left out: numbers {names}"
    return kept_NCHW, (note,) if flat_N.any() else ()


def calibrated_ranges(
    model: onnx.ModelProto, images_NCHW: np.ndarray, options: CalibrateOptions, fixed_batch: int | None, progress: ProgressCallback
) -> Ranges:
    """The range of every float activation.

    minmax takes what was seen. percentile leaves out the same share at both ends. entropy takes the range whose
    128-level histogram is nearest to the true one (Migacz, "8-bit inference with TensorRT", GTC 2017).

    Args:
        model: with value_info for all tensors.
        images_NCHW: usable images.
        options: the method.
        fixed_batch: the graph's batch where it is not dynamic.
        progress: told how many images are through, once per pass.

    Raises:
        PrecisionError: the graph does not run, or an activation is NaN or inf (names the node).
    """
    names = float_tensors(model)
    ranges = _seen(model, names, images_NCHW, fixed_batch, progress)
    if options.method == "minmax":
        return ranges
    counts = _histograms(model, names, ranges, images_NCHW, fixed_batch, progress)
    if options.method == "percentile":
        return {name: percentile_range(counts[name], *ranges[name], options.percentile) for name in names}
    return {name: entropy_threshold(counts[name], *ranges[name]) for name in names}


def _seen(
    model: onnx.ModelProto, names: list[str], images_NCHW: np.ndarray, fixed_batch: int | None, progress: ProgressCallback
) -> dict[str, tuple[float, float]]:
    import numpy as np

    ranges = dict.fromkeys(names, (0.0, 0.0))
    for tensors in observed(model, names, images_NCHW, fixed_batch, progress, "finding ranges"):
        for name, tensor in zip(names, tensors, strict=True):
            low, high = float(tensor.min(initial=0.0)), float(tensor.max(initial=0.0))
            if not np.isfinite([low, high]).all():
                node = next(node for node in model.graph.node if name in node.output)
                remedy = "mend the model: it works with NaN or inf in fp32 too"
                raise PrecisionError(f"node {node.name} ({node.op_type}) gives NaN or inf", found=name, remedy=remedy)
            ranges[name] = min(ranges[name][0], low), max(ranges[name][1], high)
    return ranges


def _histograms(
    model: onnx.ModelProto,
    names: list[str],
    ranges: Ranges,
    images_NCHW: np.ndarray,
    fixed_batch: int | None,
    progress: ProgressCallback,
) -> dict[str, np.ndarray]:
    """Counts of every tensor's values in BINS equal bins over its range."""
    import numpy as np

    counts = {name: np.zeros(BINS, np.int64) for name in names}
    for tensors in observed(model, names, images_NCHW, fixed_batch, progress, "counting values"):
        for name, tensor in zip(names, tensors, strict=True):
            low, high = ranges[name]
            if high > low:
                counts[name] += np.histogram(tensor, bins=BINS, range=(low, high))[0]
    return counts
