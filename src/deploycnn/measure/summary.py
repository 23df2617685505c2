"""Samples to figures. Everything here is derived from samples alone, so a record can be recomputed from its samples.npz."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deploycnn import stats
from deploycnn.measure.doubts import noisy_doubt, row_doubts, speed_doubts
from deploycnn.measure.estimates import Pairing, Row, ratio_intervals
from deploycnn.measure.schedule import CONTROL, DEVICE, twin_of
from deploycnn.recipe import MeasureOptions
from deploycnn.record import Latency
from deploycnn.samples import Samples, sample_name, split_name
from deploycnn.types import Doubt, Interval, Value


class Summary(Value):
    """Figures of a measurement: the twin and the control are not among the latencies."""

    latencies: Mapping[str, tuple[Latency, ...]]  # by cell name, ascending batch sizes
    device_latencies: Mapping[str, tuple[Latency, ...]] = {}  # likewise, with the boundary "device"
    noise_floor: Mapping[str, Interval]  # by batch size: the reference's second copy over its first
    doubts: tuple[Doubt, ...] = ()  # about the machine, from the fixed work


def summarise(
    samples: Mapping[str, Samples],
    options: MeasureOptions,
    *,
    reference: str | None = None,
    unsteady: frozenset[str] = frozenset(),
) -> Summary:
    """Figures of all rows.

    Args:
        samples: by `sample_name`, as `schedule.measure` and `read_samples` give them.
        options: what the samples were taken with.
        reference: cell that ratios refer to.
        unsteady: names of rows that were still getting faster after warming up.
    """
    latencies: dict[str, list[Latency]] = {}
    on_device: dict[str, list[Latency]] = {}
    floors: dict[str, Interval] = {}
    twin = twin_of(reference) if reference else None
    for batch in sorted({split_name(name)[1] for name in samples}):
        rows = {cell: Row(samples[name]) for name in samples for cell, b in [split_name(name)] if b == batch}
        host = {cell: row for cell, row in rows.items() if not cell.endswith(DEVICE)}
        ratios = ratio_intervals(host, reference or "", options.confidence)
        if twin in ratios:
            floors[str(batch)] = ratios[twin]
        spreads = dict(zip(host, stats.restart_spreads([row.restarts for row in host.values()]), strict=True))
        for cell, row in host.items():
            if cell in (twin, CONTROL):
                continue
            name = sample_name(cell, batch)
            pairing = Pairing(row, host[reference]) if reference in host and cell != reference else None
            fixed = Pairing(row, host[CONTROL]) if CONTROL in host else None
            control = fixed if fixed is not None and fixed.log_ratio_R.size else None
            latency = _latency(name, row, spreads[cell], options, ratios.get(cell))
            noisy = (noisy_doubt(latency.p50_s, latency.ratio, options),) if latency.noisy else ()
            doubts = (*noisy, *row_doubts(row, pairing, options, steady=name not in unsteady, control=control))
            latencies.setdefault(cell, []).append(latency.model_copy(update={"doubts": doubts}))
        device = {cell.removesuffix(DEVICE): row for cell, row in rows.items() if cell.endswith(DEVICE)}
        for cell, latency in _on_device(device, batch, options, reference).items():
            if cell != twin:
                on_device.setdefault(cell, []).append(latency)
    return Summary(
        latencies={cell: tuple(found) for cell, found in latencies.items()},
        device_latencies={cell: tuple(found) for cell, found in on_device.items()},
        noise_floor=floors,
        doubts=speed_doubts([Row(found) for name, found in samples.items() if split_name(name)[0] == CONTROL]),
    )


def _on_device(rows: Mapping[str, Row], batch: int, options: MeasureOptions, reference: str | None) -> dict[str, Latency]:
    """Device times, held against the reference's device time where it tells one. A sample is a block's mean: no percentiles of runs."""
    ratios = ratio_intervals(rows, reference or "", options.confidence)
    spreads = dict(zip(rows, stats.restart_spreads([row.restarts for row in rows.values()]), strict=True))
    found = {}
    for cell, row in rows.items():
        latency = _latency(sample_name(cell + DEVICE, batch), row, spreads[cell], options, ratios.get(cell))
        noisy = (noisy_doubt(latency.p50_s, latency.ratio, options),) if latency.noisy else ()
        tails = dict.fromkeys(("p90_s", "p95_s", "p99_s", "p999_s"))
        found[cell] = latency.model_copy(update={"boundary": "device", "doubts": noisy, **tails})
    return found


def _latency(name: str, row: Row, spread: stats.Spread, options: MeasureOptions, ratio: Interval | None) -> Latency:
    samples = row.samples
    _, batch = split_name(name)
    weights_RB = stats.block_weights(samples.process_B, seed=options.seed)

    def percentile(probability: float) -> Interval | None:
        if not stats.carries(samples.time_ns.size, probability):
            return None
        return stats.quantile_interval(row.pool_s, probability, confidence=options.confidence, spread=spread, weights_RB=weights_RB)

    p50_s = stats.quantile_interval(row.pool_s, 0.5, confidence=options.confidence, spread=spread, weights_RB=weights_RB)
    widths = [stats.half_width(interval) for interval in (p50_s, ratio) if interval is not None]
    return Latency(
        batch=batch,
        threads=options.threads,
        samples=name,
        n_samples=int(samples.time_ns.size),
        n_blocks=samples.n_blocks,
        n_rounds=int(np.unique(samples.round_B).size),
        n_processes=int(np.unique(samples.process_B).size),
        p50_s=p50_s,
        p90_s=percentile(0.90),
        p95_s=percentile(0.95),
        p99_s=percentile(0.99),
        p999_s=percentile(0.999),
        mean_s=float(samples.time_ns.mean()) / 1e9,
        min_s=float(samples.time_ns.min()) / 1e9,
        max_s=float(samples.time_ns.max()) / 1e9,
        images_per_s=images_per_s(samples, batch, options.confidence, spread),
        ratio=ratio,
        outliers=stats.count_outliers(samples.time_ns),
        noisy=max(widths) > options.interval,
    )


def images_per_s(samples: Samples, batch: int, confidence: float, spread: stats.Spread = stats.NO_SPREAD) -> Interval:
    """Images per second of back-to-back runs: the median over blocks of images over time, slow runs included."""
    block_s = np.add.reduceat(samples.time_ns, np.cumsum(samples.runs_B) - samples.runs_B) / 1e9
    log_rate_B = np.log(samples.runs_B * batch / np.maximum(block_s, 1e-9))
    return stats.paired_ratio_interval(log_rate_B, samples.process_B, confidence=confidence, spread=spread)
