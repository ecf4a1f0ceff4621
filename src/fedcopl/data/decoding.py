"""How a file's numbers become a picture: which page, which bands, and what is black and what white."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import Data
from ..errors import ConfigError

MOST_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb: 256 MB as RGB
MOST_BYTES = 2**31  # of the numbers of one picture, or of a file that is unpacked
MOST_PAGES = 10_000  # of a file
THINNEST = 200  # times longer than wide: scaled by its short side, such an image becomes enormous


class BadImage(Exception):
    """An image that cannot be used; the message is the reason, for the list of what was left out."""


class Span(NamedTuple):
    """From black to white, in the file's own numbers."""

    low: float
    high: float


class Picture(NamedTuple):
    """An upright picture of 8 bits per colour, and how it was made where there was a choice."""

    image: Image.Image
    remarks: tuple[str, ...] = ()
    span: Span | None = None  # of deep numbers that were scaled by what the file itself holds


@dataclass(frozen=True)
class Window:
    """What is black and what is white in an image of more than 8 bits per colour."""

    by: Literal["file", "type", "numbers", "percentiles"] = "file"
    low: float = 0.0
    high: float = 0.0

    def __str__(self) -> str:
        percent = "%" if self.by == "percentiles" else ""
        return self.by if self.by in ("file", "type") else f"{self.low:g}{percent}:{self.high:g}{percent}"


@dataclass(frozen=True)
class ImageReading:
    """What the settings say about files that hold more than a plain picture."""

    window: Window = Window()
    bands: tuple[int, ...] = ()  # three of many, or one as grey, counted from 1
    pages: Literal["first", "middle", "all"] = "first"

    @classmethod
    def of(cls, data: Data) -> "ImageReading":
        """From the settings, or a ConfigError that says what is meant."""
        return cls(_window(data.window), _bands(data.bands), data.pages)

    def plain(self) -> dict[str, str]:
        """The settings that differ from the usual ones, as text."""
        usual = ImageReading()
        written = {"window": str(self.window), "bands": ",".join(map(str, self.bands)), "pages": self.pages}
        return {name: text for name, text in written.items() if getattr(self, name) != getattr(usual, name)}

    @property
    def key(self) -> str:
        """Names all that decides what a file's picture is; empty when all is as usual."""
        return "".join(f", {name} {text}" for name, text in self.plain().items())

    def page_of(self, pages: int) -> int:
        """Which page stands for a file of so many, counted from 0."""
        return pages // 2 if self.pages == "middle" else 0


def _window(given: str | float) -> Window:
    text = given.strip() if isinstance(given, str) else f"{given:g}"
    if text in ("file", "type"):
        return Window("file" if text == "file" else "type")
    parts = [part.strip() for part in text.split(":")]
    percent = all(part.endswith("%") for part in parts)
    numbers = [_number(part.removesuffix("%") if percent else part) for part in parts]
    if len(numbers) != 2 or not numbers[0] < numbers[1] or (percent and not 0 <= numbers[0] < numbers[1] <= 100):
        raise ConfigError(
            f"data.window: should be file, type, two growing numbers as in 0:4095, or percentiles as in 1%:99%, "
            f"not {text!r}"
        )
    return Window("percentiles" if percent else "numbers", *numbers)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _bands(chosen: str | int) -> tuple[int, ...]:
    text = str(chosen).strip()
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) not in (0, 1, 3):
        raise ConfigError(f"data.bands: should be three numbers counted from 1, as in 4,3,2, or one, not {text!r}")
    return tuple(map(int, parts))


def refuse_giants(size: tuple[int, int]) -> None:
    """BadImage for what would fill the memory."""
    width, height = size
    if width * height > MOST_PIXELS:
        raise BadImage(f"{width} x {height} is more than {MOST_PIXELS:,} pixels")
    if max(size) > THINNEST * min(size):
        raise BadImage(f"{width} x {height} is more than {THINNEST} times longer than wide")


def page_remark(pages: int, reading: ImageReading) -> tuple[str, ...]:
    """That others were passed over."""
    return (f"the {reading.pages} of several pages; data.pages=all takes every one",) if pages > 1 else ()


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


ROWS = 256  # scaled together, to need little memory
DotNumbers = NDArray[Any]
BY = {
    "file": "each scaled by its own range",
    "type": "scaled by the full range of their type",
    "numbers": "scaled by the window {}",
    "percentiles": "each scaled by its own percentiles {}",
}


def eight_bits(
    numbers: DotNumbers, window: Window, *, whole: Span | None = None, missing: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.uint8], Span | None]:
    """The numbers as 0 to 255, and where the file decided that, what was 0 and what 255.

    A dot without a number is black, and counts for no range.

    numbers is (height, width), or with colours (height, width, 3): one range for all colours keeps them what they
    are. `whole` is the range of the type, where the file knows better than its numbers' kind.
    """
    absent = _absent(numbers, missing)
    span = _ends(numbers if absent is None else numbers[~absent], window, whole or type_range(numbers.dtype))
    scaled = _scaled(numbers, lambda values: _scale(values, span))
    if absent is not None:
        scaled[absent] = 0
    return scaled, span if window.by in ("file", "percentiles") else None


def remark(bits: str, window: Window) -> str:
    """How such an image was made visible, for people."""
    return f"{bits}, {BY[window.by].format(window)}"


def type_range(kind: np.dtype[Any]) -> Span:
    """All that numbers of a kind can be; of fractions, 0 to 1 by custom."""
    return Span(np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "ui" else Span(0.0, 1.0)


def _absent(numbers: DotNumbers, missing: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """The dots without a number, if there are any."""
    if numbers.dtype.kind == "f":
        unknown = ~np.isfinite(numbers)
        missing = unknown if missing is None else unknown | missing
    if missing is None or not missing.any():
        return None
    if missing.all():
        raise BadImage("no dot of it has a value")
    return missing


def _ends(known: DotNumbers, window: Window, whole: Span) -> Span:
    match window.by:
        case "file":
            return Span(float(known.min()), float(known.max()))
        case "percentiles":
            return Span(*map(float, np.percentile(known, [window.low, window.high])))
        case "type":
            return whole
        case "numbers":
            return Span(window.low, window.high)


def _scaled(numbers: DotNumbers, scale: Callable[[DotNumbers], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """By a table where numbers are short, which is quick and small; otherwise some rows at a time."""
    native = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind in "ui" and native.dtype.itemsize <= 2:
        unsigned = np.dtype(f"u{native.dtype.itemsize}")
        table = scale(np.arange(256**native.dtype.itemsize, dtype=unsigned).view(native.dtype))
        looked_up: NDArray[np.uint8] = table[native.view(unsigned)]
        return looked_up
    scaled = np.empty(native.shape, np.uint8)
    for start in range(0, len(native), ROWS):
        scaled[start : start + ROWS] = scale(native[start : start + ROWS])
    return scaled


def _scale(values: DotNumbers, span: Span) -> NDArray[np.uint8]:
    """A picture of one number only is black: it has no range."""
    if not span.high > span.low:
        return np.zeros(values.shape, np.uint8)
    with np.errstate(all="ignore"):
        exact = (values.astype(np.float64) - span.low) * 255 / (span.high - span.low)
        return np.rint(np.nan_to_num(np.clip(exact, 0, 255))).astype(np.uint8)
