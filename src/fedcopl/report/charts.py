"""Geometry of charts: positions of lines, bars and ticks. The template draws them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .formatting import NOTHING, count, marks, shortened

_WIDTH, _HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 16, 46
_DIGIT, _GAP = 10.2, 10  # pixels: largest width of a digit (16 px font on a phone), and space between text and axis
_MAX_MARKS = 40  # a line with more points is drawn without marks
_Bounds = tuple[float, float]


@dataclass(frozen=True)
class Unit:
    """Number format of a chart, and the limits of its axis.

    The axis covers all values and `include`, within `bounds`, and spans at least `min_span`, so that noise does not
    look like a trend. It is linear in `transform(value)`; `format_ticks` formats its marks.
    """

    write: Callable[[float], str]
    format_ticks: Callable[[Sequence[float]], list[str]] = marks
    bounds: _Bounds = (0, math.inf)
    include: tuple[float, ...] = ()
    min_span: float = 0.0
    transform: Callable[[float], float] = float


@dataclass(frozen=True)
class _Tick:
    at: float
    text: str


@dataclass(frozen=True)
class _AxisScale:
    """Maps a value to a position in the picture."""

    low: float
    high: float
    start: float
    end: float
    transform: Callable[[float], float] = float  # of a value; low and high are transformed already

    def __call__(self, value: float) -> float:
        position = min(max(self.transform(value), self.low), self.high)
        share = (position - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Series:
    """Named numbers, one per round or class; None where nothing was measured."""

    name: str
    style: str  # CSS class: dash, mark and colour
    values: Sequence[float | None]
    deviations: Sequence[float | None] = ()  # standard deviation of each mean over several runs


@dataclass(frozen=True)
class _DrawnLine:
    name: str
    style: str
    first: str
    last: str
    spots: list[tuple[float, float]]
    band: str = ""  # corners of the area from one standard deviation below to one above

    @property
    def points(self) -> str:
        return " ".join(f"{x},{y}" for x, y in self.spots)

    @property
    def marks(self) -> list[tuple[float, float]]:
        return self.spots if len(self.spots) <= _MAX_MARKS else []


@dataclass(frozen=True)
class _Strip:
    """The vertical strip of a round with its tooltip."""

    at: float
    width: float
    round: int
    values: list[str]  # one for each line
    text: str


@dataclass(frozen=True)
class LineChart:
    title: str
    across: list[_Tick]
    up: list[_Tick]
    lines: list[_DrawnLine]
    levels: list[_Tick]
    refreshes: list[float]
    strips: list[_Strip]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = _HEIGHT - _BOTTOM

    @property
    def label(self) -> str:
        """Text alternative for screen readers."""
        courses = [f"{line.name} from {line.first} to {line.last}" for line in self.lines]
        return f"{self.title}: {'; '.join(courses)}"


def line_chart(
    title: str,
    rounds: Sequence[int],
    lines: Sequence[Series],
    unit: Unit,
    *,
    levels: Mapping[str, float | None] | None = None,
    refreshed: Sequence[int] = (),
) -> LineChart | None:
    """Draw lines over the rounds, and horizontal lines at `levels`; None if no line has a value."""
    lines = [line for line in lines if any(value is not None for value in line.values)]
    if not lines:
        return None
    drawn_levels = {name: level for name, level in (levels or {}).items() if level is not None}
    drawn = [value for line in lines for value in line.values if value is not None]
    drawn += [edge for line in lines for _, low, high in _edges(line) for edge in (low, high)]
    possible = [min(max(value, unit.bounds[0]), unit.bounds[1]) for value in drawn]
    values = [*possible, *unit.include, *drawn_levels.values()]
    steps = _ticks(*_axis_range([unit.transform(value) for value in values], unit))
    up = _AxisScale(steps[0], steps[-1], _HEIGHT - _BOTTOM, _TOP, unit.transform)
    even = replace(up, transform=float)
    texts = unit.format_ticks(steps)
    last = _DIGIT * len(count(rounds[-1]))  # pixels of the longest text below the axis
    left, right = _left(texts), _WIDTH - max(_RIGHT, math.ceil(last / 2))
    pad = min(14.0, (right - left) / (2 * len(rounds)))
    across = _AxisScale(rounds[0], rounds[-1], left + pad, right - pad)
    limit = min(10, int((right - left) / (last + _GAP)))
    return LineChart(
        title=title,
        across=[_Tick(across(value), count(round(value))) for value in _whole_ticks(rounds[0], rounds[-1], limit)],
        up=[_Tick(even(value), text) for value, text in zip(steps, texts, strict=True)],
        lines=[_drawn(line, rounds, across, up, unit) for line in lines],
        levels=[_Tick(up(level), f"{name}, {unit.write(level)}") for name, level in drawn_levels.items()],
        refreshes=[across(value) for value in refreshed],
        strips=_strips(rounds, lines, across, unit, set(refreshed), (right - left) / len(rounds)),
        left=left,
        right=right,
    )


def _left(texts: Sequence[str]) -> int:
    """Return the left margin: space for the longest tick text."""
    return max(_LEFT, math.ceil(_GAP + _DIGIT * max(map(len, texts))))


def _edges(line: Series) -> list[tuple[int, float, float]]:
    """Return position, lower and upper edge of the band at each point with a standard deviation."""
    pairs = enumerate(zip(line.values, line.deviations, strict=False))
    return [(n, mean - std, mean + std) for n, (mean, std) in pairs if mean is not None and std is not None]


def _axis_range(values: Sequence[float], unit: Unit) -> _Bounds:
    """Return the range of an axis: that of the values, extended if it is narrow."""
    low, high = min(values), max(values)
    if high - low < unit.min_span:
        low = min(max((low + high - unit.min_span) / 2, unit.bounds[0]), unit.bounds[1] - unit.min_span)
        return low, low + unit.min_span
    if high - low > 1e-9:
        return low, high
    return (low - 1, high + 1) if low else (0.0, 1.0)


def _drawn(line: Series, rounds: Sequence[int], across: _AxisScale, up: _AxisScale, unit: Unit) -> _DrawnLine:
    measured = [(r, value) for r, value in zip(rounds, line.values, strict=True) if value is not None]
    over = [(across(rounds[n]), up(high)) for n, _, high in _edges(line)]
    under = [(across(rounds[n]), up(low)) for n, low, _ in reversed(_edges(line))]
    return _DrawnLine(
        line.name,
        line.style,
        unit.write(measured[0][1]),
        unit.write(measured[-1][1]),
        [(across(r), up(value)) for r, value in measured],
        " ".join(f"{x},{y}" for x, y in (*over, *under)),
    )


def _strips(
    rounds: Sequence[int], lines: Sequence[Series], across: _AxisScale, unit: Unit, refreshed: set[int], wide: float
) -> list[_Strip]:
    def cell(line: Series, position: int) -> str:
        value, std = line.values[position], line.deviations[position] if line.deviations else None
        if value is None:
            return NOTHING
        return unit.write(value) if std is None else f"{unit.write(value)} ± {unit.write(std)}"

    width, strips = round(wide, 1), []
    for position, r in enumerate(rounds):
        values = [cell(line, position) for line in lines]
        texts = [f"{line.name} {value}" for line, value in zip(lines, values, strict=True)]
        text = "\n".join([f"round {r}", *texts, *(["pseudo labels refreshed"] if r in refreshed else [])])
        strips.append(_Strip(round(across(r) - width / 2, 1), width, r, values, text))
    return strips


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` + 1 round tick values that cover `low` to `high`."""
    step = _step((high - low) / most)
    while math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9) > most:
        step = _step(step * 1.01)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _step(at_least: float) -> float:
    """Return the smallest of ... 0.1 0.2 0.5 1 2 5 10 ... that is large enough."""
    power: float = 10.0 ** math.floor(math.log10(at_least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9))


def _whole_ticks(low: int, high: int, most: int = 10) -> list[float]:
    """Return round whole numbers from `low` to `high`."""
    step = max(1.0, _step((high - low) / most)) if high > low else 1.0
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True)
class _Bar:
    at: float
    top: float
    height: float
    style: str


@dataclass(frozen=True)
class _BarGroup:
    """The bars of one class, side by side."""

    middle: float
    name: str
    text: str
    bars: list[_Bar]


@dataclass(frozen=True)
class BarChart:
    label: str
    width: float
    slot: float
    bar: float
    up: list[_Tick]
    groups: list[_BarGroup]
    series: Sequence[Series]
    level: _Tick | None
    upright: bool  # the names do not fit side by side
    height: int
    bottom: int
    left: int = _LEFT
    top: int = _TOP


def bar_chart(
    label: str, names: Sequence[str], series: Sequence[Series], unit: Unit, *, level: tuple[str, float] | None = None
) -> BarChart:
    """Draw one bar per name and series, and a line at `level` with its name."""
    slot = min(max(900 / len(names), 36.0), 104.0)
    upright = max(map(len, names)) * 8 > slot
    bottom = _HEIGHT - _BOTTOM
    numbers = [float(number) for one in series for number in one.values if number is not None]
    steps = _ticks(0, max([1.0, *numbers, *([] if level is None else [level[1]])]))
    up, texts = _AxisScale(steps[0], steps[-1], bottom, _TOP), unit.format_ticks(steps)
    left, wide, groups = _left(texts), slot * 0.78 / len(series), []
    for position, name in enumerate(names):
        start, bars, lines = left + slot * position, [], [name]
        for n, (title, style, number) in enumerate((one.name, one.style, one.values[position]) for one in series):
            lines.append(f"{title} {NOTHING if number is None else unit.write(number)}")
            if number is not None:
                at = round(start + slot * 0.11 + wide * n, 1)
                bars.append(_Bar(at, up(number), round(up(0) - up(number), 1), style))
        groups.append(_BarGroup(round(start + slot / 2, 1), shortened(name, 17), "\n".join(lines), bars))
    return BarChart(
        label=label,
        width=round(left + slot * len(names) + _RIGHT, 1),
        slot=slot,
        bar=round(wide - 2, 1),
        up=[_Tick(up(value), text) for value, text in zip(steps, texts, strict=True)],
        groups=groups,
        series=series,
        level=None if level is None else _Tick(up(level[1]), level[0]),
        upright=upright,
        height=bottom + (128 if upright else 30),
        bottom=bottom,
        left=left,
    )
