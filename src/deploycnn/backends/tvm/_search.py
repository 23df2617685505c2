"""Finding schedules for the loops of a network: MetaSchedule's design space and search, our own order and measuring."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploycnn.backends.tvm._graph import TVM_ERRORS
from deploycnn.backends.tvm._library import library
from deploycnn.backends.tvm._pool import Pool
from deploycnn.backends.tvm._records import History, Measured, Records, Trace

_BUILD_CPU_S = 5.0  # limit of one candidate's build: the usual one takes 0.2 to 0.4 s, the worst go on for minutes
_TIME_CPU_S = 10.0  # limit of one candidate's timing, on all threads together
_BLOCK_S = 2e-3  # length of one timed block; the least of _BLOCKS counts
_BLOCKS = 8
_KEPT = 96  # best earlier records that the search starts from when it goes on
_LESSONS = 48  # earlier records, good and bad ones, that the cost model learns a task from when it goes on


@dataclass
class Task:
    """One workload: a fused function of the network, and what is known of it."""

    name: str
    digest: str
    module: Any  # IRModule with one PrimFunc, before any schedule
    flops: float  # of one call
    history: History = field(default_factory=History)
    best_s: float | None = None
    trials: int = 0  # candidates measured, failed ones and earlier runs' among them
    stale_rounds: int = 0  # rounds since the best one got at least 1 % faster
    exhausted: bool = False  # the search has no more candidates
    search: Any = None  # its TuneContext, once it has been searched

    def learn(self, measured: Sequence[Measured]) -> None:
        self.trials += len(measured)
        fastest = min((m.seconds for m in measured if m.seconds is not None), default=None)
        better = fastest is not None and (self.best_s is None or fastest < self.best_s)
        clearly = better and (self.best_s is None or (fastest or 0.0) < 0.99 * self.best_s)
        self.stale_rounds = 0 if clearly else self.stale_rounds + 1
        if better:
            self.best_s = fastest


def tasks_of(module: Any, target: Any) -> list[tuple[Task, int]]:
    """The workloads of a lowered module, each with how often the network calls it."""
    tvm = library()
    import tvm_ffi

    extracted = tvm.s_tir.meta_schedule.relax_integration.extract_tasks(module, target, {})
    flops = tvm.get_global_func("s_tir.analysis.EstimateTIRFlops")
    found = []
    for task in extracted:
        workload = task.dispatched[0]
        digest = f"{tvm_ffi.structural_hash(workload) & (2**64 - 1):016x}"
        found.append((Task(name=task.task_name, digest=digest, module=workload, flops=float(flops(workload))), int(task.weight)))
    return found


class Search:
    """Measures candidates of tasks and writes down what comes of them."""

    def __init__(self, pool: Pool, records: Records, target: Any, cores: int, seed: int) -> None:
        tvm = library()
        import tvm.s_tir.meta_schedule as schedule

        self._tvm = tvm
        self._schedule = schedule
        self._pool = pool
        self._records = records
        self._target = target
        self._cores = cores
        self._seed = seed
        self.database = schedule.database.MemoryDatabase()
        self._model = _cost_model(schedule, cores)
        self.errors: dict[str, str] = {}  # the last failure of each task, by name

    def recall(self, task: Task) -> None:
        """Takes over what earlier runs found for a task."""
        task.history = self._records.read(task.digest)
        task.trials = len(task.history.measured)
        best = task.history.best
        task.best_s = best.seconds if best else None
        done = sorted((m for m in task.history.measured if m.seconds is not None), key=lambda m: m.seconds or 0.0)
        for measured in done[:_KEPT]:
            self._commit(task, measured)

    def replay(self, task: Task, traces: Sequence[Trace]) -> None:
        """Times schedules found elsewhere; those that do not fit this TVM or target are left out."""
        start_s = time.monotonic()
        candidates = []
        for trace in traces:
            try:
                candidates.append(self._candidate(task, trace))
            except TVM_ERRORS as error:
                self.errors[task.name] = str(error).strip()[-200:]
        if candidates:
            self._measure(task, candidates, start_s)

    def explore(self, task: Task, count: int) -> None:
        """One round of search: at most `count` new candidates, timed."""
        start_s = time.monotonic()
        if task.search is None:
            task.search = self._context(task, count)
        candidates = list(task.search.generate_measure_candidates() or [])[:count]
        if not candidates:
            task.exhausted = True
            return
        measured = self._measure(task, candidates, start_s)
        results = [self._result(m) for m in measured]
        task.search.notify_runner_results(candidates, results)
        self._model.update(task.search, candidates, results)

    def _context(self, task: Task, count: int) -> Any:
        schedule = self._schedule
        # The one rule left out calls for hand-written schedules by name, and warns at each pooling that there is none.
        rules = [rule for rule in schedule.schedule_rule.ScheduleRule.create("llvm") if type(rule).__name__ != "ApplyCustomRule"]
        space = schedule.space_generator.PostOrderApply(sch_rules=rules, postprocs="llvm", mutator_probs="llvm")
        # A quarter of the default population: the search, not the measuring, is what takes longest at the default.
        strategy = schedule.search_strategy.EvolutionarySearch(population_size=64, genetic_num_iters=2, init_min_unmeasured=24)
        context = schedule.TuneContext(
            mod=task.module,
            target=self._target,
            space_generator=space,
            search_strategy=strategy,
            task_name=task.name,
            rand_state=1 + (self._seed * 7919 + int(task.digest[:7], 16) + task.trials) % (2**31 - 2),
            num_threads=self._cores,
        )
        context.pre_tuning(10**6, count, context.generate_design_space(), self.database, self._model)
        self._teach(task, context)
        return context

    def _teach(self, task: Task, context: Any) -> None:
        """Lets the cost model learn from what earlier runs measured of a task."""
        done = sorted((m for m in task.history.measured if m.trace is not None), key=lambda m: m.seconds or 0.0)
        chosen = done[:: max(1, -(-len(done) // _LESSONS))]
        candidates, results = [], []
        for measured in chosen:
            with contextlib.suppress(*TVM_ERRORS):  # a record of another TVM
                candidates.append(self._candidate(task, measured.trace or []))
                results.append(self._result(measured))
        if candidates:
            self._model.update(context, candidates, results)

    def _measure(self, task: Task, candidates: Sequence[Any], start_s: float) -> list[Measured]:
        export = dict(self._target.export())
        modules = [self._tvm.ir.save_json(candidate.sch.mod) for candidate in candidates]
        built = self._pool.build(modules, export, _BUILD_CPU_S)
        measured = [self._timed(task, candidate, answer) for candidate, answer in zip(candidates, built, strict=True)]
        self._records.append(task.digest, measured, time.monotonic() - start_s)
        task.learn(measured)
        for m in measured:
            self._commit(task, m)
        return measured

    def _timed(self, task: Task, candidate: Any, built: Mapping[str, Any]) -> Measured:
        answer = built
        if "value" in built:
            job = {
                "op": "kernel",
                "library": built["value"],
                "arguments": [(str(info.dtype), tuple(int(n) for n in info.shape)) for info in candidate.args_info],
                "best_s": task.best_s or 1e9,
                "block_s": _BLOCK_S,
                "blocks": _BLOCKS,
                "limit_cpu_s": _TIME_CPU_S,
            }
            answer = self._pool.time(job)
            Path(built["value"]).unlink(missing_ok=True)
        if "error" in answer:
            self.errors[task.name] = str(answer["error"])
            return Measured(seconds=None)
        return Measured(seconds=answer["value"], trace=self._plain_trace(candidate.sch.trace))

    def _plain_trace(self, trace: Any) -> Trace:
        """A trace as plain JSON values, as TVM's own database file has it; TVM's Python function for it lacks index maps."""
        plain = self._plain(trace.as_json())
        assert isinstance(plain, list)
        return plain

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, self._tvm.tirx.IntImm):
            return int(value.value)
        if isinstance(value, self._tvm.tirx.FloatImm):
            return float(value.value)
        if type(value).__name__ in ("Array", "list"):
            return [self._plain(item) for item in value]
        return json.dumps(json.loads(self._tvm.ir.save_json(value)), separators=(",", ":"))

    def _candidate(self, task: Task, trace: Trace) -> Any:
        scheduled = self._tvm.s_tir.Schedule(task.module)
        self._record(task, Measured(seconds=1.0, trace=trace)).trace.apply_to_schedule(scheduled, remove_postproc=False)
        arguments = self._schedule.arg_info.ArgInfo.from_entry_func(scheduled.mod)
        return self._schedule.search_strategy.MeasureCandidate(scheduled, arguments)

    def _record(self, task: Task, measured: Measured) -> Any:
        from tvm.s_tir.meta_schedule import _ffi_api

        workload = self.database.commit_workload(task.module)
        return _ffi_api.TuningRecordFromJSON([measured.trace, [measured.seconds], None, None], workload)

    def _commit(self, task: Task, measured: Measured) -> None:
        if measured.seconds is None or measured.trace is None:
            return
        try:
            self.database.commit_tuning_record(self._record(task, measured))
        except TVM_ERRORS as error:
            self.errors[task.name] = str(error).strip()[-200:]

    def _result(self, measured: Measured) -> Any:
        if measured.seconds is None:
            return self._schedule.runner.RunnerResult(None, "failed")
        return self._schedule.runner.RunnerResult([measured.seconds], None)


def _cost_model(schedule: Any, cores: int) -> Any:
    """Gradient-boosted trees where they are installed, else a random order: enough for small networks."""
    import importlib.util
    import logging

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    if importlib.util.find_spec("xgboost") is None:
        return schedule.cost_model.RandomModel()
    return schedule.cost_model.XGBModel(num_tuning_cores=cores, num_warmup_samples=64)
