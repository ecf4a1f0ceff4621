"""Decoders of image files: Pillow, and by extras DICOM, HEIC and TIFF files that Pillow does not support.

The format is detected from the content, not from the file name. Images of more than 8 bits keep all bits until they are
scaled. The image file directories of a TIFF, a chain with one for each page, are checked before decoding: in a
malicious file the chain may never end, or many tags may refer to one large block.
"""

import io
import logging
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    IntensityRange,
    Picture,
    Window,
    check_image_size,
    import_extra,
    scale_to_uint8,
)

# Only these: Pillow would run Ghostscript for an EPS file with any name.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_COLOURS = frozenset("1 L LA P PA RGB RGBA RGBX CMYK YCbCr HSV".split())  # modes that can be converted to RGB
_SWAPPED_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}  # last letter of a raw mode
_SUBFILE, _BITS, _PHOTOMETRIC, _PLANES, _SAMPLE_FORMAT = 254, 258, 262, 284, 339  # tags of TIFF
_NO_DATA = 42113  # a tag of GDAL
_REDUCED_OR_MASK = 0b101  # bits of _SUBFILE
_WHITE_IS_ZERO, _GREY, _RGB = 0, (0, 1), 2  # values of _PHOTOMETRIC
_SEPARATE, _UNSIGNED = 2, 1  # values of _PLANES and _SAMPLE_FORMAT
_ALPHA = (1, 2)  # types of extra samples that are transparency
_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes of a TIFF; the last two of a BigTIFF
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


class _UnsupportedByPillow(Exception):
    """Pillow does not support the bands or data types of a TIFF."""


_EXTRAS = {"dicom": "pydicom", "heic": "pillow_heif", "tiff": "tifffile"}  # extra of fedcopl -> its package


class _DecoderLogFilter(threading.local):
    """Suppresses log records of decoders while a thread decodes, because they may contain patient data."""

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
    """Decode the content of a file: `page`, counted from 0, or the page that the options choose; raises BadImage."""
    if not content:
        raise BadImage("the file is empty")
    with _without_logs():
        if dicom.is_dicom(content):
            return dicom.read(content, options, page)
        if content[:4] in _SIGNATURES:
            _check_tiff_pages(content)
        return _read_file(content, options, page)


def pages_in(path: Path, options: DecodeOptions) -> int:
    """Count the pages of a file; 1 for an unreadable file, whose decoding will report the reason."""
    try:
        with path.open("rb") as file, _without_logs():
            start = file.read(132)
            if dicom.is_dicom(start):
                return dicom.count_frames(start + file.read())
            if start[:4] not in _SIGNATURES or options.bands:  # each page may be a band
                return 1
            content = start + file.read()
            _check_tiff_pages(content)
            return _count_pages(content)
    except Exception:  # a missing package or a damaged file
        return 1


def is_readable_now(reason: str) -> bool:
    """Return whether an image was excluded for lack of a package that is installed now."""
    return any(f"fedcopl[{extra}]" in reason and find_spec(package) for extra, package in _EXTRAS.items())


def _count_pages(content: bytes) -> int:
    """Count the pages of a TIFF that are neither thumbnails nor masks."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return len(_pages(image))
    except UnidentifiedImageError:
        with _import_tifffile().TiffFile(io.BytesIO(content)) as file:
            return len(_tifffile_pages(file))


def _read_file(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode an image other than DICOM with Pillow, or with pillow-heif or tifffile if Pillow does not support it."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIC_BRANDS:
        return _read_heic(content)
    is_tiff = content[:4] in _SIGNATURES
    if is_tiff and options.bands:
        return _read_by_tifffile(content, options, page)
    try:
        with (
            _convert_decoder_errors(
                "damaged", _UnsupportedByPillow, UnidentifiedImageError, Image.DecompressionBombError
            ),
            Image.open(io.BytesIO(content), formats=_FORMATS) as image,
        ):
            return _read_by_pillow(image, content, options, page)
    except _UnsupportedByPillow:
        return _read_by_tifffile(content, options, page)
    except UnidentifiedImageError:
        if is_tiff:
            return _read_by_tifffile(content, options, page)
        raise BadImage(f"not an image of a known format ({', '.join(_FORMATS)}, DICOM, HEIC)") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MAX_PIXELS:,} pixels") from None


@contextmanager
def _convert_decoder_errors(reason: str, *unchanged: type[Exception]) -> Iterator[None]:
    """Convert the errors of a decoder, which may be of any type, to BadImage, except those of the types `unchanged`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (BadImage, *unchanged)):
            raise
        raise BadImage(f"{reason}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _read_by_pillow(image: ImageFile.ImageFile, content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode one page of an image with Pillow."""
    check_image_size(image.size)
    pages = _pages(image)
    chosen_page = pages[options.page_of(len(pages)) if page is None else page]
    if image.format == "TIFF":
        image.seek(chosen_page)
        check_image_size(image.size)
    if _tag(image, _PLANES, 1) == _SEPARATE and int(_tag(image, _BITS, 8)) > 8:
        raise _UnsupportedByPillow  # Pillow would confuse the channels
    arguments = image.tile[0][3] if image.tile else ""
    raw_mode = str(arguments[0] if isinstance(arguments, tuple) else arguments)
    if image.mode in ("RGB", "RGBA", "RGBX") and raw_mode[-4:-1] == ";16" and "LA" not in raw_mode:
        picture = _deep_colours(image, content, chosen_page, options.window)
    else:
        image.load()
        picture = _convert_to_uint8(image, options.window)
    return picture._replace(remarks=picture.remarks + (options.page_remark(len(pages)) if page is None else ()))


def _pages(image: ImageFile.ImageFile) -> list[int]:
    """Return the indices of the pages of a TIFF that are neither thumbnails nor masks; [0] for other formats."""
    pages = []
    for number in count() if image.format == "TIFF" else ():
        try:
            image.seek(number)
        except Exception:  # the end, or damage after the last readable page
            break
        if not int(_tag(image, _SUBFILE, 0)) & _REDUCED_OR_MASK:
            pages.append(number)
    image.seek(0)
    return pages or [0]


def _tag(image: Image.Image, number: int, default: Any) -> Any:
    value = (getattr(image, "tag_v2", None) or {}).get(number, default)
    return value[0] if isinstance(value, tuple) else value


def _deep_colours(image: ImageFile.ImageFile, content: bytes, page: int, window: Window) -> Picture:
    """Decode colours of 16 bits, of which Pillow returns the high bytes, and scale them by the window.

    A second decoding with swapped byte order gives the low bytes. Alpha is scaled by the full range of its type.
    """
    with Image.open(io.BytesIO(content), formats=_FORMATS) as reopened:
        if page:
            reopened.seek(page)
        reopened.tile = [_swap_bytes(tile) for tile in reopened.tile]
        image.load()
        reopened.load()
        high, low = (np.asarray(_rotate_upright(half), np.uint16) for half in (image, reopened))
    numbers = high * np.uint16(256) + low
    colours, span = scale_to_uint8(numbers[..., :3], window)
    if image.mode == "RGBA":
        alpha, _ = scale_to_uint8(numbers[..., 3:], Window("type"))
        colours = np.concatenate([colours, alpha], axis=-1)
    return Picture(Image.fromarray(colours), (window.remark("colours of 16 bits"),), span)


def _swap_bytes(tile: Any) -> Any:
    """Swap the byte order of a tile, which is a plain tuple in older versions of Pillow."""
    *location, arguments = tile
    mode, *others = arguments if isinstance(arguments, tuple) else (arguments,)
    swapped = mode[:-1] + _SWAPPED_ORDER[mode[-1]]
    fields = (*location, (swapped, *others) if isinstance(arguments, tuple) else swapped)
    return tile._make(fields) if hasattr(tile, "_make") else fields


def _rotate_upright(image: Image.Image) -> Image.Image:
    """Copy an image and apply its EXIF orientation; a damaged entry is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def _convert_to_uint8(image: ImageFile.ImageFile, window: Window) -> Picture:
    """Convert an image to 8 bits per channel; grey of more bits is scaled by the window."""
    upright = _rotate_upright(image)
    if upright.mode in _COLOURS:
        return Picture(upright)
    if not (upright.mode in ("I", "F") or upright.mode.startswith("I;16")):
        raise BadImage(f"the colour mode {upright.mode} cannot be converted to RGB")
    numbers, kind = np.asarray(upright), "floating point"
    has_16_bits = image.format in ("PNG", "PPM")
    if numbers.dtype.kind != "f":
        bits = int(_tag(image, _BITS, 16 if has_16_bits else 8 * numbers.dtype.itemsize))
        kind = f"{bits} bits"
        if bits == 32 and int(_tag(image, _SAMPLE_FORMAT, _UNSIGNED)) == _UNSIGNED:
            numbers = numbers.view(np.uint32)  # Pillow keeps unsigned 32 bits in a signed mode
    missing: NDArray[np.bool_] | None = None
    with suppress(ValueError):  # without the tag, or if its value is no number
        missing = numbers == float(_tag(image, _NO_DATA, ""))
    grey, span = scale_to_uint8(
        numbers, window, full_range=IntensityRange(0, 65535) if has_16_bits else None, missing=missing
    )
    if _tag(image, _PHOTOMETRIC, 1) == _WHITE_IS_ZERO:
        grey = 255 - grey
    return Picture(Image.fromarray(grey), (window.remark(f"grey of {kind}"),), span)


def _read_heic(content: bytes) -> Picture:
    """Decode a HEIC photograph with pillow-heif (an extra) to 8 bits, upright."""
    package = import_extra("pillow_heif", "HEIC", "heic")
    with _convert_decoder_errors("damaged"):
        file = package.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
        check_image_size(file.size)
        return Picture(file.to_pillow(), ("HEIC",))


def _read_by_tifffile(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode a TIFF with tifffile (an extra); raises BadImage."""
    package = _import_tifffile()
    with _convert_decoder_errors("damaged, or of an unknown kind"), package.TiffFile(io.BytesIO(content)) as file:
        return _read_tiff_page(file, options, page)


def _import_tifffile() -> Any:
    return import_extra("tifffile", "a TIFF with bands or pixel types beyond Pillow", "tiff")


def _tifffile_pages(file: Any) -> list[Any]:
    return [page for page in file.pages if not int(page.subfiletype) & _REDUCED_OR_MASK] or [file.pages[0]]


def _read_tiff_page(file: Any, options: DecodeOptions, page: int | None) -> Picture:
    """Decode one page, or the bands of the options if each page is a band."""
    pages = _tifffile_pages(file)
    first = pages[0]
    if options.bands and first.samplesperpixel == 1 and len(pages) > 1:  # each page is a band
        _check_bands(options.bands, len(pages))
        bands = np.stack([_tiff_values(pages[band - 1]) for band in options.bands], axis=-1)
        return _tiff_picture(bands, first, options, len(pages))
    chosen_page = pages[options.page_of(len(pages)) if page is None else page]
    picture = _tiff_picture(_read_bands(chosen_page, options.bands), chosen_page, options, chosen_page.samplesperpixel)
    return picture._replace(remarks=picture.remarks + (options.page_remark(len(pages)) if page is None else ()))


def _tiff_values(page: Any) -> NDArray[Any]:
    """Return the pixel values of a page, with its bands on the first or last axis."""
    check_image_size((page.imagewidth, page.imagelength))
    if page.nbytes > MAX_BYTES:
        raise BadImage(f"{page.samplesperpixel:,} bands of {page.nbytes:,} bytes, more than {MAX_BYTES:,}")
    numbers: NDArray[Any] = page.asarray()
    return numbers


def _read_bands(page: Any, bands: tuple[int, ...]) -> NDArray[Any]:
    """Return these bands of a page, by default grey or RGB, as (height, width, bands)."""
    bands = bands or _default_bands(page)
    _check_bands(bands, page.samplesperpixel)
    numbers = _tiff_values(page)
    if page.samplesperpixel == 1:
        return np.reshape(numbers, (page.imagelength, page.imagewidth, 1))
    channels_last: NDArray[Any] = numbers if page.planarconfig == 1 else np.moveaxis(numbers, 0, -1)
    selected: NDArray[Any] = channels_last[..., [band - 1 for band in bands]]
    return selected


def _default_bands(page: Any) -> tuple[int, ...]:
    colours, photometric = page.samplesperpixel - len(page.extrasamples), int(page.photometric)
    if photometric in _GREY and colours == 1 and all(int(extra) in _ALPHA for extra in page.extrasamples):
        return (1,)
    if photometric == _RGB and colours == 3:
        return (1, 2, 3)
    if photometric in (*_GREY, _RGB):
        raise BadImage(f"{page.samplesperpixel} bands; choose three, as in data.bands=4,3,2")
    raise BadImage(f"the colour space {page.photometric.name.lower()} is not supported with this pixel type")


def _check_bands(bands: tuple[int, ...], band_count: int) -> None:
    if max(bands) > band_count:
        raise BadImage(f"has {counted(band_count, 'band')}, so no band {max(bands)}; change data.bands")


def _tiff_picture(numbers: NDArray[Any], page: Any, options: DecodeOptions, band_count: int) -> Picture:
    """Convert pixel values, (height, width, bands), to an image of 8 bits per channel, scaled by the window."""
    band = "band" if len(options.bands) == 1 else "bands"
    remark = f"{band} {', '.join(map(str, options.bands))} of {band_count}" if options.bands else "a TIFF"
    scaled, span = numbers, None
    if numbers.dtype != np.uint8 and numbers.dtype.kind in "uif":
        missing = None if page.nodata is None or not page.tags.get(_NO_DATA) else numbers == page.nodata
        scaled, span = scale_to_uint8(numbers, options.window, missing=missing)
        bits = "floating point" if numbers.dtype.kind == "f" else f"{8 * numbers.dtype.itemsize} bits"
        remark = options.window.remark(f"{remark} in {bits}")
    elif numbers.dtype != np.uint8:
        raise BadImage(f"the pixel type {numbers.dtype} is not supported")
    if int(page.photometric) == _WHITE_IS_ZERO and not options.bands:
        scaled = 255 - scaled
    image = Image.fromarray(np.ascontiguousarray(scaled[..., 0] if scaled.shape[-1] == 1 else scaled))
    return Picture(image, (remark,), span)


_TYPE_SIZES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8, 0], np.float64)  # bytes; 0: unknown
_MAX_TAGS = 1_000_000  # of all pages, which take a decoder about a second


def _check_tiff_pages(content: bytes) -> None:
    """Raise BadImage for a TIFF whose pages form a loop or are too many, or whose tags are larger than the file."""
    order, is_big = "<" if content[:2] == b"II" else ">", content[:4] in _SIGNATURES[2:]
    count_format, offset_format, size = (f"{order}Q", f"{order}Q", "u8") if is_big else (f"{order}H", f"{order}I", "u4")
    tag = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", order + size), ("value", order + size)])

    def read_number(form: str, position: int) -> int:
        """Read a number; 0 beyond the end of the file."""
        is_inside = position + struct.calcsize(form) <= len(content)
        return int(struct.unpack_from(form, content, position)[0]) if is_inside else 0

    pages: dict[int, int] = {}  # offset of an image file directory -> number of its page
    tags, offset = 0, read_number(offset_format, 8 if is_big else 4)
    while offset and offset not in pages:
        pages[offset] = len(pages) + 1
        count, start = read_number(count_format, offset), offset + struct.calcsize(count_format)
        end = start + count * tag.itemsize
        if end > len(content):
            return  # truncated: the decoder reports it or reads the pages before
        tags += count
        if len(pages) > MAX_PAGES or tags > _MAX_TAGS:
            raise BadImage(f"more than {MAX_PAGES:,} pages, or {_MAX_TAGS:,} tags in all pages")
        entries = np.frombuffer(content, tag, count, start)
        sizes = _TYPE_SIZES[np.minimum(entries["type"], len(_TYPE_SIZES) - 1)] * entries["count"]
        if sizes.sum() > len(content):
            raise BadImage(f"damaged: page {len(pages)} has tags of more bytes than the file")
        offset = read_number(offset_format, end)
    if offset:
        raise BadImage(f"damaged: page {len(pages)} is followed by page {pages[offset]} again, an endless loop")
