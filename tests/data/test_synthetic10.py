from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from deploycnn.data import synthetic10
from deploycnn.data._drawing import OPAQUE, SHAPES, TEXTURES, Dice, coverage, ground, root
from deploycnn.data.synthetic10 import CLASSES, generate

DIGEST = "1ff3b28f1179d487d45931478f22beffcf80b07027d5b8d7259864ef7e8a8f8e"
PRINT_DIGEST = """
import hashlib
from deploycnn.data.synthetic10 import generate
images, labels = generate(0, "train", 1000)
print(hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest())
"""


def test_the_same_bytes_on_every_machine() -> None:
    """Whoever changes the drawing changes every figure that stands on these images: then, and only then, the digest too."""
    images, labels = generate(0, "train", 1000)
    assert hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest() == DIGEST


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the switches are those of x86 processors")
def test_the_same_bytes_with_old_instructions() -> None:
    """numpy and its BLAS as on a processor without AVX."""
    newer = "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
    path = os.pathsep.join(folder for folder in sys.path if folder)
    environment = {**os.environ, "PYTHONPATH": path, "NPY_DISABLE_CPU_FEATURES": newer, "OPENBLAS_CORETYPE": "Prescott"}
    done = subprocess.run([sys.executable, "-c", PRINT_DIGEST], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == DIGEST


def test_random_numbers_are_the_raw_stream() -> None:
    numbers = Dice((1, 2)).integers(-5, 5, (4,))
    raw = np.random.PCG64([1, 2]).random_raw(4)
    assert numbers.tolist() == [(int(value) >> 32) * 10 // 2**32 - 5 for value in raw]


def test_first_images_do_not_depend_on_the_count() -> None:
    longer, longer_labels = generate(3, "test", 520)
    for count in (1, 10, 250, 263):
        images, labels = generate(3, "test", count)
        np.testing.assert_array_equal(images, longer[:count])
        np.testing.assert_array_equal(labels, longer_labels[:count])


@pytest.mark.parametrize("other", [(1, "train"), (0, "test"), (-1, "train")])
def test_seeds_and_parts_share_no_image(other: tuple[int, str]) -> None:
    one, _ = generate(0, "train", 250)
    images, _ = generate(*other, 250)
    assert not {image.tobytes() for image in one} & {image.tobytes() for image in images}


def test_classes_are_balanced() -> None:
    _, labels = generate(0, "train", 505)
    assert sorted(labels[:10].tolist()) == list(range(10))
    assert set(np.bincount(labels).tolist()) <= {50, 51}


def test_images_are_varied() -> None:
    images, _ = generate(0, "train", 250)
    assert images.dtype == np.uint8
    assert images.shape == (250, 3, 32, 32)
    assert len({image.tobytes() for image in images}) == 250
    assert (images.std(axis=(1, 2, 3)) > 5).all()
    assert images.min() == 0
    assert images.max() == 255


def test_sizes_by_request(load: Any) -> None:
    dataset = load(name="synthetic10", train=120, test=30)
    assert (len(dataset.train), len(dataset.test)) == (120, 30)
    assert dataset.classes == CLASSES
    assert (dataset.official, dataset.flip) == (None, True)
    assert "seed 0" in dataset.source
    np.testing.assert_allclose(dataset.mean, (dataset.train.images_NCHW / 255).mean(axis=(0, 2, 3)), rtol=1e-9)


def test_default_and_largest_sizes() -> None:
    from deploycnn.recipe import DataOptions

    def counts(**options: int) -> Any:
        return synthetic10.Synthetic10().find(DataOptions(name="synthetic10", **options)).fingerprint["counts"]

    assert counts() == synthetic10.DEFAULT_COUNTS
    assert counts(train=10**6, test=10**6) == {"train": 50_000, "test": 10_000}


def test_ground_is_between_its_control_values() -> None:
    control = np.random.default_rng(0).integers(0, 256, (20, 3, 5, 5)).astype(np.int32)
    smooth = ground(control)
    assert (smooth.min(axis=(2, 3)) >= control.min(axis=(2, 3))).all()
    assert (smooth.max(axis=(2, 3)) <= control.max(axis=(2, 3))).all()
    np.testing.assert_array_equal(ground(np.full((1, 3, 5, 5), 77, np.int32)), 77)


def test_distances_are_whole_and_exact() -> None:
    values = np.arange(-3000, 3000, 7, dtype=np.int32)
    distances = root(values[:, None], values[None, :])
    clipped = np.clip(values.astype(np.int64), -2048, 2048)
    squares = clipped[:, None] ** 2 + clipped[None, :] ** 2
    assert (distances.astype(np.int64) ** 2 <= squares).all()
    assert ((distances.astype(np.int64) + 1) ** 2 > squares).all()


@pytest.mark.parametrize("name", [*SHAPES, *TEXTURES])
def test_every_class_survives_a_mirror(name: str) -> None:
    """What `flips` promises, for an object that is not turned."""
    line = (np.arange(32, dtype=np.int32) * 64 + 32 - 1024)[None]
    v, u = np.broadcast_to(line[:, :, None], (1, 32, 32)), np.broadcast_to(line[:, None, :], (1, 32, 32))
    size = np.full((1, 1, 1), 640, np.int32)
    drawn = coverage(SHAPES[name](u, v, size)) if name in SHAPES else TEXTURES[name](u, v, size)
    assert 0.05 < drawn.mean() / OPAQUE < 0.8
    if name == "crescent":  # opens to the other side, and turned by half it is the same
        mirrored = coverage(SHAPES[name](-u, v, size))
        np.testing.assert_array_equal(mirrored[:, :, ::-1], drawn)
        return
    moved = drawn[:, :, ::-1]
    shift = [np.abs(np.roll(moved, pixels, axis=2) - drawn).mean() for pixels in range(10)]
    assert min(shift) < OPAQUE / 16
