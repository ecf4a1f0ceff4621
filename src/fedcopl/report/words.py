"""Numbers as a reader wants to see them."""

MINUS, NOTHING, SPACE = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{NO-BREAK SPACE}"


def count(number: int) -> str:
    return signed(f"{number:,}")


def percent(share: float | None) -> str:
    """0.8634 is 86.3 %; a dash where nothing was measured."""
    return NOTHING if share is None else f"{100 * share:.1f}{SPACE}%"


def loss(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def difference(after: float | None, before: float | None) -> float | None:
    """In points: from 0.80 to 0.83 is 3."""
    return None if after is None or before is None else 100 * (after - before)


def points(value: float | None) -> str:
    """With its sign, which a rounded nothing does not have."""
    if value is None:
        return NOTHING
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else signed(text)


def change(number: int) -> str:
    return signed(f"{number:+,}") if number else "0"


def signed(text: str) -> str:
    """A real minus sign, which is as wide as the plus."""
    return text.replace("-", MINUS)


def size(octets: int) -> str:
    """In the units disks and networks are sold in: 1 kB is 1,000 bytes."""
    value = float(octets)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.0f}{SPACE}{unit}" if unit == "bytes" else f"{value:.1f}{SPACE}{unit}"
        value /= 1000
    return f"{value:,.1f}{SPACE}TB"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f}{SPACE}s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {left:02}{SPACE}s" if minutes else f"{left}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h {minutes % 60:02}{SPACE}min"


def several(number: int, one: str, many: str) -> str:
    return f"{count(number)}{SPACE}{one if number == 1 else many}"


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
