"""What stands behind a number: how many, how sure, measured where. The text of every tooltip."""

from __future__ import annotations

from collections.abc import Callable

from deploycnn import units
from deploycnn.record import Accuracy, Cell, Latency
from deploycnn.report.costs import energy
from deploycnn.types import Interval

Format = Callable[[float], str]


def span(interval: Interval, text: Format = units.seconds) -> str:
    """`95 % interval 31.1 µs to 32.2 µs`."""
    return f"{100 * interval.confidence:g} % interval {text(interval.low)} to {text(interval.high)}"


def boundary(latency: Latency) -> str:
    """`batch 1, 1 thread, host to host`."""
    threads = f"{latency.threads} thread" + ("s" if latency.threads > 1 else "")
    return f"batch {latency.batch}, {threads}, {latency.boundary.replace('-', ' ')}"


def sample(latency: Latency) -> str:
    """`4,000 runs in 40 blocks, 20 rounds, 2 processes`."""
    processes = f"{latency.n_processes} process" + ("es" if latency.n_processes > 1 else "")
    return f"{latency.n_samples:,} runs in {latency.n_blocks:,} blocks, {latency.n_rounds:,} rounds, {processes}"


def percentile_tip(latency: Latency, name: str, interval: Interval | None) -> str:
    """Of p50, p90, p99."""
    if interval is None:
        return f"{name} is not given: {latency.n_samples:,} runs cannot carry it\n{boundary(latency)}"
    lines = [f"{name} {units.seconds(interval.value)}", span(interval), sample(latency), boundary(latency)]
    return "\n".join([*lines, *doubts(latency)])


def median_tip(cell: Cell, latency: Latency) -> str:
    """Of the median, with what the device alone took where the backend tells."""
    lines = [percentile_tip(latency, "p50", latency.p50_s)]
    device = cell.latency(latency.batch, "device")
    if device is not None:
        lines.append(f"on the device alone {units.seconds(device.p50_s.value)}, {span(device.p50_s)}")
    return "\n".join(lines)


def rate_tip(latency: Latency) -> str:
    """Of images per second."""
    rate = latency.images_per_s
    lines = [
        f"{units.rate(rate.value, 'images')}, the median over blocks of back-to-back runs",
        span(rate, units.significant),
        sample(latency),
        boundary(latency),
    ]
    return "\n".join([*lines, *doubts(latency)])


def ratio_tip(latency: Latency, reference: str | None) -> str:
    """Of the ratio to the reference."""
    if latency.ratio is None:
        return f"the reference itself\n{boundary(latency)}"
    lines = [f"{units.ratio(latency.ratio.value)} the time of {reference}, paired round by round", span(latency.ratio, units.ratio)]
    return "\n".join([*lines, sample(latency), boundary(latency), *doubts(latency)])


def doubts(latency: Latency) -> list[str]:
    """A line for each doubt about a row."""
    return [f"doubt: {doubt.what}" for doubt in latency.doubts]


def top1_tip(accuracy: Accuracy) -> str:
    """Of top-1."""
    hits = round(accuracy.top1.value * accuracy.n_images)
    return f"{hits:,} of {accuracy.n_images:,} test images\n{span(accuracy.top1, units.percent)} (Wilson)"


def change_tip(accuracy: Accuracy) -> str:
    """Of the change against the reference."""
    drop = accuracy.drop
    gained = Interval(value=-drop.value, low=-drop.high, high=-drop.low, confidence=drop.confidence)
    lost, won = len(accuracy.right_to_wrong), len(accuracy.wrong_to_right)
    return (
        f"{units.points(gained.value)} against the reference's {units.percent(accuracy.reference_top1)}\n"
        f"{span(gained, units.points)}, paired on the same {accuracy.n_images:,} images\n"
        f"{lost:,} right to wrong, {won:,} wrong to right\n{accuracy.verdict.reason}"
    )


def agreement_tip(accuracy: Accuracy) -> str:
    """Of the agreement."""
    same = round(accuracy.agreement * accuracy.n_images)
    return (
        f"same answer as the reference on {same:,} of {accuracy.n_images:,} images\n"
        f"relative logit error {units.significant(accuracy.relative_logit_error, 2)}, "
        f"largest {units.significant(accuracy.max_logit_error, 2)}"
    )


def size_tip(cell: Cell) -> str:
    """Of the artifact's size."""
    artifact = cell.artifact
    if artifact is None:
        return ""
    files = "\n".join(f"{entry.name}: {units.size(entry.size_bytes)}" for entry in artifact.files)
    return f"{artifact.size_bytes:,} bytes\n{files}"


def build_tip(cell: Cell) -> str:
    """Of the time to build it."""
    artifact = cell.artifact
    if artifact is None:
        return ""
    reused = " (then; taken from the cache in this run)" if "compile" in cell.reused else ""
    took = f"{units.seconds(artifact.build_s)} from variant to artifact, tuning included, once, in a worker{reused}"
    return f"{took}\n{artifact.backend} {artifact.backend_version}"


def memory_tip(cell: Cell) -> str:
    """Of the memory."""
    loading = cell.loading
    if loading is None:
        return ""
    device = f"\ndevice: peak {units.size(loading.device_peak_bytes)}" if loading.device_peak_bytes is not None else ""
    return (
        f"peak {units.size(loading.peak_bytes)}, {units.size(loading.resident_bytes)} after validating\n"
        f"of the whole worker process, Python and the runtime's libraries included{device}\n"
        f"energy per image, net of idle: {energy(cell)}"
    )
