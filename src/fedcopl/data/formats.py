"""Decoders of image files: Pillow, and by extras DICOM, HEIC and TIFFs beyond Pillow.

The format is detected from the content, not from the file name. Images of more than 8 bits keep all bits until they are
scaled. The image file directories of a TIFF, a chain of one for each page, are checked before any decoder follows them:
a few bytes can hold a chain that never ends, or tags that all point to one large block.
"""

import io
import logging
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from ..plurals import counted
from . import dicom
from .decoding import (
    MAX_BYTES,
    MAX_PAGES,
    MAX_PIXELS,
    BadImage,
    DecodeOptions,
    Picture,
    Span,
    Window,
    check_image_size,
    eight_bits,
)

# Listed, because Pillow would run Ghostscript for an EPS file of any name.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_COLOURS = frozenset("1 L LA P PA RGB RGBA RGBX CMYK YCbCr HSV".split())  # modes that can become RGB
_OTHER_HALF = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_SUBFILE, _PHOTOMETRIC, _BITS, _PLANES, _SAMPLE_FORMAT = 254, 262, 258, 284, 339  # tags of TIFF
_NO_DATA = 42113  # a tag of GDAL's
_SEPARATE, _UNSIGNED = 2, 1  # values of these tags
_REDUCED_OR_MASK, _WHITE_IS_ZERO = 0b101, 0  # values of the tags for kinds of pages and of colours
_GREY, _RGB = (0, 1), 2  # photometric kinds
_ALPHA = (1, 2)  # types of extra samples that are transparency
_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes of a TIFF; the latter two of BigTIFF
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


class _BeyondPillow(Exception):
    """A TIFF of bands or data types that Pillow does not support."""


_EXTRAS = {"dicom": "pydicom", "heic": "pillow_heif", "tiff": "tifffile"}  # extra of fedcopl -> its package


class _DecoderLogFilter(threading.local):
    """Suppresses logs of decoders while this thread decodes: they repeat our reasons, or quote patient data."""

    is_decoding = False

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.is_decoding


_LOG_FILTER = _DecoderLogFilter()
for decoder in ("pydicom", "tifffile", "PIL.TiffImagePlugin"):
    logging.getLogger(decoder).addFilter(_LOG_FILTER)


@contextmanager
def _without_logs() -> Iterator[None]:
    _LOG_FILTER.is_decoding = True
    try:
        yield
    finally:
        _LOG_FILTER.is_decoding = False


def read_picture(content: bytes, options: DecodeOptions, page: int | None = None) -> Picture:
    """Decode a file's bytes, or one of its pages counted from 0; raises BadImage."""
    if not content:
        raise BadImage("the file is empty")
    with _without_logs():
        if dicom.is_dicom(content):
            return dicom.read(content, options, page)
        if content[:4] in _SIGNATURES:
            _check_tiff_pages(content)
        return _read_file(content, options, page)


def pages_in(path: Path, options: DecodeOptions) -> int:
    """Count the pages of a file; 1 for an unreadable file, which is reported when it is decoded.

    Only TIFF and DICOM files are read as a whole.
    """
    try:
        with path.open("rb") as file, _without_logs():
            first = file.read(132)
            if dicom.is_dicom(first):
                return dicom.pages(first + file.read())
            if first[:4] not in _SIGNATURES or options.bands:  # with bands, pages may be the bands
                return 1
            content = first + file.read()
            _check_tiff_pages(content)
            return _count_pages(content)
    except Exception:  # a missing package or a damaged file
        return 1


def is_readable_now(reason: str) -> bool:
    """Return whether an image was excluded for a missing package that is installed now."""
    return any(f"fedcopl[{extra}]" in reason and find_spec(package) for extra, package in _EXTRAS.items())


def _count_pages(content: bytes) -> int:
    """Count the pages of a TIFF; an animation has one."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return len(_pages(image))
    except UnidentifiedImageError:
        with _tifffile().TiffFile(io.BytesIO(content)) as file:
            return len(_tifffile_pages(file))


def _read_file(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode an image by Pillow, or by tifffile if it is a TIFF that Pillow does not support; raises BadImage."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIC_BRANDS:
        return _read_heic(content)
    is_tiff = content[:4] in _SIGNATURES
    if is_tiff and options.bands:
        return _read_by_tifffile(content, options, page)
    try:
        with (
            _damage("damaged", _BeyondPillow, UnidentifiedImageError, Image.DecompressionBombError),
            Image.open(io.BytesIO(content), formats=_FORMATS) as image,
        ):
            return _read(image, content, options, page)
    except _BeyondPillow:
        return _read_by_tifffile(content, options, page)
    except UnidentifiedImageError:
        if is_tiff:
            return _read_by_tifffile(content, options, page)
        raise BadImage(f"not an image of a known format ({', '.join(_FORMATS)}, DICOM, HEIC)") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MAX_PIXELS:,} pixels") from None


@contextmanager
def _damage(reason: str, *others: type[Exception]) -> Iterator[None]:
    """Convert the errors of a decoder, which may be of any type except `others`, to BadImage."""
    unchanged: tuple[type[Exception], ...] = (BadImage, *others)
    try:
        yield
    except unchanged:
        raise
    except Exception as error:
        raise BadImage(f"{reason}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _read(image: ImageFile.ImageFile, content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode one page, all of its bits included."""
    check_image_size(image.size)
    pages = _pages(image)
    chosen = pages[options.page_of(len(pages)) if page is None else page]
    if image.format == "TIFF":
        image.seek(chosen)
        check_image_size(image.size)
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
        if not int(_tag(image, _SUBFILE, 0)) & _REDUCED_OR_MASK:
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
        raise BadImage(f"the colour mode {upright.mode} cannot be converted to RGB")
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
    grey, span = eight_bits(numbers, window, full_range=Span(0, 65535) if is_sixteen else None, missing=missing)
    if _tag(image, _PHOTOMETRIC, 1) == _WHITE_IS_ZERO:
        grey = 255 - grey
    return Picture(Image.fromarray(grey), (window.remark(f"grey of {kind}"),), span)


def _read_heic(content: bytes) -> Picture:
    """Read a HEIC photograph with pillow-heif (an extra): 8 bits, rotated as the file specifies."""
    package = _import("pillow_heif", "HEIC, which needs: pip install 'fedcopl[heic]'")
    with _damage("damaged"):
        file = package.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
        check_image_size(file.size)
        return Picture(file.to_pillow(), ("HEIC",))


def _read_by_tifffile(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode a TIFF by tifffile; raises BadImage."""
    package = _tifffile()
    with _damage("damaged, or of an unknown kind"), package.TiffFile(io.BytesIO(content)) as file:
        return _read_tiff_page(file, options, page)


def _import(package: str, reason: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise BadImage(reason) from None


def _tifffile() -> Any:
    return _import("tifffile", "a TIFF with bands or pixel types that need: pip install 'fedcopl[tiff]'")


def _tifffile_pages(file: Any) -> list[Any]:
    return [one for one in file.pages if not int(one.subfiletype) & _REDUCED_OR_MASK] or [file.pages[0]]


def _read_tiff_page(file: Any, options: DecodeOptions, page: int | None) -> Picture:
    pages = _tifffile_pages(file)
    first = pages[0]
    if options.bands and first.samplesperpixel == 1 and len(pages) > 1:  # each band is a page of its own
        _check_bands(options.bands, len(pages))
        bands = np.stack([_tiff_values(pages[band - 1]) for band in options.bands], axis=-1)
        return _tiff_picture(bands, first, options, len(pages))
    chosen = pages[options.page_of(len(pages)) if page is None else page]
    picture = _tiff_picture(_bands(chosen, options.bands), chosen, options, chosen.samplesperpixel)
    return picture._replace(remarks=picture.remarks + (options.page_remark(len(pages)) if page is None else ()))


def _tiff_values(page: Any) -> NDArray[Any]:
    check_image_size((page.imagewidth, page.imagelength))
    if page.nbytes > MAX_BYTES:
        raise BadImage(f"{page.samplesperpixel:,} bands of {page.nbytes:,} bytes, more than {MAX_BYTES:,}")
    numbers: NDArray[Any] = page.asarray()
    return numbers


def _bands(page: Any, bands: tuple[int, ...]) -> NDArray[Any]:
    """Return the chosen bands, (height, width, bands); by default grey or RGB."""
    samples = page.samplesperpixel
    selected = bands or _usual_bands(page)
    _check_bands(selected, samples)
    numbers = _tiff_values(page)
    if samples == 1:
        return np.reshape(numbers, (page.imagelength, page.imagewidth, 1))
    last: NDArray[Any] = numbers if page.planarconfig == 1 else np.moveaxis(numbers, 0, -1)
    chosen: NDArray[Any] = last[..., [band - 1 for band in selected]]
    return chosen


def _usual_bands(page: Any) -> tuple[int, ...]:
    samples, kind = page.samplesperpixel, int(page.photometric)
    others = [extra for extra in page.extrasamples if int(extra) not in _ALPHA]
    if kind in _GREY and samples - len(page.extrasamples) == 1 and not others:
        return (1,)
    if kind == _RGB and samples - len(page.extrasamples) == 3:
        return (1, 2, 3)
    if kind in _GREY or kind == _RGB:
        raise BadImage(f"{samples} bands; choose three, as in data.bands=4,3,2")
    raise BadImage(f"the colour space {page.photometric.name.lower()} is not supported with this pixel type")


def _check_bands(bands: tuple[int, ...], band_count: int) -> None:
    if max(bands) > band_count:
        raise BadImage(f"has {counted(band_count, 'band')}, so no band {max(bands)}")


def _tiff_picture(numbers: NDArray[Any], page: Any, options: DecodeOptions, band_count: int) -> Picture:
    """Make an image of 8 bits per channel; deeper values are scaled by the window."""
    band = "band" if len(options.bands) == 1 else "bands"
    words = f"{band} {', '.join(map(str, options.bands))} of {band_count}" if options.bands else "a TIFF"
    if numbers.dtype == np.uint8:
        scaled, span, text = numbers, None, words
    elif numbers.dtype.kind in "uif":
        missing = None if page.nodata is None or not page.tags.get(42113) else numbers == page.nodata
        scaled, span = eight_bits(numbers, options.window, missing=missing)
        bits = "floating point" if numbers.dtype.kind == "f" else f"{8 * numbers.dtype.itemsize} bits"
        text = options.window.remark(f"{words} in {bits}")
    else:
        raise BadImage(f"the pixel type {numbers.dtype} is not supported")
    if int(page.photometric) == _WHITE_IS_ZERO and not options.bands:
        scaled = 255 - scaled
    image = Image.fromarray(np.ascontiguousarray(scaled[..., 0] if scaled.shape[-1] == 1 else scaled))
    return Picture(image, (text,), span)


_TYPE_SIZES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8, 0], np.float64)  # bytes; 0: unknown
_MAX_TAGS = 1_000_000  # of all pages together: a decoder takes about a second for them


def _check_tiff_pages(content: bytes) -> None:
    """Check that the pages of a TIFF can be read in bounded time and memory.

    Raises:
        BadImage: if the chain of pages loops, is too long, or if tags hold more than the file does.
    """
    order, is_big = "<" if content[:2] == b"II" else ">", content[:4] in _SIGNATURES[2:]
    count_format, offset_format, size = (f"{order}Q", f"{order}Q", "u8") if is_big else (f"{order}H", f"{order}I", "u4")
    tag = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", order + size), ("value", order + size)])

    def number(kind: str, position: int) -> int:
        """Read a number; 0 beyond the end of the file."""
        is_inside = position + struct.calcsize(kind) <= len(content)
        return int(struct.unpack_from(kind, content, position)[0]) if is_inside else 0

    pages: dict[int, int] = {}  # offset of an IFD -> number of its page
    tags, offset = 0, number(offset_format, 8 if is_big else 4)
    while offset and offset not in pages:
        pages[offset] = len(pages) + 1
        count, start = number(count_format, offset), offset + struct.calcsize(count_format)
        end = start + count * tag.itemsize
        if end > len(content):
            return  # truncated: reported by the decoder, or the pages before are read
        tags += count
        if len(pages) > MAX_PAGES or tags > _MAX_TAGS:
            raise BadImage(f"more than {MAX_PAGES:,} pages, or {_MAX_TAGS:,} tags in all pages")
        entries = np.frombuffer(content, tag, count, start)
        sizes = _TYPE_SIZES[np.minimum(entries["type"], len(_TYPE_SIZES) - 1)] * entries["count"]
        if sizes.sum() > len(content):
            raise BadImage(f"damaged: page {len(pages)} has tags of more bytes than the file")
        offset = number(offset_format, end)
    if offset:
        raise BadImage(f"damaged: after page {len(pages)} comes page {pages[offset]} again, without end")
