"""What must be said beside a comparison: which runs, and what else differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deploycnn.record import Record
from deploycnn.report.compare_values import RunFacts
from deploycnn.samples import Samples


def run_facts(record: Record, name: str) -> RunFacts:
    """One side of a comparison, in words."""
    return RunFacts(
        name=name,
        created=record.created,
        command=record.command,
        model=record.model.name,
        data=record.data.name,
        machines=tuple(environment.summary for environment in record.environments.values()),
        version=record.deploycnn_version,
    )


def graph_notes(base: Record, new: Record) -> Iterator[str]:
    """Whatever the metric."""
    if base.model.graph_sha256 != new.model.graph_sha256:
        yield "the runs are of different graphs (other weights or another network)"
    before, after = ({k: v for e in record.environments.values() for k, v in e.packages.items()} for record in (base, new))
    changed = [
        f"{name} {before.get(name, 'absent')} to {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    if changed:
        yield f"packages changed: {', '.join(changed)}"


def time_notes(base: Mapping[str, Samples] | None, new: Mapping[str, Samples] | None, *, yardstick: bool) -> Iterator[str]:
    """About how times were compared. `yardstick`: at every batch size and on every device something is the same work in both runs."""
    for name, samples in (("base", base), ("new", new)):
        if samples is None:
            yield f"the {name} run has no samples.npz: its intervals are taken as recorded, and its machine's state stays in them"
    if not base or not new:
        return
    if base.keys() == new.keys() and all(base[name].time_ns.tobytes() == new[name].time_ns.tobytes() for name in base):
        yield "both runs hold the very same samples: one reused the other's measurement (--remeasure takes new ones)"
    if not yardstick:
        yield "nothing is surely the same work in both runs, so a change of the machine cannot be told from a change of an artifact"
