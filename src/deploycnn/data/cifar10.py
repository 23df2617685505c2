"""CIFAR-10: 50,000 + 10,000 photographs, 32x32 RGB, in any of the forms that users have. Source: Krizhevsky 2009.

Looked for under the root folder, which may itself be one of them: `cifar-10-batches-py`, `cifar-10-batches-bin`,
`cifar-10-python.tar.gz`, `cifar-10-binary.tar.gz`, and image folders `train/CLASS/`, `test/CLASS/`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from deploycnn.data._contract import DataSource, Decoded, Found
from deploycnn.data._download import Resource, fetch_resources
from deploycnn.data._files import corrupt, fingerprint, unreadable
from deploycnn.data._pickles import load_plain_pickle
from deploycnn.data._tars import tar_members
from deploycnn.data._trees import ImageTree, ignored_notes, scan_tree
from deploycnn.errors import DataError
from deploycnn.recipe import DataOptions
from deploycnn.types import Progress, ProgressCallback

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCH = 10_000
ROW_BYTES = 3 * 32 * 32
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
FOLDER_COUNTS = {"train": 5000, "test": 1000}  # images of each class
SITE = "https://www.cs.toronto.edu/"  # tried before torchvision is asked for the address
_REMEDY = "bring or download the official archive again; without this copy it is downloaded when there is a network"

Members = Callable[[Sequence[str]], Iterator[tuple[str, bytes]]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A form in which the batches come."""

    folder: str
    archive: str
    archive_bytes: int
    suffix: str
    algorithm: str
    official: dict[str, str]  # digests of the official batches: MD5 as torchvision lists them, SHA-1 as MXNet's Gluon does


PYTHON = Layout(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    archive_bytes=170_498_071,
    suffix="",
    algorithm="md5",
    official={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)
BINARY = Layout(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    archive_bytes=170_052_171,
    suffix=".bin",
    algorithm="sha1",
    official={
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    },
)


class Cifar10(DataSource):
    """See the module. Mean and deviation are the constants in common use."""

    name: ClassVar[str] = "cifar10"
    mean: ClassVar[tuple[float, ...] | None] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...] | None] = (0.2470, 0.2435, 0.2616)

    def find(self, options: DataOptions) -> Found | None:
        layouts = (PYTHON, BINARY)
        for layout in layouts:
            for folder in (options.root / layout.folder, options.root):
                if _looks_like(folder, layout):
                    return _in_folder(folder, layout)
        for layout in layouts:
            for archive in (options.root / layout.archive, options.root):
                if archive.name == layout.archive and archive.is_file():
                    return _in_archive(archive, layout)
        return _in_image_folders(options.root)

    def fetch(self, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> None:
        fetch_resources(self.name, SITE, _resources, options.root, "", progress, warn)

    def flips(self, classes: Sequence[str]) -> bool:
        return True


def _resources() -> list[Resource]:
    from torchvision.datasets import CIFAR10

    return [Resource(urls=(CIFAR10.url,), name=CIFAR10.filename, md5=CIFAR10.tgz_md5)]


def _looks_like(folder: Path, layout: Layout) -> bool:
    named = folder.name == layout.folder and folder.is_dir()
    return named or any((folder / name).is_file() for name in layout.official)


def _in_folder(folder: Path, layout: Layout) -> Found:
    missing = [name for name in layout.official if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder} is incomplete or corrupt",
            found=f"no {', no '.join(missing)}; expected five training batches and the test batch",
            remedy=_REMEDY,
        )
    paths = [folder / name for name in layout.official]

    def members(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            try:
                yield name, (folder / name).read_bytes()
            except OSError as error:
                raise unreadable(folder / name, error) from error

    return Found(source=str(folder), fingerprint={"files": fingerprint(paths)}, decode=_batch_decoder(folder, layout, members))


def _in_archive(archive: Path, layout: Layout) -> Found:
    def members(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        expected = f"the archive of CIFAR-10 (the official one has {layout.archive_bytes:,} bytes)"
        return tar_members(archive, names, expected=expected, remedy=_REMEDY)

    return Found(source=str(archive), fingerprint={"files": fingerprint([archive])}, decode=_batch_decoder(archive, layout, members))


def _batch_decoder(place: Path, layout: Layout, members: Members) -> Callable[[Path, ProgressCallback], Decoded]:
    def decode(scratch: Path, progress: ProgressCallback) -> Decoded:
        images_NCHW = np.empty((BATCH * len(layout.official), 3, 32, 32), np.uint8)
        labels_N = np.empty(len(images_NCHW), np.int64)
        differing = []
        order = list(layout.official)
        for done, (name, data) in enumerate(members(order), start=1):
            rows_ND, batch_labels_N = read_binary(place / name, data) if layout is BINARY else read_pickled(place / name, data)
            part = slice(order.index(name) * BATCH, (order.index(name) + 1) * BATCH)
            images_NCHW[part] = rows_ND.reshape(BATCH, 3, 32, 32)
            labels_N[part] = batch_labels_N
            if hashlib.new(layout.algorithm, data, usedforsecurity=False).hexdigest() != layout.official[name]:
                differing.append(name)
            progress(Progress(done=done * BATCH, total=len(labels_N), unit="images"))
        n_train = BATCH * len(TRAIN_BATCHES)
        return Decoded(
            classes=CLASSES,
            train=(images_NCHW[:n_train], labels_N[:n_train]),
            test=(images_NCHW[n_train:], labels_N[n_train:]),
            official=not differing,
            notes=(_not_official(f"{len(differing)} of {len(order)} batches have other digests"),) if differing else (),
        )

    return decode


def _not_official(reason: str) -> str:
    return f"not the official CIFAR-10 files ({reason}): figures are for this copy"


def read_pickled(path: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """One pickled batch: uint8 rows (10000, 3072), red, green and blue plane after one another, and int64 labels.

    Raises:
        DataError: not 10,000 images with labels 0 to 9; names `path`.
    """
    try:
        document = load_plain_pickle(data)
    except pickle.UnpicklingError as error:
        raise corrupt(path, expected="a pickled batch", found=f"{len(data):,} bytes, {error}", remedy=_REMEDY) from error
    if not isinstance(document, dict):
        raise corrupt(path, expected="a pickled dictionary", found=type(document).__name__, remedy=_REMEDY)
    fields = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in document.items()}
    if "fine_labels" in fields:
        raise DataError(f"{path} is not of CIFAR-10", found="labels of CIFAR-100", remedy="bring CIFAR-10")
    rows_ND, labels = fields.get("data"), fields.get("labels")
    if not isinstance(rows_ND, np.ndarray) or rows_ND.dtype != np.uint8 or rows_ND.shape != (BATCH, ROW_BYTES):
        shape = f"{rows_ND.dtype} {rows_ND.shape}" if isinstance(rows_ND, np.ndarray) else type(rows_ND).__name__
        raise corrupt(path, expected=f"{BATCH:,} rows of {ROW_BYTES:,} bytes", found=shape, remedy=_REMEDY)
    return rows_ND, _labels(path, labels)


def read_binary(path: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """One binary batch (a label byte, then 3,072 pixels, 10,000 times). Gives and raises what `read_pickled` does."""
    if len(data) != BATCH * (1 + ROW_BYTES):
        raise corrupt(path, expected=f"{BATCH * (1 + ROW_BYTES):,} bytes", found=f"{len(data):,} bytes", remedy=_REMEDY)
    rows_ND = np.frombuffer(data, np.uint8).reshape(BATCH, 1 + ROW_BYTES)
    return rows_ND[:, 1:], _labels(path, rows_ND[:, 0])


def _labels(path: Path, labels: object) -> np.ndarray:
    if not isinstance(labels, list | tuple | np.ndarray) or len(labels) != BATCH:
        count = f"{len(labels):,}" if isinstance(labels, list | tuple | np.ndarray) else type(labels).__name__
        raise corrupt(path, expected=f"{BATCH:,} labels", found=count, remedy=_REMEDY)
    if not all(isinstance(label, int | np.integer) and 0 <= label < len(CLASSES) for label in labels):
        wrong = next(label for label in labels if not (isinstance(label, int | np.integer) and 0 <= label < len(CLASSES)))
        raise corrupt(path, expected="labels from 0 to 9", found=f"a label {wrong!r}", remedy=_REMEDY)
    return np.array(labels, np.int64)


def _in_image_folders(root: Path) -> Found | None:
    if not any((root / "train" / name).is_dir() for name in CLASSES):
        return None
    trees = {"train": scan_tree(root / "train"), "test": scan_tree(root / "test")}
    for part, expected in FOLDER_COUNTS.items():
        _check_tree(root / part, trees[part], expected)

    def decode(scratch: Path, progress: ProgressCallback) -> Decoded:
        from deploycnn.data._decode import Treatment, decode_trees  # loads Pillow

        decoded = decode_trees(trees, CLASSES, Treatment(), scratch, progress)
        sides = decoded.train[0].shape[1:]
        if sides != (3, 32, 32):
            raise DataError(f"the images under {root} are not of CIFAR-10", found=f"shape {sides}", remedy="use data.name=folder for them")
        notes = (_not_official("image folders"), *decoded.notes)
        return Decoded(classes=CLASSES, train=decoded.train, test=decoded.test, official=False, notes=notes)

    prints = {part: tree.fingerprint for part, tree in trees.items()}
    notes = ignored_notes(*trees.values())
    return Found(source=f"{root}/train, {root}/test", fingerprint={"trees": prints}, decode=decode, notes=notes)


def _check_tree(folder: Path, tree: ImageTree, expected: int) -> None:
    counts = {name: len(paths) for name, paths in tree.classes.items()}
    wrong = [f"{name}: {counts.get(name, 0):,}" for name in CLASSES if counts.get(name, 0) != expected]
    wrong += [f"{name}: no class of CIFAR-10" for name in counts if name not in CLASSES]
    if wrong:
        raise DataError(
            f"{folder} is incomplete or corrupt",
            found=f"{', '.join(wrong)}; expected {expected:,} images of each of the ten classes",
            remedy="bring the missing images, or use data.name=folder for a part of CIFAR-10",
        )
