"""A comparison as JSON, with its schema."""

from __future__ import annotations

from typing import Any

from deploycnn.report.compare_values import Comparison


def render_json(comparison: Comparison) -> str:
    """Everything, unrounded; `comparison_version` says of which shape."""
    return comparison.model_dump_json(indent=1) + "\n"


def comparison_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `render_json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Comparison.model_json_schema(mode="serialization")}
