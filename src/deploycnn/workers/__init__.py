"""One process per cell: compiles, loads, predicts and runs timed blocks there, so that a crash fails its cell only."""

from deploycnn.measure.clock import WarmUp
from deploycnn.workers.confine import pick_cores
from deploycnn.workers.protocol import LoadFacts, MemoryFacts
from deploycnn.workers.worker import Worker

__all__ = ["LoadFacts", "MemoryFacts", "WarmUp", "Worker", "pick_cores"]
