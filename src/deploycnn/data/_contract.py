"""What a data set is, and what a file of this folder must say to be one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deploycnn.errors import DataError
from deploycnn.recipe import DataOptions
from deploycnn.types import ProgressCallback


class DataMissing(DataError):
    """The images are neither on disk nor to be fetched. Only this makes a recipe's fallback data set be taken."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images with their labels. The arrays are read-only memory maps of files in the cache.

    Attributes:
        images_NCHW: uint8 pixels, (N, C, H, W).
        labels_N: int64 indices into the data set's classes, (N,).
        digests_ND: uint8, (N, 16): BLAKE2b of each image's pixels, for finding exact copies.
        sha256: over shape, pixels and labels (little-endian int64), in hex.
    """

    images_NCHW: np.ndarray
    labels_N: np.ndarray
    digests_ND: np.ndarray
    sha256: str

    def __len__(self) -> int:
        return len(self.labels_N)


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Everything that is trained on and tested with.

    Attributes:
        name: of what was really loaded: a recipe's fallback shows here.
        classes: names, in the order of the labels.
        train: what training, validation and calibration images are taken from (see `split`).
        test: for the final figures only.
        official: the files match their publisher's digests; None where there are none to match.
        source: where the images were found, for people.
        notes: what was converted, skipped, missing.
        sha256: over both sets' digests and the class names, in hex.
        mean, std: per channel, of pixels / 255 of the training images.
        flip: mirroring an image left to right keeps its class.
    """

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    official: bool | None
    source: str
    notes: tuple[str, ...]
    sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool

    @property
    def shape_CHW(self) -> tuple[int, int, int]:
        """Shape of one image."""
        c, h, w = self.train.images_NCHW.shape[1:]
        return int(c), int(h), int(w)


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoded:
    """What a data set's files hold. Images uint8 NCHW, labels int64; arrays may be memory maps of scratch files."""

    classes: tuple[str, ...]
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    official: bool | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """Images that are there but not read yet.

    Attributes:
        source: where, for people.
        fingerprint: JSON values that change whenever the images may have changed; cheap to get (names, sizes, times).
        decode: reads them. Gets an empty folder for scratch files and a progress callback. Raises DataError.
        notes: what is known without reading them; not remembered with the images.
    """

    source: str
    fingerprint: Mapping[str, Any]
    decode: Callable[[Path, ProgressCallback], Decoded]
    notes: tuple[str, ...] = ()


class DataSource(ABC):
    """A data set by name: one public subclass in each file of this folder.

    `mean` and `std` are the constants everybody uses for it, None where they are computed from the training images.
    """

    name: ClassVar[str]
    mean: ClassVar[tuple[float, ...] | None] = None
    std: ClassVar[tuple[float, ...] | None] = None

    @abstractmethod
    def find(self, options: DataOptions) -> Found | None:
        """The images on disk (or made from nothing), None where there are none.

        Raises:
            DataError: there is something, but incomplete.
        """

    @abstractmethod
    def fetch(self, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> None:
        """Downloads the images to where `find` finds them. `warn` is told when another process is waited for.

        Raises:
            DataMissing: they cannot be fetched: no network, or nowhere to fetch them from.
            DataError: what came is not what was expected.
        """

    @abstractmethod
    def flips(self, classes: Sequence[str]) -> bool:
        """Whether mirroring an image left to right keeps its class."""
