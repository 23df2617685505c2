"""Folders of images, one folder a class: what is in them, found without opening a file."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
    classes: Mapping[str, tuple[Path, ...]]
    ignored: Mapping[str, int]
    fingerprint: str

    def __len__(self) -> int:
        return sum(len(paths) for paths in self.classes.values())


def scan_tree(root: Path) -> ImageTree:
    """Looks at every file below `root` without opening any. Class names are compared in Unicode's composed form.

    Raises:
        DataError: a folder cannot be read.
    """
    ignored: Counter[str] = Counter()
    lines = [f"pillow {package_version('pillow')}", str(root.absolute())]
    classes: dict[str, tuple[Path, ...]] = {}
    for entry in _entries(root):
        if _is_system(entry.name):
            ignored["hidden or system files"] += 1
        elif not entry.is_dir():
            ignored["files outside of the class folders"] += 1
        else:
            paths: list[Path] = []
            _collect(Path(entry.path), paths, lines, ignored, ())
            name = unicodedata.normalize("NFC", entry.name)
            classes[name] = (*classes.get(name, ()), *paths)
            lines.append(f"class {name!r}")
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    return ImageTree(root=root, classes=classes, ignored=dict(ignored), fingerprint=digest)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(folder, error) from error


def _is_system(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


def _collect(folder: Path, paths: list[Path], lines: list[str], ignored: Counter[str], above: tuple[tuple[int, int], ...]) -> None:
    facts = folder.stat()
    here = (facts.st_dev, facts.st_ino)
    if here in above:  # a link to a folder above
        return
    for entry in _entries(folder):
        if _is_system(entry.name):
            ignored["hidden or system files"] += 1
        elif entry.is_dir():
            _collect(Path(entry.path), paths, lines, ignored, (*above, here))
        elif os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:  # noqa: PTH122  60,000 Path objects cost 0.2 s
            ignored["files without the ending of an image"] += 1
        else:
            paths.append(Path(entry.path))
            lines.append(_line(entry))


def _line(entry: os.DirEntry[str]) -> str:
    try:
        return fingerprint_line(entry.path, entry.stat())
    except OSError:  # a link to nowhere: decoding says so
        return f"{entry.path!r} missing"
