"""`recommend`: decides again from a record, under other limits, without running anything."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deploycnn.errors import EXIT_NOTHING_TO_SHIP, EXIT_OK, RecipeError
from deploycnn.pipeline.console import stdout_console
from deploycnn.recipe import RecommendOptions
from deploycnn.record import Record
from deploycnn.recordfile import read_record
from deploycnn.report.machines import machine, parts
from deploycnn.report.recommend import recommend
from deploycnn.report.terminal import render_recommendation


def recommend_command(run: Path, given: Mapping[str, Any], *, max_drop_pp: float | None, as_json: bool) -> int:
    """Prints what to ship and why each other artifact is not. Returns the exit code: 1 where nothing meets the limits.

    Args:
        run: folder of a run, or its record.json.
        given: options that stand over the recipe's `recommend` section; None leaves the recipe's.
        max_drop_pp: stands over the recipe's `validate.max_drop_pp`.

    Raises:
        RecordError: there is no such record.
        RecipeError: an option that cannot be meant for this record.
    """
    whole = read_record(run)
    record = parts(whole)[-1]  # latencies of two machines are not compared: the one that measured last decides
    if max_drop_pp is not None and not 0 <= max_drop_pp <= 100:
        raise RecipeError(f"--max-drop-pp {max_drop_pp:g} is no loss of top-1", remedy="give percentage points, 0 to 100")
    said = recommend(record, _options(record, given), max_drop_pp=max_drop_pp)
    if as_json:
        sys.stdout.write(said.model_dump_json(indent=1) + "\n")
    else:
        console = stdout_console()
        if whole.sessions:
            console.print(f"Measured on {machine(record)}", markup=False)
        render_recommendation(record, said, console)
    return EXIT_OK if said.ship else EXIT_NOTHING_TO_SHIP


def _options(record: Record, given: Mapping[str, Any]) -> RecommendOptions:
    stated = {name: value for name, value in given.items() if value is not None}
    try:
        options = RecommendOptions.model_validate({**record.recipe.get("recommend", {}), **stated})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise RecipeError(f"--{name} has a wrong value", found=f"{first['input']!r}: {first['msg']}", remedy=f"correct --{name}") from error
    measured = sorted({latency.batch for cell in record.cells for latency in cell.latencies})
    if options.batch is not None and options.batch not in measured:
        listed = ", ".join(map(str, measured)) or "none"
        raise RecipeError(
            f"batch {options.batch} was not measured in this run", found=f"measured: {listed}", remedy="choose one of those, or run again"
        )
    return options
