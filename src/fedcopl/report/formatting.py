"""Number formats of the pages."""

import math
from collections.abc import Sequence

from ..plurals import counted

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
MINUS, NOTHING, SPACE = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{NO-BREAK SPACE}"


def count(number: int | None) -> str:
    """Format a count with thousands separators; a dash where nothing was counted."""
    return NOTHING if number is None else _signed(f"{number:,}")


def percent(share: float | None) -> str:
    """Format a share, 0.8634 as 86.3 %; a dash where nothing was measured."""
    return NOTHING if share is None else f"{100 * share:.1f}{SPACE}%"


def whole_percent(share: float) -> str:
    """Format an estimated share without meaningless decimals: 0.8634 as 86 %."""
    return f"{100 * share:.0f}{SPACE}%"


def ratio(value: float | None) -> str:
    """Format a number without a unit, such as a drift; a large one without decimals."""
    return NOTHING if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def loss(value: float | None) -> str:
    """Format a loss; a dash where nothing was measured."""
    return NOTHING if value is None else f"{value:.3f}"


def difference(after: float | None, before: float | None) -> float | None:
    """Return the difference of two shares in percentage points: from 0.80 to 0.83 is 3."""
    return None if after is None or before is None else 100 * (after - before)


def points(value: float | None) -> str:
    """Format percentage points with a sign; a value that rounds to 0 has none."""
    if value is None:
        return NOTHING
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else _signed(text)


def change(number: int) -> str:
    """Format a change of a count with its sign."""
    return _signed(f"{number:+,}") if number else "0"


def _signed(text: str) -> str:
    """Use a minus sign, which is as wide as the plus, instead of a hyphen."""
    return text.replace("-", MINUS)


def size(octets: int) -> str:
    """Format bytes in decimal units: 1 kB is 1,000 bytes."""
    value = float(octets)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.0f}{SPACE}{unit}" if unit == "bytes" else f"{value:.1f}{SPACE}{unit}"
        value /= 1000
    return f"{value:,.1f}{SPACE}TB"


def size_ticks(values: Sequence[float]) -> list[str]:
    """Format the ticks of an axis of bytes, all in the unit of the largest: 0 kB, 50 kB, 100 kB."""
    power = min(int(math.log10(max(values[-1], 1)) / 3 + 1e-9), 3)
    return tick_texts([value / 1000**power for value in values], ("bytes", "kB", "MB", "GB")[power])


def tick_texts(values: Sequence[float], unit: str = "") -> list[str]:
    """Format the ticks of an axis, with as many decimals as distinct ticks need."""
    decimals = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
    return [f"{value:,.{decimals}f}{SPACE + unit if unit else ''}" for value in values]


def log_ticks(logarithms: Sequence[float]) -> list[str]:
    """Format the ticks of a logarithmic axis: 0.1, 0.32, 1, 3.2, 10; from a hundred thousand on 10⁵, 3·10⁵, 10⁶."""
    texts = []
    for value in logarithms:
        whole = math.floor(value + 1e-9)
        factor = f"{10 ** (value - whole):.0f}"
        large = ("" if factor == "1" else f"{factor}·") + "10" + str(whole).translate(_RAISED)
        texts.append(large if value >= 5 - 1e-9 else f"{10**value:.2g}" if value < 1 else f"{10**value:,.0f}")
    return texts


def duration(seconds: float) -> str:
    """Format seconds as `7.2 s`, `3 min 05 s` or `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {rest:02}{SPACE}s" if minutes else f"{rest}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h {minutes % 60:02}{SPACE}min"


def several(number: int, one: str, many: str = "") -> str:
    """Format a count and its noun with a no-break space."""
    return counted(number, one, many).replace(" ", SPACE, 1)


def shortened(text: str, max_length: int) -> str:
    """Cut a text to at most `max_length` characters, of which the last is then an ellipsis."""
    return text if len(text) <= max_length else text[: max_length - 1] + "\N{HORIZONTAL ELLIPSIS}"
