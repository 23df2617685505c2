"""Every doubt appears where its cause was planted, says what to do, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploycnn.environment import Cpu
from deploycnn.measure.doubts import machine_doubts, row_doubts, speed_doubts
from deploycnn.measure.estimates import Pairing, Row
from deploycnn.measure.watch import MachineFacts, MachineWatch
from deploycnn.recipe import MeasureOptions
from deploycnn.samples import Samples

QUIET_CPU = Cpu(model="a processor", architecture="x86_64", instruction_sets=("avx2",), logical_cores=4, usable_cores=4)
QUIET = MachineFacts(seconds=60, other_cores=0.05, stolen_share=0.0, throttled=0, frequency_swing=0.01, swapped_bytes=0)


def row(run_s: float = 1e-3, *, block_s: float = 0.02, slope: float = 0.0, restart: float = 0.0, seed: int = 0) -> Row:
    rng = np.random.default_rng(seed)
    n_blocks, n_runs = 24, max(1, round(block_s / run_s))
    process_B = np.arange(n_blocks) // 12
    level_B = 1 + slope * np.arange(n_blocks) / n_blocks + restart * process_B
    times_s = run_s * level_B[:, None] * np.exp(rng.normal(0, 0.002, (n_blocks, n_runs)))
    return Row(
        Samples(
            time_ns=(times_s.ravel() * 1e9).astype(np.int64),
            runs_B=np.full(n_blocks, n_runs),
            round_B=np.arange(n_blocks),
            process_B=process_B,
            start_s_B=np.arange(n_blocks) * 0.1,
        )
    )


@pytest.mark.parametrize(
    ("arguments", "steady", "block_s", "kinds"),
    [
        ({}, True, 0.02, set()),
        ({"run_s": 5e-7}, True, 0.02, {"short-runs"}),
        ({"block_s": 0.003}, True, 0.003, {"short-blocks"}),
        ({"slope": 0.3}, True, 0.02, {"drift"}),
        ({"slope": -0.3}, True, 0.02, {"drift"}),
        ({"restart": 0.2}, True, 0.02, {"restarts-differ"}),
        ({}, False, 0.02, {"not-warm"}),
    ],
)
def test_planted_causes_are_named(arguments: dict[str, float], steady: bool, block_s: float, kinds: set[str]) -> None:
    found = row_doubts(row(**arguments), None, MeasureOptions(block_s=block_s), steady=steady)
    # A jump between restarts is also a trend over the run.
    assert {doubt.kind for doubt in found} - ({"drift"} if "restart" in arguments else set()) - (
        {"restarts-differ"} if "slope" in arguments else set()
    ) == kinds
    assert all(doubt.what and doubt.remedy for doubt in found)


def test_restarts_are_judged_by_the_ratio_so_a_slower_machine_is_not_blamed_on_them() -> None:
    pairing = Pairing(row(restart=0.2, seed=1), row(restart=0.2, seed=2))
    kinds = {doubt.kind for doubt in row_doubts(row(restart=0.2, seed=1), pairing, MeasureOptions(), steady=True)}
    assert "restarts-differ" not in kinds


def test_the_reference_is_not_blamed_for_a_machine_that_changed_speed() -> None:
    reference, control = row(restart=0.2, seed=1), row(1e-4, restart=0.2, seed=2)
    alone = {doubt.kind for doubt in row_doubts(reference, None, MeasureOptions(), steady=True)}
    beside = {doubt.kind for doubt in row_doubts(reference, None, MeasureOptions(), steady=True, control=Pairing(reference, control))}
    assert "restarts-differ" in alone
    assert "restarts-differ" not in beside


def test_restarts_that_differ_beside_a_steady_control_are_still_doubted() -> None:
    reference = row(restart=0.2, seed=1)
    control = Pairing(reference, row(1e-4, seed=2))
    assert "restarts-differ" in {doubt.kind for doubt in row_doubts(reference, None, MeasureOptions(), steady=True, control=control)}


def test_fixed_work_that_changed_between_restarts_is_the_machines_doubt() -> None:
    (doubt,) = speed_doubts([row(1e-4, restart=0.3), row(1e-4, restart=0.3, seed=1)])
    assert doubt.kind == "machine-speed"
    assert "from 100 µs to 130 µs between restarts" in doubt.what
    assert doubt.remedy == "measure on a machine that nothing else shares"


@pytest.mark.parametrize("restart", [0.0, 0.04])
def test_fixed_work_that_stood_still_is_no_doubt(restart: float) -> None:
    assert speed_doubts([row(1e-4, restart=restart)]) == ()
    assert speed_doubts([]) == ()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"governor": "powersave"}, "frequency-scaling"),
        ({"turbo": True}, "turbo"),
        ({"usable_cores": 1}, "threads"),
        ({"quota_cores": 1.5}, "cpu-quota"),
    ],
)
def test_settings_of_the_machine(changes: dict[str, object], kind: str) -> None:
    found = machine_doubts(QUIET_CPU.model_copy(update=changes), QUIET, threads=2)
    assert [doubt.kind for doubt in found] == [kind]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"other_cores": 1.0}, "other-load"),
        ({"stolen_share": 0.1}, "stolen-time"),
        ({"throttled": 3}, "throttling"),
        ({"frequency_swing": 0.3}, "frequency-moved"),
        ({"swapped_bytes": 10**9}, "swap"),
    ],
)
def test_events_while_measuring(changes: dict[str, object], kind: str) -> None:
    found = machine_doubts(QUIET_CPU, QUIET.model_copy(update=changes), threads=1)
    assert [doubt.kind for doubt in found] == [kind]


def test_a_quiet_machine_and_one_that_does_not_say_raise_no_doubt() -> None:
    silent = MachineFacts(seconds=1, other_cores=None, stolen_share=None, throttled=None, frequency_swing=None, swapped_bytes=None)
    assert machine_doubts(QUIET_CPU, QUIET, threads=4) == ()
    assert machine_doubts(QUIET_CPU, silent, threads=4) == ()


def test_the_watch_reads_this_machine() -> None:
    watch = MachineWatch()
    watch.look()
    facts = watch.facts()
    assert facts.seconds > 0
    assert facts.other_cores is None or facts.other_cores >= 0
    assert facts.stolen_share is None or 0 <= facts.stolen_share <= 1


def test_the_watch_sees_throttling_and_frequencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploycnn.measure.watch.LOOK_EVERY_S", 0.0)
    cpu = tmp_path / "sys/devices/system/cpu/cpu0"
    for name in ("thermal_throttle/core_throttle_count", "cpufreq/scaling_cur_freq"):
        (cpu / name).parent.mkdir(parents=True)
        (cpu / name).write_text("2000000" if "freq" in name else "5")
    watch = MachineWatch(tmp_path)
    watch.look()
    (cpu / "cpufreq/scaling_cur_freq").write_text("1500000")
    (cpu / "thermal_throttle/core_throttle_count").write_text("9")
    watch.look()
    facts = watch.facts()
    assert facts.throttled == 4
    assert facts.frequency_swing == pytest.approx(0.25)
