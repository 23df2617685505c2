"""Surroundings of one stage, without a run around it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from deploycnn import data
from deploycnn.data import DataSet
from deploycnn.environment import environment
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.context import Context
from deploycnn.pipeline.preparing import Graph, Images
from deploycnn.recipe import DataOptions, parse_recipe
from deploycnn.record import DataFacts, ModelFacts
from deploycnn.store import Store
from deploycnn.types import Variant


@pytest.fixture(scope="session")
def small_images(small_dataset: DataSet) -> Images:
    """synthetic10 with 100 validation and 64 calibration images."""
    splits = data.split(small_dataset, DataOptions(name="synthetic10", validation=100, calibration=64))
    facts = DataFacts(
        name="synthetic10",
        asked="synthetic10",
        source="built in",
        official=None,
        sha256=small_dataset.sha256,
        classes=small_dataset.classes,
        shape_CHW=(3, 32, 32),
        n_train=len(splits.train_N),
        n_validation=len(splits.validation_N),
        n_calibration=len(splits.calibration_N),
        n_test=len(small_dataset.test.labels_N),
    )
    return Images(dataset=small_dataset, splits=splits, facts=facts)


@pytest.fixture
def small_graph(lenet_graph: Variant) -> Graph:
    """LeNet, untrained, without a checkpoint."""
    facts = ModelFacts(name="lenet", parameters=62006, source="onnx", checkpoint_sha256=None, graph_sha256=lenet_graph.sha256)
    return Graph(variant=lenet_graph, facts=facts, reused=())


@pytest.fixture
def said() -> io.StringIO:
    """What the stage says."""
    return io.StringIO()


@pytest.fixture
def context_with(store: Store, tmp_path: Path, said: io.StringIO) -> Callable[..., Context]:
    """A context whose recipe has the given sections."""

    def make(**sections: object) -> Context:
        talk = Talk(console=Console(file=said, width=200, highlight=False))
        recipe = parse_recipe({"name": "test", **sections}, "the test")
        return Context(recipe=recipe, store=store, talk=talk, environment=environment(), out=tmp_path / "run", memory_bytes=8 * 10**9)

    return make


@pytest.fixture
def pixels_NCHW(small_dataset: DataSet) -> np.ndarray:
    """32 test images."""
    return np.ascontiguousarray(small_dataset.test.images_NCHW[:32])
