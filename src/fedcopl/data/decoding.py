"""Converting a file's pixel values to an image of 8 bits per channel: page, bands and intensity window."""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import Data
from ..errors import ConfigError

MAX_PIXELS = 89_478_485  # above this number Pillow warns of a decompression bomb: 256 MB as RGB
MAX_BYTES = 2**31  # of one decoded image, or of a decompressed file
MAX_PAGES = 10_000  # of a file
_MAX_ASPECT_RATIO = 200  # resizing the short side of a longer image would fill the memory


class BadImage(Exception):
    """An image cannot be decoded; the message is the reason."""


def import_extra(package: str, content: str, extra: str) -> Any:
    """Import the package of an extra of fedcopl; raises BadImage with the `content` that needs it if it is missing."""
    try:
        return import_module(package)
    except ImportError:
        raise BadImage(f"{content}, which needs: pip install 'fedcopl[{extra}]'") from None


class IntensityRange(NamedTuple):
    """The intensities that become black and white."""

    low: float
    high: float


class Picture(NamedTuple):
    """A decoded image of 8 bits per channel, upright, and remarks on the decoding."""

    image: Image.Image
    remarks: tuple[str, ...] = ()
    intensity_range: IntensityRange | None = None  # if the image was scaled by the range of its own values


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
        """Describe the scaling of an image to 8 bits; `kind` describes its values."""
        return f"{kind}, {_SCALED_BY[self.by].format(self)}"


@dataclass(frozen=True)
class DecodeOptions:
    """Settings for files with more than 8 bits per channel, many bands or several pages."""

    window: Window = Window()
    bands: tuple[int, ...] = ()  # three for red, green and blue or one for grey, counted from 1
    pages: Literal["first", "middle", "all"] = "first"

    @classmethod
    def of(cls, data: Data) -> "DecodeOptions":
        """Parse the settings; raises ConfigError."""
        return cls(_parse_window(data.window), _parse_bands(data.bands), data.pages)

    def non_defaults(self) -> dict[str, str]:
        """Return the settings that differ from the defaults, as text."""
        defaults = DecodeOptions()
        texts = {"window": str(self.window), "bands": ",".join(map(str, self.bands)), "pages": self.pages}
        return {name: text for name, text in texts.items() if getattr(self, name) != getattr(defaults, name)}

    @property
    def key(self) -> str:
        """Cache key of these options; empty for the defaults."""
        return "".join(f", {name} {text}" for name, text in self.non_defaults().items())

    def page_of(self, pages: int) -> int:
        """Return the number of the page to decode, counted from 0, in a file of `pages` pages."""
        return pages // 2 if self.pages == "middle" else 0

    def page_remark(self, pages: int) -> tuple[str, ...]:
        """Return the remark that one page of several is used; empty for a file of a single page."""
        return (f"the {self.pages} of several pages; data.pages=all uses every page",) if pages > 1 else ()


def _parse_window(setting: str | float) -> Window:
    text = setting.strip() if isinstance(setting, str) else f"{setting:g}"
    if text in ("file", "type"):
        return Window("file" if text == "file" else "type")
    parts = [part.strip() for part in text.split(":")]
    percent = all(part.endswith("%") for part in parts)
    lowest, highest = (0, 100) if percent else (-math.inf, math.inf)
    try:
        numbers = [float(part.removesuffix("%") if percent else part) for part in parts]
    except ValueError:
        numbers = []
    is_range = len(numbers) == 2 and lowest <= numbers[0] < numbers[1] <= highest
    if not is_range or not all(map(math.isfinite, numbers)):
        raise ConfigError(
            f"data.window: should be file, type, two increasing numbers as in 0:4095, or percentiles as in 1%:99%, "
            f"not {text!r}"
        )
    return Window("percentiles" if percent else "numbers", *numbers)


def _parse_bands(setting: str | int) -> tuple[int, ...]:
    text = str(setting).strip()
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) not in (0, 1, 3):
        raise ConfigError(f"data.bands: should be one or three band numbers from 1, such as 4,3,2, not {text!r}")
    return tuple(map(int, parts))


def check_image_size(size: tuple[int, int]) -> None:
    """Raise BadImage for an image that is too large or too long."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    if max(size) > _MAX_ASPECT_RATIO * min(size):
        raise BadImage(f"{width} x {height} is more than {_MAX_ASPECT_RATIO} times longer than wide")


_ROWS = 256  # rows that are scaled together, which bounds the memory
_PixelValues = NDArray[Any]
_SCALED_BY = {
    "file": "each scaled by its own range",
    "type": "scaled by the full range of their type",
    "numbers": "scaled by the window {}",
    "percentiles": "each scaled by its own percentiles {}",
}


def scale_to_uint8(
    numbers: _PixelValues,
    window: Window,
    *,
    full_range: IntensityRange | None = None,
    missing: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.uint8], IntensityRange | None]:
    """Scale pixel values of any type to 8 bits; values outside the window are clipped.

    Args:
        numbers: (height, width) or (height, width, 3), with one window for all channels.
        window: The intensity window of the settings.
        full_range: The full range of the values, if it is not that of their data type.
        missing: Mask of pixels without a value. Like NaN and infinity, they become black and do not count for the
            range.

    Returns:
        The scaled values, and the range that became black to white if it depends on the values.
    """
    if numbers.dtype.kind == "f":
        undefined = ~np.isfinite(numbers)
        missing = undefined if missing is None else undefined | missing
    if missing is not None and missing.all():
        raise BadImage("it has no valid pixel")
    values = numbers if missing is None or not missing.any() else numbers[~missing]
    span = _intensity_range(values, window, full_range)
    scaled = _apply_range(numbers, span)
    if missing is not None:
        scaled[missing] = 0
    return scaled, span if window.by in ("file", "percentiles") else None


def _intensity_range(values: _PixelValues, window: Window, full_range: IntensityRange | None) -> IntensityRange:
    match window.by:
        case "file":
            return IntensityRange(float(values.min()), float(values.max()))
        case "percentiles":
            return IntensityRange(*map(float, np.percentile(values, [window.low, window.high])))
        case "numbers":
            return IntensityRange(window.low, window.high)
        case "type":
            if full_range or values.dtype.kind not in "ui":
                return full_range or IntensityRange(0.0, 1.0)  # the convention for floating point
            return IntensityRange(np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)


def _apply_range(numbers: _PixelValues, span: IntensityRange) -> NDArray[np.uint8]:
    """Scale a range to 8 bits, by a lookup table for integers of at most 16 bits, otherwise by groups of rows."""
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


def _scale(values: _PixelValues, span: IntensityRange) -> NDArray[np.uint8]:
    """Scale and clip values to 0 to 255; an empty range gives 0."""
    if not span.high > span.low:
        return np.zeros(values.shape, np.uint8)
    with np.errstate(all="ignore"):
        exact = (values.astype(np.float64) - span.low) * 255 / (span.high - span.low)
        return np.rint(np.nan_to_num(np.clip(exact, 0, 255))).astype(np.uint8)
