"""From a lowered module to a library: as it is, or with the schedules that tuning found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploycnn.backends.tvm._graph import translated
from deploycnn.backends.tvm._library import library
from deploycnn.backends.tvm._tuning import Plan, Tuner
from deploycnn.errors import BackendError


def build_plain(module: Any, target: Any) -> Any:
    """A Relax executable with TVM's default code for each function."""
    with translated("TVM cannot build this graph", "use another backend for this model"):
        return _executable(module, target)


def _executable(module: Any, target: Any) -> Any:
    """Builds with the sequence of calls as machine code, not as bytecode: LeNet's takes 3 to 5 microseconds less a run."""
    return library().relax.build(module, target=target, exec_mode="compiled")


def build_tuned(tuner: Tuner, plan: Plan, database: Any, target: Any) -> Any:
    """A Relax executable of a plan with the best schedule of each of its functions; weights are laid out for them.

    Raises:
        BackendError: a function would have stayed without a schedule. TVM itself says nothing and builds slow code.
    """
    tvm = library()
    passes = tvm.relax.transform
    missing = [tuner.tasks[digest].name for digest in plan.weights if not _has_record(database, tuner.tasks[digest].module, target)]
    if missing:
        raise BackendError(
            "no tuning record matched",
            found=f"{len(missing)} of {len(plan.weights)} functions have none: {', '.join(missing)}",
            remedy="raise backends.tvm.trials and backends.tvm.minutes, or set backends.tvm.tune to false",
        )
    with translated("TVM cannot build this graph with the schedules found", "set backends.tvm.tune to false, or use another backend"):
        with target, database, tvm.transform.PassContext(opt_level=3):  # the passes take all three when they are made
            sequence = [
                passes.MetaScheduleApplyDatabase(),
                passes.SplitLayoutRewritePreproc(),
                passes.LiftTransformParams(),
                passes.FoldConstant(),
                passes.CanonicalizeBindings(),  # with the next one: weights are handed over as they are, not through
                passes.DeadCodeElimination(["main"]),  # tuples made anew at each run, 2 microseconds for LeNet
            ]
            scheduled = tvm.ir.transform.Sequential(sequence)(plan.module)
        _check_scheduled(scheduled)
        return _executable(scheduled, target)


def _has_record(database: Any, module: Any, target: Any) -> bool:
    return database.query_tuning_record(module, target, "main") is not None


def _check_scheduled(module: Any) -> None:
    """Raises BackendError where a function that the network calls was left unscheduled."""
    tvm = library()
    called: Mapping[str, None] = dict.fromkeys(_called(module))
    plain = [
        name
        for name in called
        if isinstance(module[name], tvm.tirx.PrimFunc) and not (module[name].attrs and module[name].attrs.get("tirx.is_scheduled", False))
    ]
    if plain:
        raise BackendError(
            "no tuning record matched",
            found=f"these functions would run TVM's slow default code: {', '.join(plain)}",
            remedy="report this with the model; set backends.tvm.tune to false meanwhile",
        )


def _called(module: Any) -> list[str]:
    tvm = library()
    names: list[str] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.relax.Call) and expression.op == tvm.ir.Op.get("relax.call_tir"):
            names.append(expression.args[0].name_hint)

    tvm.relax.analysis.post_order_visit(module["main"], visit)
    return names
