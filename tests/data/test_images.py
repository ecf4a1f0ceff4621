"""Decoding any file gives an upright image of 8 bits or a reason."""

import contextlib
import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data.pictures import TRANSFORM, encoded, noise
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.data.decoding import MAX_PIXELS, BadImage, DecodeOptions, Window
from fedcopl.data.formats import read_picture
from fedcopl.data.images import silence_decoders

PLAIN = noise(0)


def decode(content, window=Window("file")):  # noqa: B008
    return read_picture(content, DecodeOptions(window)).image


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "JPEG", "PPM", "TIFF", "WEBP"])
def test_all_formats_are_read(form):
    assert decode(encoded(PLAIN, form)).size == PLAIN.size


def test_lossless_bytes_come_back():
    assert np.array_equal(np.asarray(decode(encoded(PLAIN))), np.asarray(PLAIN))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    turned = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}[orientation]  # Image.Transpose, from the EXIF standard
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = PLAIN if turned is None else PLAIN.transpose(Image.Transpose(turned))
    assert np.array_equal(np.asarray(decode(encoded(PLAIN, exif=exif))), np.asarray(upright))


def test_the_first_frame_of_an_animation():
    frames = [noise(seed).quantize() for seed in range(3)]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    still = encoded(frames[0], "GIF")
    assert np.array_equal(np.asarray(decode(animation).convert("RGB")), np.asarray(decode(still).convert("RGB")))


def test_sixteen_bits_scaled_by_their_full_range():
    grey = np.array([[0, 128, 129, 257, 32768, 65535]] * 2, np.uint16)
    image = decode(encoded(Image.fromarray(grey)), Window("type"))
    assert image.mode == "L"
    # 65535 / 255 = 257 values become one; fractions above one half round up: 129 / 257 > 0.5
    assert np.asarray(image)[0].tolist() == [0, 0, 1, 1, 128, 255]


def test_cmyk_and_palettes_become_rgb():
    assert TRANSFORM.resize_and_crop(decode(encoded(PLAIN.convert("CMYK"), "JPEG"))).shape == (3, 16, 16)
    seen = TRANSFORM.resize_and_crop(decode(encoded(PLAIN.quantize(200))))
    assert np.array_equal(seen, TRANSFORM.resize_and_crop(PLAIN.quantize(200).convert("RGB")))


def test_a_transparent_palette_is_drawn_on_white():
    clear = Image.new("P", (20, 20), 0)
    clear.putpalette([10, 20, 30, 200, 100, 50])
    assert (TRANSFORM.resize_and_crop(decode(encoded(clear, transparency=0))) == 255).all()


def test_a_damaged_exif_entry_is_ignored():
    damaged = encoded(PLAIN, "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xffgarbage")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with silence_decoders():
            assert decode(damaged).size == PLAIN.size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_kind_of_colour_becomes_rgb(mode):
    form = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    assert TRANSFORM.resize_and_crop(decode(encoded(PLAIN.convert(mode), form))).shape == (3, 16, 16)


BROKEN = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello, I am not a picture at all", "not an image of a known format"),
    "cut short": (encoded(PLAIN, "JPEG")[:-200], "damaged: "),
    "cut short png": (encoded(PLAIN)[:200], "damaged: "),
    "postscript": (encoded(PLAIN, "EPS"), "not an image of a known format"),
    "lab": (encoded(Image.new("LAB", (9, 9)), "TIFF"), "the colour mode LAB cannot be converted to RGB"),
    "thin": (encoded(Image.new("L", (500, 2))), "500 x 2 is more than 200 times longer than wide"),
}


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_has_a_reason(content, reason):
    with pytest.raises(BadImage) as error:
        decode(content)
    assert str(error.value).startswith(reason)
    assert "\n" not in str(error.value)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that claims to be of this size, in 70 bytes."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")):
        parts.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
    return b"".join(parts)


@pytest.mark.parametrize("side", [9460, 60_000])
def test_a_decompression_bomb_is_refused_in_silence(side):
    assert side * side > MAX_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with silence_decoders(), pytest.raises(BadImage, match=f"more than {MAX_PIXELS:,} pixels"):
            decode(png_of_size(side, side))


@given(st.binary(max_size=200), st.integers(0, 300))
def test_invalid_bytes_raise_no_other_error(garbage, place):
    whole = encoded(PLAIN)
    for content in (garbage, whole[:place] + garbage + whole[place:]):
        with contextlib.suppress(BadImage):
            decode(content)


@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from(["RGB", "L", "RGBA", "P"]), st.booleans(), st.integers(0, 9)
)
def test_cropping_and_normalising_is_the_whole_transform(width, height, mode, squash, seed):
    transform = ImageTransform(short_side=12, crop=10, squash=squash)
    image = noise(seed, (width, height), mode)
    pixels = transform.resize_and_crop(image)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (3, 10, 10))
    # the formula of CLIP's preprocessing, colours last, in the order it is usually written
    tall = np.asarray(pixels.transpose(1, 2, 0), np.float32) / np.float32(255)
    expected = (tall - np.asarray(transform.mean, np.float32)) / np.asarray(transform.std, np.float32)
    assert np.array_equal(transform(image), expected.transpose(2, 0, 1))
    assert np.array_equal(transform.scale(np.stack([pixels, pixels]))[1], transform(image))


def test_the_key_depends_on_everything_that_changes_the_pixels():
    keys = {
        ImageTransform(224, 224).key,
        ImageTransform(256, 224).key,
        ImageTransform(256, 256).key,
        ImageTransform(224, 224, squash=True).key,
        ImageTransform(224, 224, resample=Image.Resampling.BILINEAR).key,
    }
    assert len(keys) == 5
    assert ImageTransform(224, 224, mean=(0, 0, 0)).key in keys
