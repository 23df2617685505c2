"""Tuning a network for one batch size: which workloads get the next candidates, when to stop, which layout wins.

Measured on LeNet and ResNet-8: a search over both data layouts is worth its price. With channels innermost (NHWC) a
convolution's output channels fill vectors whatever its stride and image size; with channels outermost (NCHW) a first
layer of few channels vectorises over the image's rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploycnn.backends.tvm._records import Trace
from deploycnn.backends.tvm._search import Search, Task, tasks_of
from deploycnn.errors import BackendError
from deploycnn.types import Value

_ROUND = 16  # candidates of one round
_FIRST_ROUND = 8  # of a task that has no schedule yet
_SEEDS = 3  # schedules found elsewhere that are tried for each task of the first plan; one for those of others alone
_HOPELESS = 4  # rounds without one candidate that works, after which a task is given up
_ENOUGH = 24  # candidates that every task of a live layout gets
_SATISFIED = 0.01  # stop when no task promises to take this share off the network's time
_STALE = 0.75  # what a round without progress leaves of a task's promise
_RIVAL = 1.3  # a layout this many times slower than the best one gets no more candidates


class Budget(Value):
    """What tuning one batch size may cost; earlier runs' trials and seconds are part of it."""

    trials: int
    seconds: float


@dataclass
class Plan:
    """The network in one data layout."""

    layout: str
    module: Any
    weights: Mapping[str, int]  # calls per run, by workload

    def time_s(self, tasks: Mapping[str, Task]) -> float:
        """The sum of its functions' best times; infinite while one has none."""
        return sum(weight * (tasks[digest].best_s or float("inf")) for digest, weight in self.weights.items())


class Tuner:
    """Distributes a budget over the workloads of a network's plans."""

    def __init__(self, modules: Mapping[str, Any], target: Any, search: Search, shipped: Mapping[str, Sequence[Trace]]) -> None:
        self.tasks: dict[str, Task] = {}
        self.plans: list[Plan] = []
        self._search = search
        self._shipped = shipped
        self._given_up: set[str] = set()
        for layout, module in modules.items():
            weights: dict[str, int] = {}
            for task, weight in tasks_of(module, target):
                self.tasks.setdefault(task.digest, task)
                weights[task.digest] = weights.get(task.digest, 0) + weight
            self.plans.append(Plan(layout=layout, module=module, weights=weights))
        for task in self.tasks.values():
            search.recall(task)

    @property
    def best(self) -> Plan:
        """The plan that is fastest by its functions' times; the first one while none is known."""
        return min(self.plans, key=lambda plan: plan.time_s(self.tasks))

    @property
    def trials(self) -> int:
        return sum(task.trials for task in self.tasks.values())

    def tune(self, budget: Budget, report: Callable[[Tuner, Task], None]) -> float:
        """Spends what is left of a budget; gives the seconds spent now.

        Every function of the first plan gets a schedule, even beyond the budget: slow code is no answer.

        Raises:
            BackendError: a function has no schedule that works.
        """
        start_s = time.monotonic()
        before_s = sum(task.history.spent_s for task in self.tasks.values())
        for task in self.tasks.values():
            if task.best_s is None and task.digest in self._shipped:
                seeds = _SEEDS if task.digest in self.plans[0].weights else 1
                self._search.replay(task, self._shipped[task.digest][:seeds])
                report(self, task)
        while True:
            left_s = budget.seconds - before_s - (time.monotonic() - start_s)
            wanted = self._next(budget, left_s)
            if wanted is None:
                return time.monotonic() - start_s
            first = wanted.best_s is None
            self._search.explore(wanted, _FIRST_ROUND if first else _ROUND)
            if wanted.best_s is None and (wanted.exhausted or wanted.stale_rounds >= _HOPELESS):
                self._give_up(wanted)
            report(self, wanted)

    def _give_up(self, task: Task) -> None:
        """Leaves out the layouts that need a function without a schedule."""
        kept = [plan for plan in self.plans if task.digest not in plan.weights]
        if not kept:
            raise BackendError(
                f"TVM found no schedule for {task.name}",
                found=self._search.errors.get(task.name, "no candidate was generated"),
                remedy="set backends.tvm.tune to false to take TVM's slow default code, or use another backend",
            )
        self.plans = kept

    def _next(self, budget: Budget, left_s: float) -> Task | None:
        """The task to search next; None: enough."""
        first, *others = self.plans
        if open_tasks := self._without_schedule(first):
            return open_tasks[0]
        if left_s <= 0 or self.trials >= budget.trials:
            return None
        worth_it = left_s > budget.seconds / 3
        for plan in others:
            if worth_it and (open_tasks := self._without_schedule(plan)):
                return open_tasks[0]
        best_s = self.best.time_s(self.tasks)
        rivals = [plan for plan in self.plans if worth_it and plan.time_s(self.tasks) <= _RIVAL * best_s] or [self.best]
        promises = [promise for plan in rivals for promise in self._promises(plan)]
        share, task = max(promises, key=lambda promise: promise[0], default=(0.0, None))
        return task if share > _SATISFIED else None

    def _without_schedule(self, plan: Plan) -> list[Task]:
        """Its tasks without a schedule, the largest first."""
        found = [task for digest in plan.weights if (task := self.tasks[digest]).best_s is None and not task.exhausted]
        return sorted(found, key=lambda task: -task.flops)

    def _promises(self, plan: Plan) -> list[tuple[float, Task]]:
        """For each task of a plan, the share of the network's time that more search may save.

        A task promises what lies between its time and that of the same arithmetic at the best rate seen on this CPU,
        less and less with each round that found nothing. One that was hardly searched promises all of its time.
        """
        total_s = plan.time_s(self.tasks)
        peak = max((task.flops / task.best_s for task in self.tasks.values() if task.best_s), default=1.0)
        found = []
        for digest, weight in plan.weights.items():
            task = self.tasks[digest]
            if task.exhausted or task.best_s is None:
                continue
            possible_s = 0.0 if task.trials < _ENOUGH else 0.9 * task.flops / peak
            found.append((weight * (task.best_s - possible_s) / total_s * _STALE**task.stale_rounds, task))
        return found

    def facts(self, plan: Plan) -> list[dict[str, Any]]:
        """What limits a plan: its functions, the slowest first."""
        peak = max((task.flops / task.best_s for task in self.tasks.values() if task.best_s), default=1.0)
        rows = []
        for digest, weight in plan.weights.items():
            task = self.tasks[digest]
            assert task.best_s is not None
            rate = task.flops / task.best_s
            rows.append(
                {
                    "function": task.name,
                    "calls": weight,
                    "best_s": task.best_s,
                    "gflop_per_s": round(rate / 1e9, 2),
                    "share_of_best_rate": round(rate / peak, 3),
                    "trials": task.trials,
                }
            )
        return sorted(rows, key=lambda row: -row["calls"] * row["best_s"])
