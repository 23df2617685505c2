"""Folders of images, one folder a class: what is in them, found without opening a file."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from deploycnn.data._files import fingerprint_line, unreadable
from deploycnn.environment import package_version

# Endings of everything Pillow reads as pixels. A list, because asking Pillow means loading all its readers; a test compares.
_ENDINGS = """
apng avif avifs blp bmp bw cur dcx dds dib fit fits flc fli ftc ftu gbr gif icb icns ico iim im j2c j2k jfif jp2 jpc
jpe jpeg jpf jpg jpx msp pbm pcd pcx pfm pgm png pnm ppm psd pxr qoi ras rgb rgba sgi tga tif tiff vda vst webp xbm
xpm
"""
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _ENDINGS.split())
_SYSTEM_NAMES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r"})


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTree:
    """Image files by class, both in order of their names (as text: 0, 180, 270, 90, the order of torchvision's ImageFolder).

    Attributes:
        classes: paths by class name; a class folder without images has none.
        ignored: how many entries were passed over, by kind.
        fingerprint: changes with any file's name, size or time, and with Pillow's version.
    """

    root: Path
    classes: Mapping[str, tuple[str, ...]]
    ignored: Mapping[str, int]
    fingerprint: str

    def __len__(self) -> int:
        return sum(len(paths) for paths in self.classes.values())


def scan_tree(root: Path) -> ImageTree:
    """Looks at every file below `root` without opening any. Class names are compared in Unicode's composed form.

    Raises:
        DataError: a folder cannot be read.
    """
    scan = _Scan()
    scan.lines += [f"pillow {package_version('pillow')}", str(root.absolute())]
    classes: dict[str, tuple[str, ...]] = {}
    for entry in _entries(root):
        if _is_system(entry.name):
            scan.ignored["hidden or system files"] += 1
        elif not entry.is_dir():
            scan.ignored["files outside of the class folders"] += 1
        else:
            scan.paths = []
            scan.collect(entry.path, ())
            name = unicodedata.normalize("NFC", entry.name)
            classes[name] = (*classes.get(name, ()), *scan.paths)
    digest = hashlib.sha256("\n".join(scan.lines).encode("utf-8", "surrogateescape")).hexdigest()
    return ImageTree(root=root, classes=classes, ignored=dict(scan.ignored), fingerprint=digest)


class _Scan:
    """What is collected below one class folder. Plain strings: 60,000 Path objects alone would cost a quarter of a second."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.lines: list[str] = []
        self.ignored: Counter[str] = Counter()

    def collect(self, folder: str, above: tuple[tuple[int, int], ...]) -> None:
        facts = os.stat(folder)  # noqa: PTH116
        here = (facts.st_dev, facts.st_ino)
        if here in above:  # a link to a folder above
            return
        self.lines.append(folder)
        for entry in _entries(folder):
            name = entry.name
            if _is_system(name):
                self.ignored["hidden or system files"] += 1
            elif entry.is_dir():
                self.collect(entry.path, (*above, here))
            elif "." + name.rpartition(".")[2].lower() not in IMAGE_SUFFIXES:
                self.ignored["files without the ending of an image"] += 1
            else:
                self.paths.append(entry.path)
                self.lines.append(_line(entry))


def ignored_notes(*trees: ImageTree) -> tuple[str, ...]:
    """What was passed over in these trees, for people."""
    ignored: Counter[str] = Counter()
    for tree in trees:
        ignored.update(tree.ignored)
    return tuple(f"{count} {kind} ignored" for kind, count in sorted(ignored.items()))


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=attrgetter("name"))
    except OSError as error:
        raise unreadable(Path(folder), error) from error


def _is_system(name: str) -> bool:
    return name[0] == "." or name.lower() in _SYSTEM_NAMES


def _line(entry: os.DirEntry[str]) -> str:
    try:
        return fingerprint_line(entry.name, entry.stat())
    except OSError:  # a link to nowhere: decoding says so
        return f"{entry.name!r} missing"
