"""The schedules that ship fit the networks that ship: a change of the export that moves a workload's digest shows here."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploycnn import assets
from deploycnn.backends.tvm import _graph, _library
from deploycnn.backends.tvm._records import read_shipped
from deploycnn.backends.tvm._search import tasks_of

FILES = assets.tuning_records()


def test_there_are_schedules_for_the_common_vector_widths() -> None:
    assert {"avx2.jsonl", "avx512.jsonl"} <= FILES.keys()


@pytest.mark.parametrize("path", [pytest.param(path, id=name) for name, path in FILES.items()])
@pytest.mark.parametrize("network", ["lenet", "resnet8"])
@pytest.mark.parametrize("batch", [1, 32])
def test_every_function_of_a_network_that_ships_has_a_schedule_in_one_layout(graph_of, path: Path, network: str, batch: int) -> None:
    shipped = read_shipped([path])
    target = _library.target_of(_library.host_cpu(), 1)
    missing = {}
    for layout in ("NHWC", "NCHW"):
        module = _graph.lowered(_graph.import_graph(graph_of(network), batch), target, layout)
        missing[layout] = [task.name for task, _ in tasks_of(module, target) if task.digest not in shipped]
    assert [] in missing.values(), missing
