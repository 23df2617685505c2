"""The control's process: `python -m deploycnn.measure.control_child CORE...`. Reads a block's length in seconds per line of
standard input, answers with the number of bytes (8 bytes, little-endian) and one int64 of nanoseconds per run. Ends with
its input."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SIDE = 96  # of the matrices: 108 kB in all, at home in a second-level cache


def main(cores: list[str]) -> None:
    """Serves blocks until standard input ends."""
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores})
    import numpy as np  # not before the process is pinned

    from deploycnn.measure.clock import timed_block, timed_for

    work = _Work(np.random.default_rng(0).normal(size=(2, SIDE, SIDE)).astype(np.float32))
    run_s = float(np.median(timed_block(work, 50))) / 1e9
    for line in sys.stdin.buffer:
        block_s = float(line)
        samples_ns = timed_for(work, block_s, run_s) if block_s else np.empty(0, dtype=np.int64)
        sys.stdout.buffer.write(samples_ns.nbytes.to_bytes(8, "little") + samples_ns.tobytes())
        sys.stdout.buffer.flush()


class _Work:
    """What is timed."""

    def __init__(self, matrices_2NN: np.ndarray) -> None:
        import numpy as np

        self._a_NN, self._b_NN = matrices_2NN
        self._product_NN, self._copy_NN = np.empty_like(self._a_NN), np.empty_like(self._a_NN)
        self._matmul, self._maximum, self._copyto = np.matmul, np.maximum, np.copyto

    def run(self) -> None:
        self._matmul(self._a_NN, self._b_NN, out=self._product_NN)
        self._maximum(self._product_NN, 0.0, out=self._product_NN)
        self._copyto(self._copy_NN, self._product_NN)

    def synchronise(self) -> None:
        return


if __name__ == "__main__":
    main(sys.argv[1:])
