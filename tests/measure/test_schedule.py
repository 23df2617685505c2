"""The schedule under a clock that only moves when something runs, so that every test is exact and quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from deploycnn.errors import WorkerError
from deploycnn.measure.schedule import CONTROL, Contender, Measurement, measure, twin_of
from deploycnn.recipe import MeasureOptions
from deploycnn.samples import sample_name

REFERENCE = "torch/fp32/cpu"


class World:
    """A machine: one clock, who is alive, who runs, and how fast everything is at the moment."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.alive: set[str] = set()
        self.running: str | None = None
        self.log: list[tuple[str, str]] = []
        self.speed: Callable[[float], float] = lambda now_s: 1.0

    def clock_s(self) -> float:
        return self.now_s


class Fake:
    """A contender whose runs take `run_s` times noise; fails in the call named `fault`."""

    def __init__(self, world: World, key: str, run_s: float, *, noise: float = 0.01, layout: float = 0.0, fault: str = "") -> None:
        self.world, self.key, self.run_s = world, key, run_s
        self.batches: Sequence[int] = (1, 32)
        self.noise, self.layout, self.fault = noise, layout, fault
        self.rng = np.random.default_rng(sum(key.encode()))
        self.luck = 1.0

    def start(self, process: int) -> None:
        self._step("start", 0.5)
        assert self.key not in self.world.alive
        self.world.alive.add(self.key)
        self.luck = float(np.exp(self.rng.normal(0, self.layout)))

    def ready(self, batch: int) -> bool:
        self._step("ready", 0.1)
        self.batch = batch
        return "unsteady" not in self.fault

    def block(self) -> np.ndarray:
        self._step("block", 0.0)
        assert self.key in self.world.alive
        n_runs = max(1, round(0.02 / self.run_s))
        speed = self.world.speed(self.world.now_s) * self.luck * np.exp(self.rng.normal(0, self.noise))
        times_s = self.run_s * speed * (1 + self.rng.gamma(1.0, 0.02, n_runs))
        self.world.now_s += float(times_s.sum())
        return (times_s * 1e9).astype(np.int64)

    def stop(self) -> None:
        self.world.log.append((self.key, "stop"))
        self.world.alive.discard(self.key)

    def _step(self, name: str, cost_s: float) -> None:
        assert self.world.running is None, f"{self.world.running} is still running"
        self.world.log.append((self.key, name))
        self.world.now_s += cost_s
        if self.fault == name:
            raise WorkerError(f"{self.key} crashed", remedy="look at its log")
        if self.fault == f"interrupt {name}":
            raise KeyboardInterrupt


def options(**changes: object) -> MeasureOptions:
    return MeasureOptions.model_validate({"batches": (1,), "processes": 2, "budget_s": 60.0, **changes})


def usual(world: World) -> list[Contender]:
    return [
        Fake(world, REFERENCE, 1e-3),
        Fake(world, twin_of(REFERENCE), 1e-3),
        Fake(world, "onnxruntime/fp32/cpu", 2e-4),
        Fake(world, "onnxruntime/int8/cpu", 3e-4),
    ]


def run(world: World, contenders: list[Contender], chosen: MeasureOptions) -> Measurement:
    return measure(contenders, chosen, reference=REFERENCE, clock_s=world.clock_s)


def test_same_seed_gives_the_same_samples_and_order() -> None:
    results = []
    for _ in range(2):
        world = World()
        results.append((run(world, usual(world), options()), world.log))
    first, second = results
    assert first[1] == second[1]
    assert first[0].samples.keys() == second[0].samples.keys()
    for name, samples in first[0].samples.items():
        np.testing.assert_array_equal(samples.time_ns, second[0].samples[name].time_ns)


def test_order_is_drawn_for_each_round() -> None:
    world = World()
    run(world, usual(world), options())
    blocks = [key for key, step in world.log if step == "block"]
    orders = {tuple(blocks[i : i + 4]) for i in range(0, 20, 4)}
    assert all(len(set(order)) == 4 for order in orders)
    assert len(orders) > 1


def test_quiet_machine_stops_early_and_every_restart_has_its_share() -> None:
    world = World()
    result = run(world, usual(world), options())
    assert world.now_s < 15
    assert result.generations == 2
    for samples in result.samples.values():
        counts = np.bincount(samples.process_B)
        assert counts.min() >= 5
        assert (np.diff(samples.start_s_B) > 0).all()


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_noisy_machine_ends_with_the_budget_and_gives_a_result(noise: float) -> None:
    world = World()
    contenders: list[Contender] = [Fake(world, REFERENCE, 1e-3, noise=noise), Fake(world, "null/fp32/cpu", 1e-3, noise=noise)]
    result = run(world, contenders, options(budget_s=30.0))
    assert 25 < world.now_s < 31
    assert result.samples.keys() == {sample_name(c.key, 1) for c in contenders}


def test_no_budget_still_gives_the_rounds_that_a_result_needs() -> None:
    world = World()
    result = run(world, usual(world), options(budget_s=0.001, batches=(1, 32)))
    assert result.rounds == {1: 10, 32: 10}
    assert all(samples.n_blocks == 10 for samples in result.samples.values())


def test_budget_is_shared_over_batch_sizes_and_restarts() -> None:
    world = World()
    contenders: list[Contender] = [Fake(world, REFERENCE, 1e-3, noise=0.5), Fake(world, "null/fp32/cpu", 1e-3, noise=0.5)]
    result = run(world, contenders, options(budget_s=40.0, batches=(1, 32)))
    assert 36 < world.now_s < 41
    blocks = [samples.n_blocks for samples in result.samples.values()]
    assert max(blocks) < 1.5 * min(blocks)


def test_known_artifacts_skip_rounds_but_stay_paired_with_the_reference() -> None:
    world = World()
    contenders = [*usual(world), Fake(world, "tvm/fp32/cpu", 1e-3, noise=0.2), Fake(world, CONTROL, 1e-4)]
    result = run(world, contenders, options())
    blocks = {name: samples.n_blocks for name, samples in result.samples.items()}
    rounds = result.rounds[1]
    assert blocks[sample_name(REFERENCE, 1)] == rounds
    assert blocks[sample_name(CONTROL, 1)] == rounds
    assert blocks["tvm/fp32/cpu@b1"] == rounds
    assert blocks["onnxruntime/int8/cpu@b1"] < 0.6 * rounds


def test_restarts_that_differ_bring_more_restarts() -> None:
    world = World()
    contenders: list[Contender] = [Fake(world, f"null/{i}", 1e-3, noise=0.003, layout=0.03) for i in range(4)]
    result = measure(contenders, options(), clock_s=world.clock_s)
    assert result.generations > 4
    assert world.now_s < 61


@pytest.mark.parametrize("fault", ["start", "ready", "block"])
def test_contender_that_fails_is_dropped_and_the_rest_goes_on(fault: str) -> None:
    world = World()
    broken = Fake(world, "tvm/fp32/cpu", 1e-3, fault=fault)
    result = run(world, [*usual(world), broken], options())
    assert result.dropped.keys() == {broken.key}
    assert isinstance(result.dropped[broken.key], WorkerError)
    assert len(result.samples) == 4
    assert not world.alive
    assert world.log.count((broken.key, fault)) == 1


def test_reference_that_fails_leaves_medians_of_the_others() -> None:
    world = World()
    contenders: list[Contender] = [Fake(world, REFERENCE, 1e-3, fault="start"), Fake(world, "null/fp32/cpu", 1e-3)]
    result = run(world, contenders, options())
    assert result.samples.keys() == {"null/fp32/cpu@b1"}


@pytest.mark.parametrize("step", ["start", "ready", "block"])
def test_interrupt_passes_through_and_leaves_nothing_running(step: str) -> None:
    world = World()
    contenders = [*usual(world), Fake(world, "tvm/fp32/cpu", 1e-3, fault=f"interrupt {step}")]
    with pytest.raises(KeyboardInterrupt):
        run(world, contenders, options())
    assert not world.alive


def test_batch_sizes_that_an_artifact_cannot_run_are_left_out() -> None:
    world = World()
    fixed = Fake(world, "tvm/fp32/cpu", 1e-3)
    fixed.batches = (1,)
    result = run(world, [*usual(world), fixed], options(batches=(1, 32)))
    assert sample_name(fixed.key, 1) in result.samples
    assert sample_name(fixed.key, 32) not in result.samples


def test_unsteady_rows_are_named() -> None:
    world = World()
    result = run(world, [*usual(world), Fake(world, "tvm/fp32/cpu", 1e-3, fault="unsteady")], options())
    assert result.unsteady == {"tvm/fp32/cpu@b1"}


def test_machine_is_looked_at_between_rounds_and_progress_is_told() -> None:
    world = World()
    looks: list[float] = []
    told = []
    result = measure(
        usual(world),
        options(),
        reference=REFERENCE,
        clock_s=world.clock_s,
        between_rounds=lambda: looks.append(world.now_s),
        progress=told.append,
    )
    assert len(looks) == len(told) == result.rounds[1]
    assert told[-1].done == sum(samples.n_blocks for samples in result.samples.values())
    assert all(step.total >= step.done for step in told)


def test_nothing_to_measure_is_an_empty_result() -> None:
    world = World()
    result = measure([], options(), clock_s=world.clock_s)
    assert not result.samples
    assert result.generations == 0
