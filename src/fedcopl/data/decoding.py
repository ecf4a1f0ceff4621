"""From a file's pixel values to an image of 8 bits per channel: page, bands and intensity window."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import Data
from ..errors import ConfigError

MAX_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb: 256 MB as RGB
MAX_BYTES = 2**31  # of one decoded image, or of an unpacked file
MAX_PAGES = 10_000  # of a file
_MAX_ASPECT_RATIO = 200  # times longer than wide: scaled by its short side, such an image becomes enormous


class BadImage(Exception):
    """An image that cannot be decoded; the message is the reason."""


class Span(NamedTuple):
    """Intensity range that becomes black to white."""

    low: float
    high: float


class Picture(NamedTuple):
    """A decoded upright image of 8 bits per channel, and remarks on how it was decoded."""

    image: Image.Image
    remarks: tuple[str, ...] = ()
    span: Span | None = None  # where values were scaled by their own range


@dataclass(frozen=True)
class Window:
    """Intensity window of images with more than 8 bits per channel."""

    by: Literal["file", "type", "numbers", "percentiles"] = "file"
    low: float = 0.0
    high: float = 0.0

    def __str__(self) -> str:
        percent = "%" if self.by == "percentiles" else ""
        return self.by if self.by in ("file", "type") else f"{self.low:g}{percent}:{self.high:g}{percent}"

    def remark(self, kind: str) -> str:
        """Describe how an image with values of this kind was scaled to 8 bits."""
        return f"{kind}, {_SCALED_BY[self.by].format(self)}"


@dataclass(frozen=True)
class DecodeOptions:
    """Settings for files with deep values, many bands or several pages."""

    window: Window = Window()
    bands: tuple[int, ...] = ()  # three as RGB or one as grey, counted from 1
    pages: Literal["first", "middle", "all"] = "first"

    @classmethod
    def of(cls, data: Data) -> "DecodeOptions":
        """Parse the settings; raises ConfigError."""
        return cls(_window(data.window), _bands(data.bands), data.pages)

    def plain(self) -> dict[str, str]:
        """Return the settings that differ from the defaults, as text."""
        usual = DecodeOptions()
        written = {"window": str(self.window), "bands": ",".join(map(str, self.bands)), "pages": self.pages}
        return {name: text for name, text in written.items() if getattr(self, name) != getattr(usual, name)}

    @property
    def key(self) -> str:
        """Cache key of these options; empty for the defaults."""
        return "".join(f", {name} {text}" for name, text in self.plain().items())

    def page_of(self, pages: int) -> int:
        """Return the page to decode in a file of `pages` pages, counted from 0."""
        return pages // 2 if self.pages == "middle" else 0

    def page_remark(self, pages: int) -> tuple[str, ...]:
        """Return the remark that the other pages of a file are not used, if it has others."""
        return (f"the {self.pages} of several pages; data.pages=all uses every page",) if pages > 1 else ()


def _window(given: str | float) -> Window:
    text = given.strip() if isinstance(given, str) else f"{given:g}"
    if text in ("file", "type"):
        return Window("file" if text == "file" else "type")
    parts = [part.strip() for part in text.split(":")]
    percent = all(part.endswith("%") for part in parts)
    try:
        numbers = [float(part.removesuffix("%") if percent else part) for part in parts]
    except ValueError:
        numbers = []
    if (
        len(numbers) != 2
        or not all(map(math.isfinite, numbers))
        or not numbers[0] < numbers[1]
        or (percent and not 0 <= numbers[0] < numbers[1] <= 100)
    ):
        raise ConfigError(
            f"data.window: should be file, type, two increasing numbers as in 0:4095, or percentiles as in 1%:99%, "
            f"not {text!r}"
        )
    return Window("percentiles" if percent else "numbers", *numbers)


def _bands(chosen: str | int) -> tuple[int, ...]:
    text = str(chosen).strip()
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) not in (0, 1, 3):
        raise ConfigError(f"data.bands: should be one or three band numbers from 1, such as 4,3,2, not {text!r}")
    return tuple(map(int, parts))


def check_image_size(size: tuple[int, int]) -> None:
    """Raise BadImage for an image that would fill the memory."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    if max(size) > _MAX_ASPECT_RATIO * min(size):
        raise BadImage(f"{width} x {height} is more than {_MAX_ASPECT_RATIO} times longer than wide")


_ROWS = 256  # scaled together: bounds the memory
_PixelValues = NDArray[Any]
_SCALED_BY = {
    "file": "each scaled by its own range",
    "type": "scaled by the full range of their type",
    "numbers": "scaled by the window {}",
    "percentiles": "each scaled by its own percentiles {}",
}


def eight_bits(
    numbers: _PixelValues, window: Window, *, full_range: Span | None = None, missing: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.uint8], Span | None]:
    """Scale pixel values of any type to 8 bits; values outside the window are clipped.

    Args:
        numbers: (height, width) or (height, width, 3), with one window for all channels.
        window: the intensity window of the settings.
        full_range: the full range, where the file defines another than its data type.
        missing: pixels without a value; they become black and do not count for the range, as NaN and infinity.

    Returns:
        The scaled values, and their range where the file's own values decided it.
    """
    if numbers.dtype.kind == "f":
        undefined = ~np.isfinite(numbers)
        missing = undefined if missing is None else undefined | missing
    if missing is not None and missing.all():
        raise BadImage("it has no valid pixel")
    if missing is None or not missing.any():
        span = _window_span(numbers, window, full_range)
        scaled = _scaled(numbers, span)
    else:
        span = _window_span(numbers[~missing], window, full_range)
        scaled = _scaled(numbers, span)
        scaled[missing] = 0
    return scaled, span if window.by in ("file", "percentiles") else None


def _window_span(values: _PixelValues, window: Window, full_range: Span | None) -> Span:
    """Return the values that become black and white; `full_range` replaces that of the data type."""
    match window.by:
        case "file":
            return Span(float(values.min()), float(values.max()))
        case "percentiles":
            return Span(*map(float, np.percentile(values, [window.low, window.high])))
        case "numbers":
            return Span(window.low, window.high)
        case "type":
            is_integer = values.dtype.kind in "ui"
            return full_range or (  # floating-point images range from 0 to 1 by convention
                Span(np.iinfo(values.dtype).min, np.iinfo(values.dtype).max) if is_integer else Span(0.0, 1.0)
            )


def _scaled(numbers: _PixelValues, span: Span) -> NDArray[np.uint8]:
    """Scale by a lookup table where values have at most 16 bits, otherwise some rows at a time."""
    native = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind in "ui" and native.dtype.itemsize <= 2:
        unsigned = np.dtype(f"u{native.dtype.itemsize}")
        table = _scale(np.arange(256**native.dtype.itemsize, dtype=unsigned).view(native.dtype), span)
        looked_up: NDArray[np.uint8] = table[native.view(unsigned)]
        return looked_up
    scaled = np.empty(native.shape, np.uint8)
    for start in range(0, len(native), _ROWS):
        scaled[start : start + _ROWS] = _scale(native[start : start + _ROWS], span)
    return scaled


def _scale(values: _PixelValues, span: Span) -> NDArray[np.uint8]:
    """Scale values to 0 to 255; an image of a single value becomes black."""
    if not span.high > span.low:
        return np.zeros(values.shape, np.uint8)
    with np.errstate(all="ignore"):
        exact = (values.astype(np.float64) - span.low) * 255 / (span.high - span.low)
        return np.rint(np.nan_to_num(np.clip(exact, 0, 255))).astype(np.uint8)
