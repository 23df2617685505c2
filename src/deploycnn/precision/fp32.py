"""The graph itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.precision._contract import Precision, check_parent
from deploycnn.types import Int8Form, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np


class Float32(Precision):
    """Nothing is made: the fp32 variant is the graph."""

    name = "fp32"
    exact = True

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """The graph, where it lies."""
        check_parent(graph, self.name)
        return graph
