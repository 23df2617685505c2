"""One image file to uint8 pixels, whatever its mode: the same for training, calibration, validation and inference.

- Orientation written by cameras (EXIF) is applied.
- Transparent parts are laid on white: that is what nearly every page and viewer shows them on, and dropping the alpha
  channel would uncover colours that nobody has ever seen.
- 16-bit grey is scaled to 8 bits (65,535 becomes 255), not clipped. Floating-point pixels have no fixed range and are refused.
- Grey is ITU-R 601 luma, as Pillow makes it; CMYK is converted without colour profiles.
- `size` resizes the shorter side to it (bilinear, antialiased) and cuts the square out of the middle: torchvision's
  Resize and CenterCrop on PIL images, bit for bit, so that a model trained with these sees the same pixels.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

BACKGROUND = (255, 255, 255)
_ORIENTATION_TAG = 0x0112
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Everything that Pillow's readers raise on damaged files; OSError is most of it.
_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    AssertionError,
    AttributeError,
    NotImplementedError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


class UnreadableImage(Exception):
    """Its text says why, without the path."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One decoded file."""

    pixels_CHW: np.ndarray  # uint8, C is 1 or 3
    converted: str  # its mode where that was neither RGB nor what was asked for, else ""
    several_frames: bool  # an animation or a stack, of which this is the first


def decode_file(path: Path, channels: Literal[1, 3], size: int | None) -> Picture:
    """Reads one image file as RGB or grey.

    Raises:
        UnreadableImage: empty, cut short, no image, too large, or of a mode without a defined meaning.
    """
    try:
        with Image.open(path) as image:
            several_frames = bool(getattr(image, "is_animated", False))
            image.load()
            upright = _upright(image)
            converted = _mode_to_report(upright, channels)
            flat = _flattened(upright, "L" if channels == 1 else "RGB")
    except UnidentifiedImageError:
        raise UnreadableImage(_what_instead(path)) from None
    except _UNREADABLE as error:
        raise UnreadableImage(_reason(error)) from error
    if size is not None:
        flat = _squared(flat, size)
    pixels = np.asarray(flat)
    pixels_CHW = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return Picture(pixels_CHW=np.ascontiguousarray(pixels_CHW), converted=converted, several_frames=several_frames)


def _upright(image: Image.Image) -> Image.Image:
    method = _TRANSPOSITIONS.get(image.getexif().get(_ORIENTATION_TAG, 1))
    return image if method is None else image.transpose(method)


def _mode_to_report(image: Image.Image, channels: int) -> str:
    transparent = image.has_transparency_data
    if image.mode == ("L" if channels == 1 else "RGB") and not transparent:
        return ""
    return f"{image.mode} with transparency" if transparent and image.mode in ("1", "L", "I;16", "P", "RGB") else image.mode


def _flattened(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        return _eight_bits(image).convert(mode)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (*BACKGROUND, 255))
        return Image.alpha_composite(ground, layer).convert("RGB").convert(mode)
    return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 65_535):
        raise ValueError("32-bit pixels beyond 65,535 have no fixed range")
    grey = ((values * 255 + 32_767) // 65_535).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = BACKGROUND[0]
    return Image.fromarray(grey)


def _squared(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    target = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    resized = image if target == image.size else image.resize(target, Image.Resampling.BILINEAR)
    left = round((target[0] - size) / 2.0)
    top = round((target[1] - size) / 2.0)
    return resized.crop((left, top, left + size, top + size))


def _what_instead(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(512).lstrip()
    if not start:
        return "an empty file" if path.stat().st_size == 0 else "no image that Pillow can read"
    if start[:1] == b"<":
        return "a web page or XML, no image"
    return "no image that Pillow can read"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text or type(error).__name__
