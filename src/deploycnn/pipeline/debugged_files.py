"""What `debug` needs of a finished run: the cell, the graphs and the images, wherever they still are."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from deploycnn import data
from deploycnn.disk import file_sha256
from deploycnn.errors import DataError, RecordError
from deploycnn.pipeline.bundle import BUNDLE_NAME, bundled_images, read_bundle
from deploycnn.pipeline.console import Talk
from deploycnn.recipe import DataOptions
from deploycnn.record import Cell, Record
from deploycnn.store import Store

_STAGES = ("graph", "variant", "fine-tuned")  # of the cache that hold ONNX files


def chosen_cell(record: Record, name: str) -> Cell:
    """The cell of that name, which has an artifact.

    Raises:
        RecordError: there is none, with the nearest name, or it has no artifact, with the reason.
    """
    cell = record.cell(name.strip().replace(" ", "/"))
    names = [cell.name for cell in record.cells if cell.artifact is not None]
    if cell is None:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RecordError(f"the run has no artifact '{name}'", remedy=f"{hint}artifacts: {', '.join(names) or 'none'}")
    if cell.artifact is None:
        outcome = cell.outcome
        why = getattr(outcome, "reason", "") or getattr(outcome, "waits_for", "")
        raise RecordError(
            f"{cell.name} was never built", found=f"{outcome.state}: {why}", remedy=f"artifacts: {', '.join(names) or 'none'}"
        )
    return cell


def find_graph(folder: Path, store: Store, sha256: str, what: str) -> Path:
    """The ONNX file of that digest: in the run's folder, or in the cache.

    Raises:
        RecordError: it is in neither.
    """
    for path in sorted(folder.rglob("*.onnx")):
        if file_sha256(path) == sha256:
            return path
    for path in _cached(store, sha256):
        if path.is_file() and file_sha256(path) == sha256:
            return path
    raise RecordError(
        f"{what} of this run is to be looked at",
        found=f"no file with digest {sha256[:12]} in {folder} or in the cache {store.root}",
        remedy="run the same recipe again (the cache was pruned, or the run was made elsewhere), then debug",
    )


def _cached(store: Store, sha256: str) -> Iterator[Path]:
    for entry in store.entries():
        if entry.stage not in _STAGES:
            continue
        try:
            listed = json.loads((entry.path / "manifest.json").read_text(encoding="utf-8"))["files"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged entry is dropped when it is next used
        yield from (entry.path / "files" / file["name"] for file in listed if file.get("sha256") == sha256)


def images_of(record: Record, folder: Path, store: Store, count: int, root: Path | None, talk: Talk) -> np.ndarray:
    """Images of the run's validation part, uint8 (N, C, H, W), spread over it; of its bundle where the data set is not here.

    Raises:
        DataError: neither is here.
    """
    options = DataOptions.model_validate(record.recipe["data"])
    options = options.model_copy(update={"name": record.data.name, "fallback": None, **({"root": root} if root else {})})
    try:
        with talk.stage(f"data {options.name}") as progress:
            dataset = data.load_dataset(options, store, progress, talk.warn)
            index_N = data.split(dataset, options).validation_N
    except DataError:
        if not (folder / BUNDLE_NAME).is_file():
            raise
        return _bundled(folder, record, count)
    if dataset.sha256 != record.data.sha256:
        talk.warn(f"these are not the images of the run: digest {dataset.sha256[:12]} instead of {record.data.sha256[:12]}")
    return np.ascontiguousarray(dataset.train.images_NCHW[_spread(index_N, count)])


def _bundled(folder: Path, record: Record, count: int) -> np.ndarray:
    bundle = read_bundle(folder)
    if bundle.images.file is None:
        raise DataError("the bundle holds no images", remedy="name the data set's folder with --data")
    images_NCHW = bundled_images(folder, bundle.images.file, bundle.images.sha256, record.data.classes).images_NCHW
    return np.ascontiguousarray(images_NCHW[_spread(np.arange(len(images_NCHW)), count)])


def _spread(index_N: np.ndarray, count: int) -> np.ndarray:
    """`count` of the indices, evenly, so that every class has its share where they are sorted by class."""
    places = np.linspace(0, len(index_N) - 1, min(count, len(index_N))).round().astype(int)
    chosen: np.ndarray = index_N[np.unique(places)]
    return chosen
