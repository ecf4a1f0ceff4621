"""TIFF files that Pillow does not support (many bands, 32-bit channels, doubles), by tifffile, an extra.

The chain of image file directories (IFDs), one for each page, is checked before any decoder follows it: a few bytes can
hold a chain that never ends, or tags that all point to one large block.
"""

import io
import struct
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...plurals import counted
from ..decoding import (
    MOST_BYTES,
    MOST_PAGES,
    BadImage,
    DecodeOptions,
    Picture,
    eight_bits,
    one_line,
    refuse_giants,
)

REDUCED_OR_MASK, WHITE_IS_ZERO = 0b101, 0  # values of the tags for kinds of pages and of colours
_GREY, _RGB = (0, 1), 2  # photometric kinds
_ALPHA = (1, 2)  # types of extra samples that are transparency


def pages(content: bytes) -> int:
    """Count the pages of a TIFF."""
    with _package().TiffFile(io.BytesIO(content)) as file:
        return len(_pages(file))


def read(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode a TIFF by tifffile; raises BadImage."""
    package = _package()
    try:
        with package.TiffFile(io.BytesIO(content)) as file:
            return _read(file, options, page)
    except BadImage:
        raise
    except Exception as error:  # of tifffile, its codecs, and NumPy
        raise BadImage(f"damaged, or of an unknown kind: {one_line(error)}") from error


def _package() -> Any:
    try:
        return import_module("tifffile")
    except ImportError:
        raise BadImage("a TIFF of bands or numbers that need: pip install 'fedcopl[tiff]'") from None


def _pages(file: Any) -> list[Any]:
    return [one for one in file.pages if not int(one.subfiletype) & REDUCED_OR_MASK] or [file.pages[0]]


def _read(file: Any, options: DecodeOptions, page: int | None) -> Picture:
    pages = _pages(file)
    first = pages[0]
    if options.bands and first.samplesperpixel == 1 and len(pages) > 1:  # each band is a page of its own
        _refuse_missing(options.bands, len(pages))
        bands = np.stack([_numbers(pages[band - 1]) for band in options.bands], axis=-1)
        return _picture(bands, first, options, len(pages))
    chosen = pages[options.page_of(len(pages)) if page is None else page]
    picture = _picture(_bands(chosen, options.bands), chosen, options, chosen.samplesperpixel)
    return picture._replace(remarks=picture.remarks + (options.page_remark(len(pages)) if page is None else ()))


def _numbers(page: Any) -> NDArray[Any]:
    refuse_giants((page.imagewidth, page.imagelength))
    if page.nbytes > MOST_BYTES:
        raise BadImage(f"{page.samplesperpixel:,} bands of {page.nbytes:,} bytes, more than {MOST_BYTES:,}")
    numbers: NDArray[Any] = page.asarray()
    return numbers


def _bands(page: Any, bands: tuple[int, ...]) -> NDArray[Any]:
    """Return the chosen bands, (height, width, bands); by default grey or RGB."""
    samples = page.samplesperpixel
    selected = bands or _usual_bands(page)
    _refuse_missing(selected, samples)
    numbers = _numbers(page)
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
    raise BadImage(f"colours of the kind {page.photometric.name.lower()} in numbers that Pillow does not read")


def _refuse_missing(bands: tuple[int, ...], band_count: int) -> None:
    if max(bands) > band_count:
        raise BadImage(f"has {counted(band_count, 'band')}, so no band {max(bands)}")


def _picture(numbers: NDArray[Any], page: Any, options: DecodeOptions, band_count: int) -> Picture:
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
        raise BadImage(f"numbers of the kind {numbers.dtype}")
    if int(page.photometric) == WHITE_IS_ZERO and not options.bands:
        scaled = 255 - scaled
    image = Image.fromarray(np.ascontiguousarray(scaled[..., 0] if scaled.shape[-1] == 1 else scaled))
    return Picture(image, (text,), span)


SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the first bytes; the latter two of BigTIFF
_TYPE_SIZES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8, 0], np.float64)  # bytes; 0: unknown
_MOST_TAGS = 1_000_000  # of all pages together: a decoder takes about a second for them


def refuse_endless(content: bytes) -> None:
    """Check that the pages of a TIFF can be read in bounded time and memory.

    Raises:
        BadImage: if the chain of pages loops, is too long, or if tags hold more than the file does.
    """
    order, is_big = "<" if content[:2] == b"II" else ">", content[:4] in SIGNATURES[2:]
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
        if len(pages) > MOST_PAGES or tags > _MOST_TAGS:
            raise BadImage(f"more than {MOST_PAGES:,} pages, or {_MOST_TAGS:,} tags in all pages")
        entries = np.frombuffer(content, tag, count, start)
        sizes = _TYPE_SIZES[np.minimum(entries["type"], len(_TYPE_SIZES) - 1)] * entries["count"]
        if sizes.sum() > len(content):
            raise BadImage(f"damaged: page {len(pages)} has tags of more bytes than the file")
        offset = number(offset_format, end)
    if offset:
        raise BadImage(f"damaged: after page {len(pages)} comes page {pages[offset]} again, without end")
