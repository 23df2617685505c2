"""What `TVMBackend.compile` does for each batch size: import, tune where asked, build, link."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploycnn import assets, units
from deploycnn.backends.tvm import _artifact, _cuda, _graph, _library
from deploycnn.backends.tvm._building import build_plain, build_tuned
from deploycnn.backends.tvm._library import Cpu
from deploycnn.backends.tvm._pool import Pool
from deploycnn.backends.tvm._records import Records, read_shipped
from deploycnn.backends.tvm._search import Search, Task
from deploycnn.backends.tvm._tuning import Budget, Plan, Tuner
from deploycnn.disk import lock
from deploycnn.environment import package_version, usable_cores
from deploycnn.errors import BackendError
from deploycnn.types import CompileRequest, Evidence, Progress, ProgressCallback

_CLOSE = 1.15  # layouts nearer than this by their functions' times are timed as whole networks
Remote = tuple[str, int, str]  # host, port and key of a TVM RPC tracker

_WAIT_S = 3600.0  # for another run that tunes on this machine: two at once would spoil each other's times


@dataclass(frozen=True)
class Workshop:
    """What tuning needs beside a network: processes, records, schedules that ship."""

    pool: Pool
    records: Records
    shipped: dict[str, list[Any]]
    target: Any
    threads: int
    seed: int


@contextmanager
def workshop(
    request: CompileRequest, cpu: Cpu, target: Any, seed: int, remote: Remote | None, progress: ProgressCallback
) -> Iterator[Workshop]:
    """Opens the records of this CPU, or of a remote device, for one tuner at a time, and starts the processes that build and time."""
    version = package_version("apache-tvm") or "unknown"
    device = f"-{remote[2]}" if remote else ""
    folder = request.cache_folder / "tvm" / f"{version}-{cpu.mcpu}{device}-{request.threads}t"

    def waiting(line: str) -> None:
        progress(Progress(done=0, total=0, unit="trials", note=line))

    alone = lock(folder / "lock", f"tuning TVM for {cpu.mcpu}", _WAIT_S, waiting)
    with alone, tempfile.TemporaryDirectory(prefix="deploycnn-tvm-") as temp:
        with Pool(min(usable_cores(), 8), request.threads, Path(temp), remote) as pool:
            pool.reach()
            _library.skip_tensor_intrinsics()
            shipped = read_shipped(_shipped_first(cpu))
            yield Workshop(pool=pool, records=Records(folder), shipped=shipped, target=target, threads=request.threads, seed=seed)


def _shipped_first(cpu: Cpu) -> list[Path]:
    """Files of schedules that ship, those of this CPU's vector width first: any other's may still fit."""
    found = assets.tuning_records()
    return sorted(found.values(), key=lambda path: (not path.name.startswith(f"{cpu.family}."), path.name))


def plain_library(request: CompileRequest, batch: int | None, target: Any, path: Path) -> Evidence:
    """Builds one library with TVM's default code; gives its evidence."""
    module = _graph.lowered(_graph.import_graph(request.variant, batch), target)
    _artifact.write_library(build_plain(module, target), path)
    return _graph.evidence_of(module, str(target), request.variant.precision.startswith("int8"))


@dataclass(frozen=True)
class CudaBuilt:
    """One library for a GPU and its compiled kernels."""

    evidence: Evidence
    fingerprint: str  # of the kernels' source
    cubin: Path
    kernels: tuple[str, ...]


def cuda_library(request: CompileRequest, batch: int, target: Any, capability: int, path: Path) -> CudaBuilt:
    """Builds one library for a GPU and compiles its kernels: that they compile is the proof, not that TVM wrote them."""
    module = _graph.import_graph(request.variant, batch)
    executable = _cuda.build(module, target)
    source = _cuda.source_of(executable)
    cubin = path.with_name(f"kernels_b{batch}_sm{capability}.cubin")
    cubin.write_bytes(_cuda.compile_kernels(source, capability))
    _artifact.write_library(executable, path)
    kernels = tuple(_cuda.kernels_of(source))
    said = _graph.evidence_of(
        _graph.lowered(module, target),
        f"cuda:sm{capability}, {len(kernels)} kernels compiled by {_cuda.compiler_version()}",
        request.variant.precision.startswith("int8"),
    )
    return CudaBuilt(evidence=said, fingerprint=_cuda.fingerprint(source), cubin=cubin, kernels=kernels)


def tuned_library(
    request: CompileRequest, batch: int, shop: Workshop, budget: Budget, path: Path, progress: ProgressCallback
) -> tuple[Evidence, dict[str, Any]]:
    """Tunes one batch size within its budget and builds its library; gives evidence and what tuning found and cost.

    Raises:
        BackendError: a function of the network stayed without a schedule.
    """
    modules = _layouts(request, batch, shop.target)
    search = Search(shop.pool, shop.records, shop.target, usable_cores(), shop.seed)
    tuner = Tuner(modules, shop.target, search, shop.shipped)

    def report(tuner: Tuner, task: Task) -> None:
        best_s = tuner.best.time_s(tuner.tasks)
        known = units.seconds(best_s) if best_s < float("inf") else "unknown: not every function has a schedule"
        progress(Progress(done=min(tuner.trials, budget.trials), total=budget.trials, unit="trials", note=f"batch {batch}, best {known}"))

    trials_before = tuner.trials
    seconds = tuner.tune(budget, report)
    plan, tuned_s = _fastest(request, batch, shop, tuner, search, path)
    evidence = _graph.evidence_of(plan.module, str(shop.target), simulated=False)
    untuned_s = _untuned_s(request, batch, shop, modules["NCHW"], tuned_s)
    saved_s = untuned_s - tuned_s
    spent_s = seconds + sum(task.history.spent_s for task in tuner.tasks.values())
    details = {
        "layout": plan.layout,
        "trials": tuner.trials,
        "new_trials": tuner.trials - trials_before,
        "tuning_s": round(spent_s, 1),
        "new_tuning_s": round(seconds, 1),
        "functions": len(plan.weights),
        "functions_tuned": sum(tuner.tasks[digest].best_s is not None for digest in plan.weights),
        # By TVM's own evaluator while tuning; what artifacts are compared by is measured elsewhere.
        "evaluator_untuned_s": untuned_s,
        "evaluator_tuned_s": tuned_s,
        "runs_until_tuning_has_paid": round(spent_s / saved_s) if saved_s > 0 else None,
        "slowest_functions": tuner.facts(plan)[:5],
    }
    return evidence, details


def _layouts(request: CompileRequest, batch: int, target: Any) -> dict[str, Any]:
    """The network in each data layout that TVM can lower it to; the one most likely to win first."""
    plain = _graph.lowered(_graph.import_graph(request.variant, batch), target)
    try:
        innermost = _graph.lowered(_graph.import_graph(request.variant, batch), target, "NHWC")
    except BackendError:  # an operator between convolutions that has no such layout
        return {"NCHW": plain}
    return {"NHWC": innermost, "NCHW": plain}


def _fastest(request: CompileRequest, batch: int, shop: Workshop, tuner: Tuner, search: Search, path: Path) -> tuple[Plan, float]:
    """Builds the fastest plan at `path`; near rivals are timed as whole networks. Gives the plan and its seconds a run."""
    best_s = tuner.best.time_s(tuner.tasks)
    rivals = [plan for plan in tuner.plans if plan.time_s(tuner.tasks) <= _CLOSE * best_s]
    timed: list[tuple[float, Plan, Path]] = []
    for plan in rivals:
        candidate = path.with_name(f"{path.stem}-{plan.layout}.so")
        _artifact.write_library(build_tuned(tuner, plan, search.database, shop.target), candidate)
        timed.append((_network_s(request, batch, shop, candidate), plan, candidate))
    seconds, plan, winner = min(timed, key=lambda entry: entry[0])
    winner.replace(path)
    for _, _, other in timed:
        other.unlink(missing_ok=True)
    return plan, seconds


def _untuned_s(request: CompileRequest, batch: int, shop: Workshop, module: Any, tuned_s: float) -> float:
    """Seconds a run with TVM's default code; looked at only once where it is nowhere near the tuned one."""
    # One name a batch size: the loader gives back the library that a process has already loaded under a name.
    library = request.folder / f"untuned-b{batch}.so"
    _artifact.write_library(build_plain(module, shop.target), library)
    try:
        return _network_s(request, batch, shop, library, tuned_s)
    finally:
        library.unlink()


def _network_s(request: CompileRequest, batch: int, shop: Workshop, library: Path, best_s: float = 1e9) -> float:
    spec = request.variant.input
    answer = shop.pool.time(
        {
            "op": "network",
            "library": str(library),
            "arguments": [(spec.dtype, (batch, *spec.shape_CHW))],
            "best_s": best_s,
            "block_s": 5e-3,
            "blocks": 10,
            "limit_cpu_s": 120.0,
        }
    )
    if "error" in answer:
        raise BackendError(f"the library for batch {batch} does not run", found=str(answer["error"]), remedy="report this with the model")
    return float(answer["value"])
