"""What travels inside the ONNX file, as metadata properties that any tool can read.

deploycnn.version         of the package that wrote the file
deploycnn.classes         JSON list of class names, in the order of the logits
deploycnn.preprocessing   JSON {"mean": [...], "std": [...]}: what the graph itself does to pixels / 255
deploycnn.precision       fp32, fp16, int8, ...
deploycnn.parent_sha256   of the fp32 graph that a variant was made from
deploycnn.<key>           whatever else the caller knows: data set, checkpoint digest
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from deploycnn.graph._files import load_graph
from deploycnn.types import Preprocessing, Value

if TYPE_CHECKING:
    import onnx

PREFIX = "deploycnn."


class GraphMetadata(Value):
    """See the module. Fields are None or empty where the file does not say."""

    version: str | None = None
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    precision: str | None = None
    parent_sha256: str | None = None
    others: Mapping[str, str] = Field(default_factory=dict)


def write_metadata(model: onnx.ModelProto, metadata: GraphMetadata) -> None:
    """Replaces the model's metadata properties, keys in alphabetical order so that bytes do not depend on the caller."""
    entries = dict(metadata.others)
    entries["classes"] = json.dumps(list(metadata.classes), ensure_ascii=False)
    if metadata.version:
        entries["version"] = metadata.version
    if metadata.preprocessing:
        entries["preprocessing"] = metadata.preprocessing.model_dump_json()
    if metadata.precision:
        entries["precision"] = metadata.precision
    if metadata.parent_sha256:
        entries["parent_sha256"] = metadata.parent_sha256
    del model.metadata_props[:]
    for key in sorted(entries):
        model.metadata_props.add(key=PREFIX + key, value=entries[key])


def read_metadata(graph: onnx.ModelProto | Path) -> GraphMetadata:
    """What the file says about itself; damaged entries read as absent.

    Raises:
        ModelError: the file cannot be read.
    """
    model = load_graph(graph) if isinstance(graph, Path) else graph
    entries = {entry.key.removeprefix(PREFIX): entry.value for entry in model.metadata_props if entry.key.startswith(PREFIX)}
    known = {"version", "classes", "preprocessing", "precision", "parent_sha256"}
    return GraphMetadata(
        version=entries.get("version"),
        classes=_classes(entries.get("classes", "[]")),
        preprocessing=_preprocessing(entries.get("preprocessing")),
        precision=entries.get("precision"),
        parent_sha256=entries.get("parent_sha256"),
        others={key: value for key, value in entries.items() if key not in known},
    )


def _classes(text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except ValueError:
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def _preprocessing(text: str | None) -> Preprocessing | None:
    if text is None:
        return None
    try:
        return Preprocessing.model_validate_json(text)
    except ValidationError:
        return None
