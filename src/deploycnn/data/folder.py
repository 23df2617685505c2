"""One's own images: `train/CLASS/` and `val/CLASS/` or `test/CLASS/`, any format that Pillow reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from deploycnn.data._contract import DataMissing, DataSource, Decoded, Found
from deploycnn.data._trees import ImageTree, ignored_notes, scan_tree
from deploycnn.errors import DataError
from deploycnn.recipe import DataOptions
from deploycnn.types import ProgressCallback

_LAYOUT = "lay the images out as train/CLASS/*.jpg and val/CLASS/*.jpg (or test/), or set data.root"


class Folder(DataSource):
    """Classes are the folders below `train`, in the order of their names; the other tree is mapped to them by name.

    Where both `test` and `val` have class folders, `test` is the test set and `val` is not used: images for validation
    are taken from training, as with every data set.
    """

    name: ClassVar[str] = "folder"

    def find(self, options: DataOptions) -> Found | None:
        root = options.root
        if not (root / "train").is_dir():
            if root.is_dir() and (below := [path.name for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."]):
                raise DataError(f"{root} has no folder train", found=f"folders {', '.join(below)}", remedy=_LAYOUT)
            return None
        train = scan_tree(root / "train")
        test, notes = _test_tree(root)
        classes = tuple(sorted(train.classes))
        notes += _check_classes(train, test, classes)
        treatment = {"channels": options.channels or 3, "size": options.size, "skip_unreadable": options.skip_unreadable}

        def decode(scratch: Path, progress: ProgressCallback) -> Decoded:
            from deploycnn.data._decode import Treatment, decode_trees  # loads Pillow

            return decode_trees({"train": train, "test": test}, classes, Treatment.model_validate(treatment), scratch, progress)

        fingerprint = {"train": train.fingerprint, "test": test.fingerprint, "treatment": treatment}
        notes += ignored_notes(train, test)
        return Found(source=f"{train.root}, {test.root}", fingerprint=fingerprint, decode=decode, notes=tuple(notes))

    def fetch(self, options: DataOptions, progress: ProgressCallback, warn: Callable[[str], None]) -> None:
        raise DataMissing(f"there are no images at {options.root}", found="no folder train in it", remedy=_LAYOUT)

    def flips(self, classes: Sequence[str]) -> bool:
        """Not where a class name is a number (digits, angles) or tells left from right: mirrored, such an image is another class."""
        return not any(re.fullmatch(r"[-+]?\d+(\.\d+)?", name) or re.search(r"left|right", name, re.IGNORECASE) for name in classes)


def _test_tree(root: Path) -> tuple[ImageTree, list[str]]:
    trees = {name: scan_tree(root / name) for name in ("test", "val") if (root / name).is_dir()}
    usable = [name for name, tree in trees.items() if tree.classes]
    if not usable:
        there = f"{', '.join(trees)} without class folders" if trees else "neither"
        raise DataError(f"{root} has no test images", found=f"val/ or test/ expected: {there}", remedy=_LAYOUT)
    notes = [f"{root / name} is not used: {root / usable[0]} is the test set" for name in trees if name != usable[0]]
    return trees[usable[0]], notes


def _check_classes(train: ImageTree, test: ImageTree, classes: Sequence[str]) -> list[str]:
    if not classes:
        raise DataError(f"{train.root} has no class folders", found=f"{sum(train.ignored.values())} other entries", remedy=_LAYOUT)
    if empty := [name for name in classes if not train.classes[name]]:
        raise DataError(
            f"there are classes without an image in {train.root}",
            found=", ".join(empty),
            remedy="bring images of them, or remove the folders",
        )
    if unknown := [name for name, paths in test.classes.items() if name not in train.classes and paths]:
        raise DataError(
            f"{test.root} has classes that {train.root} does not have",
            found=f"{', '.join(unknown)}; classes of training: {', '.join(classes)}",
            remedy="rename or remove these folders, or bring training images for them",
        )
    missing = [name for name in classes if not test.classes.get(name)]
    return [f"no test images of {', '.join(missing)}: figures are for the other {len(classes) - len(missing)} classes"] if missing else []
