"""What all tests share: real images where they are, small graphs, a store of their own, and what a missing GPU means."""

from __future__ import annotations

import getpass
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import filelock
import numpy as np
import pytest

from deploycnn.data import DataSet, load_dataset
from deploycnn.environment import environment
from deploycnn.recipe import DataOptions, ModelOptions
from deploycnn.store import Store
from deploycnn.types import Preprocessing, Progress, Variant

PROJECT = Path(__file__).parents[1]
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PREPROCESSING = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require", choices=["cuda"], default=None, help="fail, instead of skipping, the tests that need this")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not environment().gpus:
        reason = f"needs an NVIDIA GPU: {environment().gpu_reason}"
        if item.config.getoption("--require") == "cuda":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def silent(progress: Progress) -> None:
    """A progress callback that keeps it to itself."""


@pytest.fixture(scope="session")
def cifar10_batches() -> Path:
    """CIFAR-10 as `cifar-10-batches-py`: in data/, or unpacked once per machine from the copy beside the project."""
    own = PROJECT / "data" / "cifar-10-batches-py"
    if own.is_dir():
        return own
    unpack = PROJECT.parent / "shared" / "data" / "unpack"
    if not unpack.is_file():
        pytest.skip("no CIFAR-10 here: put cifar-10-batches-py into data/")
    folder = Path(tempfile.gettempdir()) / f"deploycnn-tests-{getpass.getuser()}"
    folder.mkdir(exist_ok=True)
    batches = folder / "cifar-10-batches-py"
    with filelock.FileLock(folder / "lock"):
        if not (batches / "batches.meta").is_file():  # written last
            subprocess.run([sys.executable, str(unpack), "batches", str(folder)], check=True, capture_output=True)
    return batches


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty cache. It warns about nothing in a test that damages nothing."""

    def warn(line: str) -> None:
        raise AssertionError(f"the store warned: {line}")

    return Store(tmp_path / "store", warn)


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """synthetic10 with 600 training and 200 test images of 3x32x32."""
    lines: list[str] = []
    options = DataOptions(name="synthetic10", train=600, test=200, validation=100, calibration=64)
    dataset = load_dataset(options, Store(tmp_path_factory.mktemp("small-dataset")), silent, lines.append)
    assert not lines
    return dataset


@pytest.fixture(scope="session")
def graph_of(small_dataset: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Variant]:
    """Exports a network of ours by name, untrained, seeded, 3x32x32 and 10 classes; each once per session."""
    made: dict[str, Variant] = {}

    def make(name: str) -> Variant:
        from deploycnn.export import export_graph
        from deploycnn.models import build_model

        if name not in made:
            module = build_model(ModelOptions(name=name), (3, 32, 32), len(CLASSES), seed=3).eval()
            sample_x_NCHW = np.ascontiguousarray(small_dataset.test.images_NCHW[:70])
            made[name] = export_graph(module, PREPROCESSING, (3, 32, 32), CLASSES, sample_x_NCHW, tmp_path_factory.mktemp(name), {})
        return made[name]

    return make


@pytest.fixture(scope="session")
def lenet_graph(graph_of: Callable[[str], Variant]) -> Variant:
    """LeNet as a graph: ONNX and program."""
    return graph_of("lenet")


@pytest.fixture(scope="session")
def resnet8_graph(graph_of: Callable[[str], Variant]) -> Variant:
    """ResNet-8 as a graph: ONNX and program."""
    return graph_of("resnet8")
