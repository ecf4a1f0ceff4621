"""DotNumbers of any kind as 8 bits: what lies outside the window is black or white, never wrapped around."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reading import BadImage, Span, Window

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
