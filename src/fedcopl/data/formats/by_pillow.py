"""Formats that Pillow decodes, HEIC by a plugin. Images of more than 8 bits keep all bits until they are scaled."""

import io
import sys
from contextlib import suppress
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from ..decoding import (
    MOST_PIXELS,
    BadImage,
    DecodeOptions,
    Picture,
    Span,
    Window,
    eight_bits,
    one_line,
    refuse_giants,
)
from . import tiff

# Listed, because Pillow would run Ghostscript for an EPS file of any name.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_COLOURS = frozenset("1 L LA P PA RGB RGBA RGBX CMYK YCbCr HSV".split())  # modes that can become RGB
_OTHER_HALF = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_SUBFILE, _PHOTOMETRIC, _BITS, _PLANES, _SAMPLE_FORMAT = 254, 262, 258, 284, 339  # tags of TIFF
_NO_DATA = 42113  # a tag of GDAL's
_SEPARATE, _UNSIGNED = 2, 1  # values of these tags
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


class _BeyondPillow(Exception):
    """A TIFF of bands or data types that Pillow does not support."""


def pages(content: bytes) -> int:
    """Count the pages of a TIFF; an animation has one."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return len(_pages(image))
    except UnidentifiedImageError:
        return tiff.pages(content)


def read(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode an image by Pillow, or by tifffile if it is a TIFF that Pillow does not support; raises BadImage."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIC_BRANDS:
        return _read_heic(content)
    is_tiff = content[:4] in tiff.SIGNATURES
    if is_tiff and options.bands:
        return tiff.read(content, options, page)
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return _read(image, content, options, page)
    except BadImage:
        raise
    except _BeyondPillow:
        return tiff.read(content, options, page)
    except UnidentifiedImageError:
        if is_tiff:
            return tiff.read(content, options, page)
        raise BadImage(f"not an image of a known format ({', '.join(_FORMATS)}, DICOM, HEIC)") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MOST_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise many types on a damaged file
        raise BadImage(f"damaged: {one_line(error)}") from error


def _read(image: ImageFile.ImageFile, content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode one page, all of its bits included."""
    refuse_giants(image.size)
    pages = _pages(image)
    chosen = pages[options.page_of(len(pages)) if page is None else page]
    if image.format == "TIFF":
        image.seek(chosen)
        refuse_giants(image.size)
    if _tag(image, _PLANES, 1) == _SEPARATE and int(_tag(image, _BITS, 8)) > 8:
        raise _BeyondPillow  # Pillow would mix up the channels
    arguments = image.tile[0][3] if image.tile else ""
    raw_mode = str(arguments[0] if isinstance(arguments, tuple) else arguments)
    if image.mode in ("RGB", "RGBA", "RGBX") and raw_mode[-4:-1] == ";16" and "LA" not in raw_mode:
        picture = _deep_colours(image, content, chosen, options.window)
    else:
        image.load()
        picture = _to_eight_bits(image, options.window)
    return picture._replace(remarks=picture.remarks + (options.page_remark(len(pages)) if page is None else ()))


def _pages(image: ImageFile.ImageFile) -> list[int]:
    """List the pages of a TIFF without thumbnails and masks; afterwards the first page is open."""
    pages = []
    for number in count() if image.format == "TIFF" else ():
        try:
            image.seek(number)
        except Exception:  # the end, or a damaged chain after the pages found
            break
        if not int(_tag(image, _SUBFILE, 0)) & tiff.REDUCED_OR_MASK:
            pages.append(number)
    image.seek(0)
    return pages or [0]


def _tag(image: Image.Image, number: int, otherwise: Any) -> Any:
    tags = getattr(image, "tag_v2", None) or {}
    value = tags.get(number, otherwise)
    return value[0] if isinstance(value, tuple) else value


def _deep_colours(image: ImageFile.ImageFile, content: bytes, page: int, window: Window) -> Picture:
    """Decode colours of 16 bits, of which Pillow drops the low bytes, and scale them by the window.

    The file is decoded twice: for the high bytes, and with swapped byte order for the low bytes. Alpha is scaled by its
    full range.
    """
    with Image.open(io.BytesIO(content), formats=_FORMATS) as reopened:
        if page:
            reopened.seek(page)
        reopened.tile = [_swap_bytes(tile) for tile in reopened.tile]
        image.load()
        reopened.load()
        high, low = (np.asarray(_rotate_upright(half), np.uint16) for half in (image, reopened))
    numbers = high * np.uint16(256) + low
    colours, span = eight_bits(numbers[..., :3], window)
    if image.mode == "RGBA":
        alpha, _ = eight_bits(numbers[..., 3:], Window("type"))
        colours = np.concatenate([colours, alpha], axis=-1)
    return Picture(Image.fromarray(colours), (window.remark("colours of 16 bits"),), span)


def _swap_bytes(tile: Any) -> Any:
    """Swap the byte order of a tile, which is a plain tuple in older versions of Pillow."""
    *location, given = tile
    mode, *others = given if isinstance(given, tuple) else (given,)
    turned = mode[:-1] + _OTHER_HALF[mode[-1]]
    parts = (*location, (turned, *others) if isinstance(given, tuple) else turned)
    return tile._make(parts) if hasattr(tile, "_make") else parts


def _rotate_upright(image: Image.Image) -> Image.Image:
    """Copy an image and apply its EXIF orientation; a damaged entry is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def _to_eight_bits(image: ImageFile.ImageFile, window: Window) -> Picture:
    """Convert to 8 bits per channel; deep grey is scaled by the window."""
    upright = _rotate_upright(image)
    if upright.mode in _COLOURS:
        return Picture(upright)
    if not (upright.mode in ("I", "F") or upright.mode.startswith("I;16")):
        raise BadImage(f"colours of the kind {upright.mode}, which cannot be turned into RGB")
    numbers, kind = np.asarray(upright), "floating point"
    is_sixteen = image.format in ("PNG", "PPM")
    if numbers.dtype.kind != "f":
        bits = int(_tag(image, _BITS, 16 if is_sixteen else 8 * numbers.dtype.itemsize))
        kind = f"{bits} bits"
        if bits == 32 and int(_tag(image, _SAMPLE_FORMAT, _UNSIGNED)) == _UNSIGNED:
            numbers = numbers.view(np.uint32)  # Pillow keeps unsigned 32 bits in a signed mode
    missing: NDArray[np.bool_] | None = None
    with suppress(ValueError):  # most files do not mark pixels without data, as GeoTIFF does
        missing = numbers == float(_tag(image, _NO_DATA, ""))
    grey, span = eight_bits(numbers, window, whole=Span(0, 65535) if is_sixteen else None, missing=missing)
    if _tag(image, _PHOTOMETRIC, 1) == tiff.WHITE_IS_ZERO:
        grey = 255 - grey
    return Picture(Image.fromarray(grey), (window.remark(f"grey of {kind}"),), span)


def _read_heic(content: bytes) -> Picture:
    """Read a HEIC photograph with pillow-heif (an extra): 8 bits, rotated as the file specifies."""
    try:
        package: Any = import_module("pillow_heif")
    except ImportError:
        raise BadImage("HEIC, which needs: pip install 'fedcopl[heic]'") from None
    try:
        file = package.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
        refuse_giants(file.size)
        return Picture(file.to_pillow(), ("HEIC",))
    except BadImage:
        raise
    except Exception as error:  # libheif's errors, and Python's
        raise BadImage(f"damaged: {one_line(error)}") from error
