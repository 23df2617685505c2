"""Data sets, one file each, found by scanning this folder.

A module here that defines exactly one public subclass of `DataSource` is a data set; its `name` is what recipes say.
Images are decoded once into the cache and memory-mapped from there; nothing here imports torch, except to download.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from deploycnn.data import _cache, _split
from deploycnn.data._contract import DataMissing, DataSet, DataSource, Decoded, Found, ImageSet
from deploycnn.data._split import Splits, split, stratified
from deploycnn.errors import DataError, RecipeError
from deploycnn.recipe import DataOptions
from deploycnn.store import Store
from deploycnn.types import ProgressCallback

__all__ = ["DataMissing", "DataSet", "DataSource", "ImageSet", "Splits", "data_sources", "load_dataset", "split", "stratified"]


@cache
def data_sources() -> dict[str, type[DataSource]]:
    """Every data set of this folder by name, in alphabetical order of their files."""
    found: dict[str, type[DataSource]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, DataSource) and member.__module__ == module.__name__ and not inspect.isabstract(member):
                found[member.name] = member
    return found


def load_dataset(options: DataOptions, store: Store, progress: ProgressCallback, warn: Callable[[str], None]) -> DataSet:
    """The images that a recipe asks for: found on disk, else downloaded, else the recipe's fallback.

    Args:
        store: where decoded images are kept.
        progress: told of downloading (bytes) and decoding (images).
        warn: gets one line when the fallback is taken, or another process is waited for.

    Raises:
        RecipeError: no such data set; an option that it has no use for.
        DataError: missing, incomplete or damaged images, every fault with its path.
        StoreError: the cache or the data folder cannot be written to.
    """
    source = _source(options)
    try:
        found = source.find(options) or _fetched(source, options, progress, warn)
    except DataMissing as missing:
        if not options.fallback:
            raise
        first, *others = (options.fallback,) if isinstance(options.fallback, str) else options.fallback
        warn(f"{_flat(missing)}. USING '{first}' INSTEAD OF '{options.name}': no figure of this run is about {options.name}")
        instead = {"name": first, "fallback": tuple(others) or None, "size": None, "channels": None, "skip_unreadable": False}
        return load_dataset(options.model_copy(update=instead), store, progress, warn)
    content = _cache.remembered(store, {"name": source.name, **found.fingerprint}, lambda folder: found.decode(folder, progress))
    content = _subset(content, options, store)
    return DataSet(
        name=source.name,
        classes=content.classes,
        train=content.train,
        test=content.test,
        official=content.official,
        source=found.source,
        notes=(*content.notes, *found.notes),
        sha256=content.sha256,
        mean=source.mean or content.mean,
        std=source.std or content.std,
        flip=source.flips(content.classes),
    )


def _source(options: DataOptions) -> DataSource:
    sources = data_sources()
    if options.name not in sources:
        near = difflib.get_close_matches(options.name, sources, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RecipeError(f"there is no data set '{options.name}'", remedy=f"{hint}data sets here: {', '.join(sources)}")
    for key in ("size", "channels", "skip_unreadable"):
        if options.name != "folder" and getattr(options, key):
            raise RecipeError(f"data.{key} says nothing about '{options.name}'", remedy=f"leave data.{key} out, or use data.name=folder")
    return sources[options.name]()


def _fetched(source: DataSource, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> Found:
    if not options.download:
        raise DataMissing(
            f"there is no copy of {source.name} under {options.root}, and data.download is off",
            remedy="put one there, set data.root to one, or allow the download",
        )
    source.fetch(options, progress, warn)
    found = source.find(options)
    if found is None:
        raise DataError(f"{source.name} was downloaded to {options.root} and is not there", remedy="run again")
    return found


def _flat(error: DataError) -> str:
    return "; ".join(part for part in (error.asked, error.found) if part)


def _subset(content: _cache.Content, options: DataOptions, store: Store) -> _cache.Content:
    """At most `options.train` and `options.test` images, the same share of every class, chosen by `options.seed`."""
    wanted = {"train": options.train, "test": options.test}
    parts = {part: (getattr(content, part), wanted[part]) for part in wanted}
    if all(limit is None or limit >= len(images) for images, limit in parts.values()):
        return content

    def pick(_: Path) -> Decoded:
        chosen = {}
        for tag, (part, (images, limit)) in enumerate(parts.items()):
            count = len(images) if limit is None else min(limit, len(images))
            index = _split.stratified(images.labels_N, count, (options.seed, tag))
            chosen[part] = (images.images_NCHW[index], images.labels_N[index])
        return Decoded(classes=content.classes, train=chosen["train"], test=chosen["test"], official=content.official, notes=content.notes)

    return _cache.remembered(
        store, {"subset-of": content.sha256, "facts": [content.official, list(content.notes)], **wanted, "seed": options.seed}, pick
    )
