from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deploycnn.data import _images
from deploycnn.data._images import UnreadableImage, decode_file
from deploycnn.data._trees import IMAGE_SUFFIXES

# Pillow knows their names but reads them only with other programs, or not as pixels.
NOT_PIXELS = {".bufr", ".emf", ".eps", ".grib", ".h5", ".hdf", ".mpeg", ".mpg", ".pdf", ".palm", ".ps", ".wmf", ".mpo", ".xv"}


def decoded(image: Image.Image, path: Path, channels: Any = 3, size: int | None = None, **saving: Any) -> np.ndarray:
    image.save(path, **saving)
    return decode_file(path, channels, size).pixels_CHW


def test_every_ending_that_pillow_reads_is_taken() -> None:
    Image.init()
    readable = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    assert readable - IMAGE_SUFFIXES - NOT_PIXELS == set()


# --- modes -----------------------------------------------------------------------------------


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert decoded(image, tmp_path / "a.png")[:, 0].T.tolist() == [[255, 255, 255], [10, 20, 30]]


def test_half_transparent_is_half_white(tmp_path: Path) -> None:
    pixels = decoded(Image.new("RGBA", (1, 1), (0, 100, 200, 128)), tmp_path / "a.png")[:, 0, 0]
    np.testing.assert_allclose(pixels, [127, 177, 227], atol=1)


def la(path: Path) -> np.ndarray:
    return decoded(Image.new("LA", (1, 1), (40, 0)), path)


def palette(path: Path) -> np.ndarray:
    image = Image.new("P", (1, 1), 0)
    image.putpalette([9, 8, 7])
    return decoded(image, path, transparency=0)


def transparent_grey(path: Path) -> np.ndarray:
    return decoded(Image.new("L", (1, 1), 40), path, transparency=40)


def transparent_colour(path: Path) -> np.ndarray:
    return decoded(Image.new("RGB", (1, 1), (1, 2, 3)), path, transparency=(1, 2, 3))


def transparent_deep_grey(path: Path) -> np.ndarray:
    return decoded(Image.fromarray(np.full((1, 1), 4000, np.uint16)), path, transparency=4000)


@pytest.mark.parametrize("make", [la, palette, transparent_grey, transparent_colour, transparent_deep_grey])
def test_every_kind_of_transparency_is_white(make: Any, tmp_path: Path) -> None:
    assert make(tmp_path / "a.png").ravel().tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("mode", "suffix", "converted"),
    [
        ("RGB", ".png", ""),
        ("L", ".png", "L"),
        ("1", ".png", "1"),
        ("P", ".png", "P"),
        ("LA", ".png", "LA"),
        ("RGBA", ".png", "RGBA"),
        ("I;16", ".png", "I;16"),
        ("CMYK", ".jpg", "CMYK"),
        ("CMYK", ".tif", "CMYK"),
        ("RGBA", ".webp", "RGBA"),
        ("1", ".bmp", "1"),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_what_was_asked_for(mode: str, suffix: str, converted: str, channels: Any, draw: Any) -> None:
    picture = decode_file(draw(f"a{suffix}", mode=mode, size=(7, 5)), channels, None)
    assert picture.pixels_CHW.shape == (channels, 5, 7)
    assert picture.pixels_CHW.dtype == np.uint8
    assert picture.pixels_CHW.flags.c_contiguous
    assert picture.converted == (converted if channels == 3 else {"": "RGB", "L": ""}.get(converted, converted))


def test_palette_transparency_is_told(tmp_path: Path) -> None:
    image = Image.new("P", (2, 2), 0)
    image.save(tmp_path / "a.png", transparency=0)
    assert decode_file(tmp_path / "a.png", 3, None).converted == "P with transparency"


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 128, 257 * 100, 65_535]], np.uint16)
    assert decoded(Image.fromarray(values), tmp_path / "a.png", channels=1).ravel().tolist() == [0, 0, 100, 255]
    assert decoded(Image.fromarray(values), tmp_path / "a.tif")[2].ravel().tolist() == [0, 0, 100, 255]


def test_cmyk_colours(tmp_path: Path) -> None:
    assert decoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), tmp_path / "a.jpg").min() > 250
    assert decoded(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), tmp_path / "b.jpg").max() < 5


@pytest.mark.parametrize(
    ("image", "reason"), [(Image.new("F", (2, 2)), "floating-point"), (Image.new("I", (2, 2), 70_000), "32-bit pixels")]
)
def test_modes_without_a_fixed_range_are_refused(image: Image.Image, reason: str, tmp_path: Path) -> None:
    image.save(tmp_path / "a.tif")
    with pytest.raises(UnreadableImage, match=reason):
        decode_file(tmp_path / "a.tif", 3, None)


# --- orientation and size --------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    from PIL import ImageOps

    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40)
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = decoded(image, tmp_path / "a.png", channels=1, exif=exif)
    with Image.open(tmp_path / "a.png") as written:
        np.testing.assert_array_equal(pixels[0], np.asarray(ImageOps.exif_transpose(written)))
    assert pixels.shape == ((1, 2, 3) if orientation < 5 else (1, 3, 2))


@pytest.mark.parametrize("size", [(8, 8), (50, 31), (31, 50), (20, 61), (9, 200)])
def test_resizing_is_torchvisions(size: tuple[int, int], draw: Any) -> None:
    from torchvision.transforms import CenterCrop, Compose, Resize

    path = draw("a.png", size=size)
    with Image.open(path) as image:
        expected = Compose([Resize(20), CenterCrop(20)])(image)
    np.testing.assert_array_equal(decode_file(path, 3, 20).pixels_CHW, np.asarray(expected).transpose(2, 0, 1))


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    picture = decode_file(tmp_path / "a.gif", 3, None)
    assert picture.several_frames
    assert picture.pixels_CHW[:, 0, 0].tolist() == [255, 0, 0]


# --- what cannot be read ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty file"), (b"\n <!DOCTYPE html><html></html>", "web page"), (b"text", "no image"), (b"\xff\xd8\xff", "no image")],
)
def test_what_is_no_image_says_what_it_is(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(UnreadableImage, match=reason):
        decode_file(tmp_path / "a.jpg", 3, None)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="No such file"):
        decode_file(tmp_path / "a.jpg", 3, None)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".bmp", ".webp", ".tif", ".ppm"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_half_an_image_is_none(suffix: str, share: float, draw: Any) -> None:
    path = draw(f"a{suffix}", size=(64, 64))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(UnreadableImage):
        decode_file(path, 3, None)


def test_a_bomb_is_refused(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw("a.png", size=(64, 64))
    monkeypatch.setattr(_images.Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImage, match="pixels"):
        decode_file(path, 3, None)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_an_error_or_an_image(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every error of Pillow's readers is translated."""
    import warnings

    kind = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "ICNS", "TGA", "PCX", "SGI", "DDS"]))
    buffer = io.BytesIO()
    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)).save(buffer, kind)
    changed = bytearray(buffer.getvalue()[: data.draw(st.integers(1, len(buffer.getvalue())))])
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"changed.{kind.lower()}"
    path.write_bytes(changed)
    outcome: object = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = decode_file(path, 3, None).pixels_CHW.shape[0]
        except UnreadableImage as error:
            outcome = str(error)
    assert outcome == 3 or (isinstance(outcome, str) and outcome)
