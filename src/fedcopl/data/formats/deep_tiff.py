"""TIFF beyond Pillow: many bands, colours of 32 bits, long fractions. By tifffile, an extra."""

import io
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...plurals import counted
from ..eight_bits import eight_bits, remark
from ..reading import MOST_BYTES, BadImage, ImageReading, Picture, one_line, refuse_giants
from .by_pillow import REDUCED_OR_MASK, WHITE_IS_ZERO, page_remark

GREY, RGB = (0, 1), 2  # photometric kinds
ALPHA = (1, 2)  # kinds of extra samples that say how far a dot is transparent


def pages(content: bytes) -> int:
    with _package().TiffFile(io.BytesIO(content)) as file:
        return len(_pages(file))


def read(content: bytes, reading: ImageReading, page: int | None) -> Picture:
    package = _package()
    try:
        with package.TiffFile(io.BytesIO(content)) as file:
            return _read(file, reading, page)
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


def _read(file: Any, reading: ImageReading, page: int | None) -> Picture:
    pages = _pages(file)
    first = pages[0]
    if reading.bands and first.samplesperpixel == 1 and len(pages) > 1:
        return _picture(_pages_as_bands(pages, reading.bands), first, reading, len(pages))
    chosen = pages[reading.page_of(len(pages)) if page is None else page]
    picture = _picture(_bands(chosen, reading.bands), chosen, reading, chosen.samplesperpixel)
    return picture._replace(remarks=picture.remarks + (page_remark(len(pages), reading) if page is None else ()))


def _pages_as_bands(pages: list[Any], bands: tuple[int, ...]) -> NDArray[Any]:
    """Some programs write each band as a page of its own."""
    _refuse_missing(bands, len(pages))
    return np.stack([_numbers(pages[band - 1]) for band in bands], axis=-1)


def _numbers(page: Any) -> NDArray[Any]:
    refuse_giants((page.imagewidth, page.imagelength))
    if page.nbytes > MOST_BYTES:
        raise BadImage(f"{page.samplesperpixel:,} bands of {page.nbytes:,} bytes, more than {MOST_BYTES:,}")
    numbers: NDArray[Any] = page.asarray()
    return numbers


def _bands(page: Any, bands: tuple[int, ...]) -> NDArray[Any]:
    """The chosen bands as (height, width, bands); without a choice, grey or the three colours."""
    samples = page.samplesperpixel
    wanted = bands or _usual_bands(page)
    _refuse_missing(wanted, samples)
    numbers = _numbers(page)
    if samples == 1:
        return np.reshape(numbers, (page.imagelength, page.imagewidth, 1))
    last: NDArray[Any] = numbers if page.planarconfig == 1 else np.moveaxis(numbers, 0, -1)
    chosen: NDArray[Any] = last[..., [band - 1 for band in wanted]]
    return chosen


def _usual_bands(page: Any) -> tuple[int, ...]:
    samples, kind = page.samplesperpixel, int(page.photometric)
    others = [extra for extra in page.extrasamples if int(extra) not in ALPHA]
    if kind in GREY and samples - len(page.extrasamples) == 1 and not others:
        return (1,)
    if kind == RGB and samples - len(page.extrasamples) == 3:
        return (1, 2, 3)
    if kind in GREY or kind == RGB:
        raise BadImage(f"{samples} bands; choose three, as in data.bands=4,3,2")
    raise BadImage(f"colours of the kind {page.photometric.name.lower()} in numbers that Pillow does not read")


def _refuse_missing(bands: tuple[int, ...], there: int) -> None:
    if max(bands) > there:
        raise BadImage(f"has {counted(there, 'band')}, so no band {max(bands)}")


def _picture(numbers: NDArray[Any], page: Any, reading: ImageReading, there: int) -> Picture:
    """Of 8 bits as they are; deeper ones by the window."""
    band = "band" if len(reading.bands) == 1 else "bands"
    words = f"{band} {', '.join(map(str, reading.bands))} of {there}" if reading.bands else "a TIFF"
    if numbers.dtype == np.uint8:
        scaled, span, said = numbers, None, words
    elif numbers.dtype.kind in "uif":
        missing = None if page.nodata is None or not page.tags.get(42113) else numbers == page.nodata
        scaled, span = eight_bits(numbers, reading.window, missing=missing)
        bits = "floating point" if numbers.dtype.kind == "f" else f"{8 * numbers.dtype.itemsize} bits"
        said = remark(f"{words} in {bits}", reading.window)
    else:
        raise BadImage(f"numbers of the kind {numbers.dtype}")
    if int(page.photometric) == WHITE_IS_ZERO and not reading.bands:
        scaled = 255 - scaled
    image = Image.fromarray(np.ascontiguousarray(scaled[..., 0] if scaled.shape[-1] == 1 else scaled))
    return Picture(image, (said,), span)
