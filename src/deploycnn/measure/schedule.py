"""Who runs when: short blocks of all artifacts in random order, round after round, over several restarts of each.

One generation starts every artifact anew. In it, batch size after batch size, every artifact is warmed up until steady
(see clock.warm_up) and then runs one block a round, in an order drawn for each round, only one at a time. A machine that drifts
slows all of a round alike, and layout luck changes with each generation.

A slot (one batch size in one generation) ends when every median and every ratio to the reference is known within
`MeasureOptions.interval`, or when its share of the budget is spent; never before its share of `min_rounds`. An artifact
that is known well enough skips most rounds. What restarts add cannot be narrowed by more rounds, so where it is too wide and
budget is left, further generations are added. The budget covers everything, starts included; only the rounds that a result needs
overrun it.

The stopping rule looks at the data, as any sequential fixed-width procedure; for widths that are small against the
spread its intervals keep their confidence (Chow & Robbins 1965).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploycnn.errors import DeployError
from deploycnn.measure.estimates import Row, median_intervals, ratio_intervals
from deploycnn.recipe import MeasureOptions
from deploycnn.samples import Samples, sample_name
from deploycnn.stats import half_width
from deploycnn.types import Progress, ProgressCallback

T = TypeVar("T")

TWIN = "#again"  # ends the key of the reference's second copy
DEVICE = "#device"  # ends the key of an artifact's rows whose boundary is the device
CONTROL = "control"  # key of the work that is the same in every run, see control.py
CHECK_EVERY = 4  # fewest rounds between looks at the intervals
CHECK_GROWTH = 1.2  # each look comes after so many times the rounds of the last: looking costs more, the more was measured
LOOK_DRAWS = 300  # bootstrap replicates of a look
SKIP = 3  # an artifact that is narrow enough runs in every SKIP-th round
MOST_GENERATIONS = 5  # times MeasureOptions.processes


class Contender(Protocol):
    """An artifact in a process of its own. Any method may raise DeployError: it is then dropped and the rest goes on."""

    @property
    def key(self) -> str:
        """The cell's name; the reference's second copy has `twin_of(reference)`."""
        ...

    @property
    def batches(self) -> Sequence[int]:
        """The batch sizes that it can run."""
        ...

    def start(self, process: int) -> None:
        """Starts a fresh process, its number `process` counted from 0, and loads the artifact. Idle afterwards."""
        ...

    def ready(self, batch: int) -> bool:
        """Binds a batch of that size and warms up. True: steady, False: still getting faster when the limit was reached."""
        ...

    def block(self) -> NDArray[np.int64]:
        """Nanoseconds of each run of one block of the bound batch: back to back, `MeasureOptions.block_s` or a little longer."""
        ...

    def stop(self) -> None:
        """Ends the process and leaves nothing behind. Also called after a failure; harmless when nothing runs."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """A contender that may also tell device time."""

    def device_block(self) -> NDArray[np.int64] | None:
        """Nanoseconds of one run on the device, of the batch that `block` ran, shape (1,); None: it does not tell."""
        ...


def twin_of(reference: str) -> str:
    """Key of the second copy of the reference, whose ratio to the first is the noise floor (A/A)."""
    return reference + TWIN


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured. Samples by `sample_name(key, batch)`: the twin's and the control's among them, and under `key + DEVICE`
    device times, one sample a block."""

    samples: Mapping[str, Samples]
    unsteady: frozenset[str]  # names of rows that were not steady after warming up, in some generation
    dropped: Mapping[str, DeployError]  # by contender key; samples taken before are kept
    generations: int
    rounds: Mapping[int, int]  # by batch size
    spent_s: float


@dataclass
class _Lane:
    """One contender at one batch size, over all generations."""

    contender: Contender
    batch: int
    blocks: list[NDArray[np.int64]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    narrow: bool = False
    steady: bool = True

    def add(self, block: NDArray[np.int64], number: int, process: int, start_s: float) -> None:
        self.blocks.append(np.asarray(block, dtype=np.int64))
        self.rounds.append(number)
        self.processes.append(process)
        self.starts_s.append(start_s)

    def samples(self) -> Samples:
        return Samples(
            time_ns=np.concatenate(self.blocks),
            runs_B=np.array([block.size for block in self.blocks], dtype=np.int64),
            round_B=np.array(self.rounds, dtype=np.int64),
            process_B=np.array(self.processes, dtype=np.int64),
            start_s_B=np.array(self.starts_s, dtype=np.float64),
        )


def _silent(_: Progress) -> None:
    return


def measure(
    contenders: Sequence[Contender],
    options: MeasureOptions,
    *,
    reference: str | None = None,
    progress: ProgressCallback = _silent,
    between_rounds: Callable[[], None] = lambda: None,
    clock_s: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Measures all contenders at `options.batches`.

    Args:
        reference: key of the contender that ratios refer to; it runs in every round.
        between_rounds: called after every round, outside any block, for looking at the machine.
        clock_s: only decides when to stop; samples come from the contenders.

    Ctrl-C passes through, after every contender has been stopped.
    """
    return _Schedule(contenders, options, reference, progress, between_rounds, clock_s).run()


class _Schedule:
    def __init__(
        self,
        contenders: Sequence[Contender],
        options: MeasureOptions,
        reference: str | None,
        progress: ProgressCallback,
        between_rounds: Callable[[], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._options = options
        self._reference = reference
        self._progress = progress
        self._between_rounds = between_rounds
        self._clock_s = clock_s
        self._rng = np.random.default_rng(options.seed)
        self._alive = list(contenders)
        self._dropped: dict[str, DeployError] = {}
        self._rounds = dict.fromkeys(options.batches, 0)
        self._lanes = {(c.key, batch): _Lane(c, batch) for c in contenders for batch in options.batches if batch in c.batches}
        self._device_lanes: dict[tuple[str, int], _Lane] = {}
        self._begun_s = clock_s()
        self._blocks_done = 0

    def run(self) -> Measurement:
        process, overhead_s, took_s = 0, 0.0, 0.0
        while self._alive and (process < self._options.processes or self._worth_another(process, took_s)):
            begun_s = self._clock_s()
            overhead_s = self._generation(process, overhead_s)
            took_s = self._clock_s() - begun_s
            process += 1
        every = {**self._lanes, **self._device_lanes}
        lanes = {sample_name(key, batch): lane for (key, batch), lane in every.items() if lane.blocks}
        return Measurement(
            samples={name: lane.samples() for name, lane in lanes.items()},
            unsteady=frozenset(name for name, lane in lanes.items() if not lane.steady),
            dropped=self._dropped,
            generations=process,
            rounds=self._rounds,
            spent_s=self._clock_s() - self._begun_s,
        )

    def _left_s(self) -> float:
        return self._begun_s + self._options.budget_s - self._clock_s()

    def _worth_another(self, process: int, took_s: float) -> bool:
        """Whether restarts hold an interval open, and there is time for one more generation like the last."""
        if process >= MOST_GENERATIONS * self._options.processes or self._left_s() < took_s:
            return False
        return any(not self._wide(batch, restarts=True, share=1.0).isdisjoint(self._keys()) for batch in self._options.batches)

    def _keys(self) -> set[str]:
        return {contender.key for contender in self._alive}

    # --- one generation -----------------------------------------------------------------------

    def _generation(self, process: int, overhead_s: float) -> float:
        """Runs one generation; gives back what it spent on anything but rounds. `overhead_s` is what the last one did."""
        begun_s, rounds_s = self._clock_s(), 0.0
        try:
            for contender in list(self._alive):
                self._guarded(contender, lambda c=contender: c.start(process))  # type: ignore[misc]
            for index, batch in enumerate(self._options.batches):
                lanes = self._ready_lanes(batch)
                slot_begun_s = self._clock_s()
                if lanes:
                    slots_left = len(self._options.batches) - index
                    self._slot(batch, lanes, process, slot_begun_s + self._slot_s(process, slots_left, overhead_s))
                rounds_s += self._clock_s() - slot_begun_s
        finally:
            self._stop_all()
        return self._clock_s() - begun_s - rounds_s

    def _slot_s(self, process: int, slots_left: int, overhead_s: float) -> float:
        """This slot's share of the budget that is left, less what the generations to come will spend on starting."""
        to_come = max(0, self._options.processes - process - 1)
        free_s = self._left_s() - overhead_s * to_come
        return max(0.0, free_s) / (slots_left + to_come * len(self._options.batches))

    def _ready_lanes(self, batch: int) -> list[_Lane]:
        lanes = [lane for lane in self._lanes.values() if lane.batch == batch and lane.contender in self._alive]
        for index in self._rng.permutation(len(lanes)):
            lane = lanes[index]
            steady = self._guarded(lane.contender, lambda lane=lane: lane.contender.ready(batch))  # type: ignore[misc]
            lane.steady = lane.steady and steady is not False
            lane.narrow = False
        return [lane for lane in lanes if lane.contender in self._alive]

    def _slot(self, batch: int, lanes: list[_Lane], process: int, until_s: float) -> None:
        share = min(1.0, (process + 1) / self._options.processes)
        fewest = math.ceil(self._options.min_rounds / self._options.processes)
        n_rounds, next_look = 0, fewest
        while lanes and (n_rounds < fewest or self._clock_s() < until_s):
            self._round(batch, lanes, process, n_rounds)
            n_rounds += 1
            lanes = [lane for lane in lanes if lane.contender in self._alive]
            if n_rounds >= next_look:
                next_look = max(n_rounds + CHECK_EVERY, math.ceil(n_rounds * CHECK_GROWTH))
                wide = self._wide(batch, restarts=False, share=share)
                for lane in lanes:
                    lane.narrow = lane.contender.key not in wide
                if all(lane.narrow for lane in lanes):
                    return

    def _round(self, batch: int, lanes: list[_Lane], process: int, n_rounds: int) -> None:
        number = self._rounds[batch]
        for index in self._rng.permutation(len(lanes)):
            lane = lanes[index]
            if lane.narrow and n_rounds % SKIP and not self._always(lane.contender.key):
                continue
            start_s = self._clock_s() - self._begun_s
            block = self._guarded(lane.contender, lane.contender.block)
            if block is None:
                continue
            lane.add(block, number, process, start_s)
            self._blocks_done += 1
            self._device_block(lane, number, process)
        self._rounds[batch] += 1
        self._between_rounds()
        self._report(batch, process, number)

    def _device_block(self, lane: _Lane, number: int, process: int) -> None:
        """Device time right after the block, of the same batch. It takes no part in deciding when to stop."""
        contender = lane.contender
        if isinstance(contender, OnDevice):
            start_s = self._clock_s() - self._begun_s
            block = self._guarded(contender, contender.device_block)
            if block is not None:
                on_device = self._device_lanes.setdefault((contender.key + DEVICE, lane.batch), _Lane(contender, lane.batch))
                on_device.add(block, number, process, start_s)

    def _always(self, key: str) -> bool:
        return key in (self._reference, CONTROL)

    # --- the rest -----------------------------------------------------------------------------

    def _wide(self, batch: int, *, restarts: bool, share: float) -> set[str]:
        """Keys of contenders whose median or ratio is not known well enough. `share` of the data is in."""
        rows = {key: Row(lane.samples()) for (key, b), lane in self._lanes.items() if b == batch and lane.blocks}
        limit = self._options.interval / math.sqrt(share)
        confidence = self._options.confidence
        medians = median_intervals(rows, confidence, restarts=restarts, draws=LOOK_DRAWS)
        ratios = ratio_intervals(rows, self._reference or "", confidence, restarts=restarts, draws=LOOK_DRAWS)
        wide = {key for found in (medians, ratios) for key, interval in found.items() if half_width(interval) > limit}
        return wide - {CONTROL}  # it is measured along with the others; nobody asks how fast it is

    def _guarded(self, contender: Contender, call: Callable[[], T]) -> T | None:
        """The call's value; a DeployError drops the contender for good and gives None."""
        if contender not in self._alive:
            return None
        try:
            return call()
        except DeployError as error:
            self._dropped[contender.key] = error
            self._alive.remove(contender)
            self._stop(contender)
            return None

    def _stop_all(self) -> None:
        with contextlib.ExitStack() as stack:  # every one is stopped, also where Ctrl-C comes in between
            for contender in list(self._alive):
                stack.callback(self._stop, contender)

    def _stop(self, contender: Contender) -> None:
        try:
            contender.stop()
        except DeployError as error:
            self._dropped.setdefault(contender.key, error)
            if contender in self._alive:
                self._alive.remove(contender)

    def _report(self, batch: int, process: int, number: int) -> None:
        spent_s = self._clock_s() - self._begun_s
        expected = round(self._blocks_done * max(1.0, self._options.budget_s / spent_s)) if spent_s > 0 else 0
        note = f"batch {batch}, restart {process + 1} of {self._options.processes}, round {number + 1}"
        self._progress(Progress(done=self._blocks_done, total=expected, unit="blocks", note=note))
