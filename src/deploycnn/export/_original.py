"""A user's graph as it was, answering for pixels: the reference that the rewritten graph is proved against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploycnn.errors import ModelError
from deploycnn.export._interface import Interface
from deploycnn.export._proof import repeated
from deploycnn.graph import Runner
from deploycnn.types import Preprocessing

if TYPE_CHECKING:
    import numpy as np
    import onnx

LARGEST_FROZEN = 64  # batch sizes tried to find the one that a graph was frozen at


class Original:
    """The graph with preparation and batches around it.

    Args:
        model: as the user gave it.
        interface: what it takes, by its own word.
        preprocessing: for a float32 input.
        name: for messages.
        x_NCHW: real pixels, to find out which batch sizes really run.

    Raises:
        ModelError: it does not load, or runs at no batch size.
    """

    def __init__(
        self, model: onnx.ModelProto, interface: Interface, preprocessing: Preprocessing | None, name: str, x_NCHW: np.ndarray
    ) -> None:
        self._runner = Runner(model, name)
        self._interface = interface
        self._preprocessing = preprocessing
        self.fixed_batch = interface.fixed_batch or self._frozen_batch(x_NCHW)
        self.output_shape = self(x_NCHW[:1]).shape

    def __call__(self, x_NCHW: np.ndarray) -> np.ndarray:
        """The graph's output for pixels, (N, K) or (N, K, 1, 1), at the batch size that it takes."""
        import numpy as np

        batch = self.fixed_batch or len(x_NCHW)
        count = -(-len(x_NCHW) // batch) * batch
        x = self._fed(repeated(x_NCHW, count))
        return np.concatenate([self._runner.run(x[start : start + batch])[0] for start in range(0, count, batch)])[: len(x_NCHW)]

    def logits(self, x_NCHW: np.ndarray) -> np.ndarray:
        """As (N, K)."""
        found: np.ndarray = self(x_NCHW).reshape(len(x_NCHW), -1)
        return found

    def _frozen_batch(self, x_NCHW: np.ndarray) -> int | None:
        """The batch that the graph was frozen at although it says that its batch is dynamic, None where it is."""
        if self._runs(x_NCHW, 2) and self._runs(x_NCHW, 3):
            return None
        return next((batch for batch in range(1, LARGEST_FROZEN + 1) if self._runs(x_NCHW, batch)), None)

    def _runs(self, x_NCHW: np.ndarray, batch: int) -> bool:
        try:
            return len(self._runner.run(self._fed(repeated(x_NCHW, batch)))[0]) == batch
        except ModelError:
            return False

    def _fed(self, x_NCHW: np.ndarray) -> np.ndarray:
        """What the graph's own input takes, normalised in double precision."""
        import numpy as np

        x: np.ndarray = x_NCHW
        if self._interface.dtype == "float32" and self._preprocessing:
            mean, std = (np.array(v).reshape(1, -1, 1, 1) for v in (self._preprocessing.mean, self._preprocessing.std))
            x = ((x_NCHW / 255 - mean) / std).astype(np.float32)
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if self._interface.layout == "NHWC" else x
