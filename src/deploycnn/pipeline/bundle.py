"""What a run leaves for another machine: `bundle.json` beside the record, and what it lists.

    artifacts/...             what was compiled for elsewhere, and the reference
    bundle/variants/NAME/     the ONNX files (and the PyTorch program) that they were compiled from, to build them again
    bundle/test.npz           test images (uint8 NCHW) and labels; left out where they are larger than `limits.bundle_mb`
    bundle/reference.npy      logits of the fp32 reference on those images

Every file is listed with its digest, by a path relative to the run's folder: the folder can be moved or copied whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np
from pydantic import ValidationError

from deploycnn import __version__, units
from deploycnn.disk import disk_errors, file_sha256, write_atomic
from deploycnn.errors import RecordError
from deploycnn.pipeline.compiling import Form
from deploycnn.pipeline.context import Context, plain_name
from deploycnn.pipeline.planning import PlannedCell
from deploycnn.pipeline.preparing import HeldOut
from deploycnn.pipeline.saved import read_variant, save_variant
from deploycnn.pipeline.validating import Validated
from deploycnn.record import Cell
from deploycnn.types import FileEntry, Value, Variant

BUNDLE_NAME = "bundle.json"
SCHEMA_VERSION = 1
_FOLDER = Path("bundle")
_IMAGES = _FOLDER / "test.npz"
_LOGITS = _FOLDER / "reference.npy"


class BundledCell(Value):
    """A cell as the run left it, and the variant that its artifact was compiled from."""

    cell: Cell
    variant: str  # folder, relative to the run


class BundledImages(Value):
    """The test images that every figure of the run stands on."""

    sha256: str  # over shape, pixels and labels, as data sets have it
    n_images: int
    file: str | None  # None: larger than the limit


class Bundle(Value):
    """`bundle.json`."""

    schema_version: int = SCHEMA_VERSION
    deploycnn_version: str
    images: BundledImages
    logits: str  # file of the reference's logits
    reference: BundledCell
    cells: tuple[BundledCell, ...]  # those that wait for another machine
    files: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)


# --- writing ------------------------------------------------------------------------------


def write_bundle(context: Context, held_out: HeldOut, variants: dict[Form, Variant], validated: Validated) -> Bundle | None:
    """Makes the run's folder a bundle where cells were deferred, and says its size; None where there is nothing to hand on.

    Raises:
        StoreError: the disk said no.
    """
    out = context.out
    (out / BUNDLE_NAME).unlink(missing_ok=True)  # an earlier run's; what it lists is about to change
    waiting = [planned for planned in validated.cells if planned.cell.outcome.state == "deferred" and planned.cell.folder]
    if not waiting:
        return None
    if validated.reference_NK is None:
        context.talk.warn("no bundle is made: without the reference's answers nothing can be validated elsewhere")
        return None
    with disk_errors(out):
        shutil.rmtree(out / _FOLDER, ignore_errors=True)
        (out / _FOLDER).mkdir()
        np.save(out / _LOGITS, validated.reference_NK)
        images = _save_images(context, held_out)
        reference, *cells = (_bundled(out, variants, planned) for planned in (validated.cells[0], *waiting))
        folders = [_FOLDER, *(Path(bundled.cell.folder or "") for bundled in (reference, *cells))]
        bundle = Bundle(
            deploycnn_version=__version__,
            images=images,
            logits=_LOGITS.as_posix(),
            reference=reference,
            cells=tuple(cells),
            files=tuple(_entries(out, folders)),
        )
        write_atomic(out / BUNDLE_NAME, bundle.model_dump_json(indent=1) + "\n")
    context.talk.say(_size_line(bundle))
    return bundle


def _save_images(context: Context, held_out: HeldOut) -> BundledImages:
    facts = BundledImages(sha256=held_out.sha256, n_images=len(held_out.labels_N), file=None)
    if held_out.images_NCHW.nbytes > context.recipe.limits.bundle_mb * 1e6:
        return facts
    # Not compressed: photographs hardly shrink, and it would be the slowest step of a run whose results are all known.
    np.savez(context.out / _IMAGES, allow_pickle=False, images_NCHW=held_out.images_NCHW, labels_N=held_out.labels_N)
    return facts.model_copy(update={"file": _IMAGES.as_posix()})


def _bundled(out: Path, variants: dict[Form, Variant], planned: PlannedCell) -> BundledCell:
    variant = variants[planned.cell.precision, planned.cell.int8_form]
    name = variant.precision + (f"-{variant.int8_form}" if variant.int8_form else "")
    folder = _FOLDER / "variants" / plain_name(name)
    if not (out / folder).exists():
        (out / folder).mkdir(parents=True)
        copies = {}
        for field, path in (("onnx_path", variant.onnx_path), ("program_path", variant.program_path)):
            if path is not None:
                copies[field] = Path(shutil.copyfile(path, out / folder / path.name))
        save_variant(out / folder, variant.model_copy(update=copies))
    return BundledCell(cell=planned.cell, variant=folder.as_posix())


def _entries(out: Path, folders: Iterable[Path]) -> Iterable[FileEntry]:
    for path in sorted({path for folder in folders for path in (out / folder).rglob("*") if path.is_file()}):
        yield FileEntry(name=path.relative_to(out).as_posix(), size_bytes=path.stat().st_size, sha256=file_sha256(path))


def _size_line(bundle: Bundle) -> str:
    n_cells = len(bundle.cells)
    without = "" if bundle.images.file else ", without the test images, which are above limits.bundle_mb"
    return (
        f"bundle: {n_cells} cell{'s wait' if n_cells > 1 else ' waits'} for another machine; "
        f"{len(bundle.files)} files, {units.size(bundle.size_bytes)}{without}"
    )


# --- reading ------------------------------------------------------------------------------


def read_bundle(run: Path) -> Bundle:
    """The bundle of a run's folder.

    Raises:
        RecordError: there is none, it is damaged, another version's, or names files outside the folder.
    """
    path = run / BUNDLE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecordError(
            f"{run} cannot be resumed",
            found=f"it holds no {BUNDLE_NAME}: no cell of it waits",
            remedy="run it again with a target to wait for",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read", found=str(error), remedy="copy the run's folder again") from error
    try:
        bundle = Bundle.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        remedy = "copy the run's folder again, or resume it with the deploycnn that made it"
        raise RecordError(f"{path} is damaged, or another version's", found=f"{where}: {first['msg']}", remedy=remedy) from error
    if bundle.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema version {bundle.schema_version}",
            found=f"this deploycnn reads version {SCHEMA_VERSION}",
            remedy="resume it with the deploycnn that made it",
        )
    strays = [name for name in _named(bundle) if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    if strays:
        raise RecordError(f"{path} names files outside the run's folder", found=strays[0], remedy="do not trust it")
    return bundle


def _named(bundle: Bundle) -> Iterable[str]:
    yield from (entry.name for entry in bundle.files)
    yield from (name for name in (bundle.images.file, bundle.logits) if name)
    for bundled in (bundle.reference, *bundle.cells):
        yield from (bundled.variant, bundled.cell.folder or "")


def faults(run: Path, bundle: Bundle) -> dict[str, str]:
    """What is wrong with the files of a bundle, by name; empty where it is whole."""
    found = {}
    for entry in bundle.files:
        path = run / entry.name
        if not path.is_file():
            found[entry.name] = "it is missing"
        elif (size := path.stat().st_size) != entry.size_bytes:
            found[entry.name] = f"it has {size} bytes instead of {entry.size_bytes}"
        elif file_sha256(path) != entry.sha256:
            found[entry.name] = "its contents were changed"
    return found


def bundled_variants(run: Path, bundle: Bundle) -> dict[Form, Variant]:
    """The variants of a whole bundle, with the paths that they have here."""
    found = {bundled.variant: read_variant(run / bundled.variant) for bundled in (bundle.reference, *bundle.cells)}
    return {(variant.precision, variant.int8_form): variant for variant in found.values()}


def bundled_images(run: Path, file: str, sha256: str, classes: tuple[str, ...]) -> HeldOut:
    """The test images of a whole bundle."""
    with np.load(run / file, allow_pickle=False) as archive:
        return HeldOut(images_NCHW=archive["images_NCHW"], labels_N=archive["labels_N"], sha256=sha256, classes=classes)
