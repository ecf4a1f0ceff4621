"""Formats that Pillow decodes, HEIC by a plugin. Images of more than 8 bits keep all bits until they are scaled."""

import io
import sys
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
    page_remark,
    refuse_giants,
    remark,
)
from .tiff import REDUCED_OR_MASK, TIFF, WHITE_IS_ZERO

# Listed, because Pillow would run Ghostscript for an EPS file of any name.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_COLOURS = frozenset("1 L LA P PA RGB RGBA RGBX CMYK YCbCr HSV".split())  # modes that can become RGB
_OTHER_HALF = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_SUBFILE, _PHOTOMETRIC, _BITS, _PLANES, _SAMPLE_FORMAT = 254, 262, 258, 284, 339  # tags of TIFF
_NO_DATA = 42113  # a tag of GDAL's
_SEPARATE, _UNSIGNED = 2, 1  # values of these tags


class BeyondPillow(Exception):
    """A TIFF of bands or data types that Pillow does not support."""


def pages(content: bytes) -> int:
    """Count the pages of a file; an animation has one."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return len(_pages(image))
    except UnidentifiedImageError:
        raise BeyondPillow from None


def read(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode an image by Pillow; raises BadImage, or BeyondPillow for a TIFF that tifffile may read."""
    is_tiff = content[:4] in TIFF
    if options.bands and is_tiff:
        raise BeyondPillow
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return _read(image, content, options, page)
    except (BadImage, BeyondPillow):
        raise
    except UnidentifiedImageError:
        if is_tiff:
            raise BeyondPillow from None
        raise BadImage(f"not an image of a known format ({', '.join(_FORMATS)}, DICOM, HEIC)") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MOST_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise many types on a damaged file
        raise BadImage(f"damaged: {one_line(error)}") from error


def _read(image: ImageFile.ImageFile, content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    refuse_giants(image.size)
    found = _pages(image)
    chosen = found[options.page_of(len(found)) if page is None else page]
    if image.format == "TIFF":
        image.seek(chosen)
        refuse_giants(image.size)
    if _tag(image, _PLANES, 1) == _SEPARATE and int(_tag(image, _BITS, 8)) > 8:
        raise BeyondPillow  # Pillow would mix up the channels
    taken = page_remark(len(found), options) if page is None else ()
    if _is_of_two_halves(image):
        numbers = _both_halves(image, content, chosen)
        picture = _coloured(numbers, image.mode, options.window)
    else:
        image.load()
        picture = _eight_bits(image, options.window)
    return picture._replace(remarks=picture.remarks + taken)


def _pages(image: ImageFile.ImageFile) -> list[int]:
    """List the pages of a TIFF without thumbnails and masks; afterwards the first page is open."""
    found = []
    for number in count() if image.format == "TIFF" else ():
        try:
            image.seek(number)
        except Exception:  # the end, or a damaged chain after the pages found
            break
        if not int(_tag(image, _SUBFILE, 0)) & REDUCED_OR_MASK:
            found.append(number)
    image.seek(0)
    return found or [0]


def _tag(image: Image.Image, number: int, otherwise: Any) -> Any:
    tags = getattr(image, "tag_v2", None) or {}
    value = tags.get(number, otherwise)
    return value[0] if isinstance(value, tuple) else value


def _is_of_two_halves(image: ImageFile.ImageFile) -> bool:
    """Whether Pillow would drop the low bytes of 16-bit channels."""
    return image.mode in ("RGB", "RGBA", "RGBX") and _raw_mode(image)[-4:-1] == ";16" and "LA" not in _raw_mode(image)


def _raw_mode(image: ImageFile.ImageFile) -> str:
    arguments = image.tile[0][3] if image.tile else ""
    return str(arguments[0] if isinstance(arguments, tuple) else arguments)


def _both_halves(image: ImageFile.ImageFile, content: bytes, page: int) -> NDArray[np.uint16]:
    """Decode all 16 bits: once for the high bytes, and once with swapped byte order for the low bytes."""
    with Image.open(io.BytesIO(content), formats=_FORMATS) as again:
        if page:
            again.seek(page)
        again.tile = [_of_other_half(tile) for tile in again.tile]
        image.load()
        again.load()
        high, low = (np.asarray(_upright(half), np.uint16) for half in (image, again))
    return high * np.uint16(256) + low


def _of_other_half(tile: Any) -> Any:
    """Swap the byte order of a tile, which is a plain tuple in older versions of Pillow."""
    *where, given = tile
    mode, *others = given if isinstance(given, tuple) else (given,)
    turned = mode[:-1] + _OTHER_HALF[mode[-1]]
    parts = (*where, (turned, *others) if isinstance(given, tuple) else turned)
    return tile._make(parts) if hasattr(tile, "_make") else parts


def _coloured(numbers: NDArray[np.uint16], mode: str, window: Window) -> Picture:
    """Scale the colours by the window, and alpha by its full range."""
    colours, span = eight_bits(numbers[..., :3], window)
    if mode == "RGBA":
        alpha, _ = eight_bits(numbers[..., 3:], Window("type"))
        colours = np.concatenate([colours, alpha], axis=-1)
    return Picture(Image.fromarray(colours), (remark("colours of 16 bits", window),), span)


def _upright(image: Image.Image) -> Image.Image:
    """Copy an image and apply its EXIF orientation; a damaged entry is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def _eight_bits(image: ImageFile.ImageFile, window: Window) -> Picture:
    """Convert to 8 bits per channel; deep grey is scaled by the window."""
    upright = _upright(image)
    if upright.mode in _COLOURS:
        return Picture(upright)
    if not (upright.mode in ("I", "F") or upright.mode.startswith("I;16")):
        raise BadImage(f"colours of the kind {upright.mode}, which cannot be turned into RGB")
    numbers, bits = _numbers(image, upright)
    whole = Span(0, 65535) if image.format in ("PNG", "PPM") else None
    grey, span = eight_bits(numbers, window, whole=whole, missing=_without_data(numbers, _tag(image, _NO_DATA, "")))
    if _tag(image, _PHOTOMETRIC, 1) == WHITE_IS_ZERO:
        grey = 255 - grey
    return Picture(Image.fromarray(grey), (remark(f"grey of {bits}", window),), span)


def _numbers(image: Image.Image, upright: Image.Image) -> tuple[NDArray[Any], str]:
    """Return the values of a grey image and the name of their type."""
    numbers = np.asarray(upright)
    if numbers.dtype.kind == "f":
        return numbers, "floating point"
    bits = int(_tag(image, _BITS, 16 if image.format in ("PNG", "PPM") else 8 * numbers.dtype.itemsize))
    if bits == 32 and int(_tag(image, _SAMPLE_FORMAT, _UNSIGNED)) == _UNSIGNED:
        numbers = numbers.view(np.uint32)  # Pillow keeps unsigned 32 bits in a signed mode
    return numbers, f"{bits} bits"


def _without_data(numbers: NDArray[Any], no_data: str) -> NDArray[np.bool_] | None:
    """Mask of the pixels that a GeoTIFF marks as no data."""
    try:
        found: NDArray[np.bool_] = numbers == float(no_data)
    except ValueError:
        return None
    return found


_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def is_heic(content: bytes) -> bool:
    return content[4:8] == b"ftyp" and content[8:12] in _HEIC_BRANDS


def read_heic(content: bytes) -> Picture:
    """Read a photograph of a telephone by pillow-heif, an extra: 8 bits, upright as the file says."""
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
