"""What a precision is: it makes a variant of the fp32 graph, and proves that the file can be used."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from deploycnn.errors import PrecisionError
from deploycnn.recipe import CalibrateOptions
from deploycnn.record import Accuracy
from deploycnn.types import Int8Form, Interval, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class Jury:
    """Who judges the choices of a precision that searches. Test images are never among what it sees."""

    images_NCHW: np.ndarray  # uint8, the validation part
    assess: Callable[[np.ndarray, np.ndarray], Accuracy]  # logits and fp32 logits of those images, float32 (N, K)
    ratio: Callable[[Variant], Interval | None]  # measured time over that of the fp32 graph; None: nothing of that form runs here
    measured_on: str  # where `ratio` measures: `onnxruntime, batch 1`
    folder: Path  # what was judged already, to go on with; outlives the attempt


class Precision(abc.ABC):
    """One precision.

    Args:
        calibrate: how activation ranges are taken from the calibration images.
        jury: for precisions that search; None: they judge with what they have.
    """

    name: ClassVar[str]
    quantised: ClassVar[bool] = False  # comes in the forms of Int8Form
    uses_calibration: ClassVar[bool] = False  # what it makes depends on the calibration images
    searches: ClassVar[bool] = False  # asks a jury
    trains: ClassVar[bool] = False  # is made from a graph whose weights were trained for it
    exact: ClassVar[bool] = False  # the same numbers as the fp32 graph, up to the order of additions

    def __init__(self, calibrate: CalibrateOptions | None = None, jury: Jury | None = None) -> None:
        self.calibrate = calibrate if calibrate is not None else CalibrateOptions()
        self.jury = jury

    @abc.abstractmethod
    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """Writes the variant's file in `folder`, loads it back and runs it.

        Args:
            graph: the fp32 variant.
            form: for quantised precisions, what the target needs.
            calibration_NCHW: uint8 images; may be empty where `uses_calibration` is False.
            folder: where the file goes.
            progress: told about long steps.

        Raises:
            PrecisionError: it cannot be made from this graph or these images, or is wrong when made.
        """


def check_parent(graph: Variant, precision: str) -> None:
    """Refuses to make a variant of anything but an fp32 graph."""
    if graph.precision != "fp32":
        raise PrecisionError(
            f"{precision} is made from an fp32 graph", found=f"the graph is {graph.precision} already", remedy="give the fp32 model"
        )
