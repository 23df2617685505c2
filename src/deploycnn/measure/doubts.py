"""Reasons not to trust a measurement fully, each with what would remove it. Thresholds are constants here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from deploycnn import stats, units
from deploycnn.environment import Cpu
from deploycnn.measure.estimates import Pairing, Row
from deploycnn.measure.watch import MachineFacts
from deploycnn.recipe import MeasureOptions
from deploycnn.types import Doubt, Interval

SHORT_BLOCK_S = 0.01  # below it, a timer interrupt (1 to 10 ms apart) makes or breaks a block
SHORT_RUN_S = 1e-6  # below it, the clock's own cost shows
DRIFT_P = 0.01  # of the trend test
RESTARTS_P = 0.01  # of restarts that differ no more than blocks do
OTHER_LOAD_CORES = 0.2
STOLEN_SHARE = 0.01
FREQUENCY_SWING = 0.05
SWAP_BYTES = 16e6
SPEED_CHANGE = 0.07  # of the fixed work between restarts; its own memory layout moves it by a few percent


def row_doubts(
    row: Row, pairing: Pairing | None, options: MeasureOptions, *, steady: bool, control: Pairing | None = None
) -> tuple[Doubt, ...]:
    """Doubts about one artifact at one batch size.

    Args:
        pairing: with the reference, None for the reference itself.
        control: with the fixed work, where it was measured.
    """
    found = [_short(row, options), _drift(row, options), _restarts(row, pairing, control, options), None if steady else _unsteady()]
    return tuple(doubt for doubt in found if doubt is not None)


def noisy_doubt(p50_s: Interval, ratio: Interval | None, options: MeasureOptions) -> Doubt:
    """For a row whose intervals stayed wider than asked."""
    width = max(stats.half_width(interval) for interval in (p50_s, ratio) if interval is not None)
    return Doubt(
        kind="noisy",
        what=f"known to ±{units.percent(width, 1)}, asked was ±{units.percent(options.interval, 1)}",
        remedy="raise measure.budget_s or measure.processes, or quiet the machine",
    )


def _short(row: Row, options: MeasureOptions) -> Doubt | None:
    samples = row.samples
    block_s = float(np.median(np.add.reduceat(samples.time_ns, np.cumsum(samples.runs_B) - samples.runs_B))) / 1e9
    if math.exp(float(np.median(row.log_median_B))) < SHORT_RUN_S:
        return Doubt(
            kind="short-runs",
            what="a run takes less than a microsecond, so the clock's own cost is part of what is reported",
            remedy="measure a larger batch",
        )
    if block_s < min(SHORT_BLOCK_S, 0.9 * options.block_s) or options.block_s < SHORT_BLOCK_S:
        return Doubt(
            kind="short-blocks",
            what=f"blocks last {units.seconds(block_s)}: one interrupt decides about a block",
            remedy=f"set measure.block_s to {SHORT_BLOCK_S} or more",
        )
    return None


def _drift(row: Row, options: MeasureOptions) -> Doubt | None:
    order = np.argsort(row.samples.start_s_B, kind="stable")
    change, p_value = stats.trend(row.log_median_B[order])
    if p_value >= DRIFT_P or abs(math.expm1(change)) <= options.interval:
        return None
    direction = "slower" if change > 0 else "faster"
    return Doubt(
        kind="drift",
        what=f"it got {units.percent(abs(math.expm1(change)), 1)} {direction} over the run; ratios are paired by round and suffer less",
        remedy="measure longer, on a machine that is warm and has nothing else to do",
    )


def _restarts(row: Row, pairing: Pairing | None, control: Pairing | None, options: MeasureOptions) -> Doubt | None:
    """Restarts that differ by more than was asked for. By the ratio, which a drifting machine does not move.

    The reference has no ratio. Its own restarts must differ, and differ against the fixed work too: else the machine changed speed.
    """
    judged = [pairing.restarts] if pairing is not None else [row.restarts, *([control.restarts] if control is not None else [])]
    for restarts in judged:
        log_sd, p_value = stats.own_spread(restarts)
        if log_sd <= options.interval or p_value >= RESTARTS_P:
            return None
    say: Callable[[float], str] = units.seconds if pairing is None else units.ratio
    what = "medians" if pairing is None else "times over the reference's"
    medians = _medians(judged[0])
    return Doubt(
        kind="restarts-differ",
        what=f"{len(medians)} restarts differ, their {what} reach from {say(min(medians))} to {say(max(medians))}",
        remedy="raise measure.processes: which memory layout a start gets is part of the truth",
    )


def _medians(restarts: stats.Restarts) -> list[float]:
    """The median of every restart."""
    return [math.exp(float(np.median(restarts.log_B[restarts.process_B == process]))) for process in np.unique(restarts.process_B)]


def _unsteady() -> Doubt:
    return Doubt(
        kind="not-warm",
        what="it was still getting faster when warming up reached its limit",
        remedy="measure longer, or look whether it compiles or tunes while it runs",
    )


def speed_doubts(controls: Sequence[Row]) -> tuple[Doubt, ...]:
    """A doubt where fixed work took another time in one restart than in another. `controls`: its rows, one per batch size."""
    if not controls:
        return ()
    process_B = np.concatenate([row.samples.process_B for row in controls])
    log_median_B = np.concatenate([row.log_median_B for row in controls])
    medians_s = _medians(stats.Restarts(log_B=log_median_B, process_B=process_B))
    least_s, most_s = min(medians_s), max(medians_s)
    if most_s <= least_s * (1 + SPEED_CHANGE):
        return ()
    doubt = Doubt(
        kind="machine-speed",
        what=f"fixed work took from {units.seconds(least_s)} to {units.seconds(most_s)} between restarts; "
        "ratios are paired by round and hold",
        remedy="measure on a machine that nothing else shares",
    )
    return (doubt,)


def machine_doubts(cpu: Cpu, facts: MachineFacts, *, threads: int) -> tuple[Doubt, ...]:
    """Doubts about the machine while it was measured."""
    return (*_settings(cpu, threads), *_events(facts))


def _settings(cpu: Cpu, threads: int) -> list[Doubt]:
    found = []
    if cpu.governor not in (None, "performance"):
        found.append(
            Doubt(
                kind="frequency-scaling",
                what=f"the frequency governor is '{cpu.governor}', so speed depends on what ran before",
                remedy="sudo cpupower frequency-set --governor performance",
            )
        )
    if cpu.turbo:
        found.append(
            Doubt(
                kind="turbo",
                what="turbo is on, so speed depends on temperature and on how many cores are busy",
                remedy="switch turbo off for comparisons (intel_pstate/no_turbo or cpufreq/boost)",
            )
        )
    if threads > cpu.usable_cores:
        found.append(
            Doubt(
                kind="threads",
                what=f"{threads} threads on {cpu.usable_cores} usable cores wait for one another",
                remedy=f"set measure.threads to {cpu.usable_cores} or less",
            )
        )
    if cpu.quota_cores is not None and threads > cpu.quota_cores:
        found.append(
            Doubt(
                kind="cpu-quota",
                what=f"the control group grants {cpu.quota_cores:g} cores: longer work is put to sleep in the middle",
                remedy="raise the container's CPU limit, or use fewer threads",
            )
        )
    return found


def _events(facts: MachineFacts) -> list[Doubt]:
    found = []
    if facts.other_cores is not None and facts.other_cores > OTHER_LOAD_CORES:
        found.append(
            Doubt(
                kind="other-load",
                what=f"other processes kept {facts.other_cores:.1f} cores busy while measuring",
                remedy="stop them, or measure when they are done",
            )
        )
    if facts.stolen_share is not None and facts.stolen_share > STOLEN_SHARE:
        found.append(
            Doubt(
                kind="stolen-time",
                what=f"the hypervisor gave {units.percent(facts.stolen_share, 1)} of the time to other machines",
                remedy="measure on a dedicated machine, or trust ratios only",
            )
        )
    if facts.throttled:
        found.append(
            Doubt(
                kind="throttling",
                what=f"the processor throttled {facts.throttled} times for heat while measuring",
                remedy="cool it, lower its load, or measure shorter",
            )
        )
    if facts.frequency_swing is not None and facts.frequency_swing > FREQUENCY_SWING:
        found.append(
            Doubt(
                kind="frequency-moved",
                what=f"the clock frequency moved by {units.percent(facts.frequency_swing, 0)} between rounds",
                remedy="fix the frequency (performance governor, turbo off)",
            )
        )
    if facts.swapped_bytes is not None and facts.swapped_bytes > SWAP_BYTES:
        found.append(
            Doubt(
                kind="swap",
                what=f"{units.size(facts.swapped_bytes)} went to or came from swap while measuring",
                remedy="free memory, or measure fewer artifacts at a time",
            )
        )
    return found
