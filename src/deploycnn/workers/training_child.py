"""The child's side of a worker that trains: `python -m deploycnn.workers.training_child CONNECTION_FD LIFELINE_FD CORES`."""

from __future__ import annotations

import sys

from deploycnn.types import ProgressCallback
from deploycnn.workers.child import Served, main


def _trainer(progress: ProgressCallback) -> Served:
    from deploycnn.workers.trainer import Trainer  # numpy and the frameworks: not before the process is confined

    return Trainer(progress)


if __name__ == "__main__":
    main(sys.argv[1:], _trainer)
