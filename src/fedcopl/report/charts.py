"""Geometry of charts: positions of lines, bars and ticks. The template draws them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .formatting import NOTHING, count, shortened, tick_texts

_WIDTH, _HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 16, 46
_DIGIT, _GAP = 10.2, 10  # pixels: largest width of a digit (16 px font on a phone), and space between text and axis
_MAX_MARKS = 40  # a line with more points is drawn without marks
_Bounds = tuple[float, float]


@dataclass(frozen=True)
class Unit:
    """Number format of a chart, and the limits of its axis.

    The axis covers all values and `include`, within `bounds`, and spans at least `min_span`, so that noise does not
    look like a trend. It is linear in `transform(value)`; `format_ticks` formats its ticks.
    """

    format_value: Callable[[float], str]
    format_ticks: Callable[[Sequence[float]], list[str]] = tick_texts
    bounds: _Bounds = (0, math.inf)
    include: tuple[float, ...] = ()
    min_span: float = 0.0
    transform: Callable[[float], float] = float


@dataclass(frozen=True)
class _Tick:
    at: float  # pixels, along the axis
    text: str


@dataclass(frozen=True)
class _AxisScale:
    """Maps a value to a position in the picture."""

    low: float  # transformed, as `high`
    high: float
    start: float  # pixels
    end: float
    transform: Callable[[float], float] = float

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
    first: str  # formatted first value
    last: str
    spots: list[tuple[float, float]]  # x and y of each point, in pixels
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

    at: float  # left edge
    width: float
    round: int
    values: list[str]  # one for each line
    text: str  # of the tooltip


@dataclass(frozen=True)
class LineChart:
    title: str
    x_ticks: list[_Tick]
    y_ticks: list[_Tick]
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
        descriptions = [f"{line.name} from {line.first} to {line.last}" for line in self.lines]
        return f"{self.title}: {'; '.join(descriptions)}"


def line_chart(
    title: str,
    rounds: Sequence[int],
    lines: Sequence[Series],
    unit: Unit,
    *,
    levels: Mapping[str, float | None] | None = None,
    refreshed: Sequence[int] = (),
) -> LineChart | None:
    """Draw lines over the rounds, horizontal lines at `levels`, and the rounds with a refresh; None without a value."""
    lines = [line for line in lines if any(value is not None for value in line.values)]
    if not lines:
        return None
    drawn_levels = {name: level for name, level in (levels or {}).items() if level is not None}
    drawn = [value for line in lines for value in line.values if value is not None]
    drawn += [edge for line in lines for _, low, high in _band_edges(line) for edge in (low, high)]
    clipped = [min(max(value, unit.bounds[0]), unit.bounds[1]) for value in drawn]
    values = [*clipped, *unit.include, *drawn_levels.values()]
    ticks = _ticks(*_axis_range([unit.transform(value) for value in values], unit))
    y_scale = _AxisScale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP, unit.transform)
    tick_scale = replace(y_scale, transform=float)  # ticks are transformed already
    texts = unit.format_ticks(ticks)
    round_width = _DIGIT * len(count(rounds[-1]))  # pixels of the longest text below the x axis
    left, right = _left_margin(texts), _WIDTH - max(_RIGHT, math.ceil(round_width / 2))
    pad = min(14.0, (right - left) / (2 * len(rounds)))
    x_scale = _AxisScale(rounds[0], rounds[-1], left + pad, right - pad)
    limit = min(10, int((right - left) / (round_width + _GAP)))
    return LineChart(
        title=title,
        x_ticks=[_Tick(x_scale(tick), count(round(tick))) for tick in _whole_ticks(rounds[0], rounds[-1], limit)],
        y_ticks=[_Tick(tick_scale(tick), text) for tick, text in zip(ticks, texts, strict=True)],
        lines=[_draw(line, rounds, x_scale, y_scale, unit) for line in lines],
        levels=[_Tick(y_scale(level), f"{name}, {unit.format_value(level)}") for name, level in drawn_levels.items()],
        refreshes=[x_scale(number) for number in refreshed],
        strips=_strips(rounds, lines, x_scale, unit, set(refreshed), (right - left) / len(rounds)),
        left=left,
        right=right,
    )


def _left_margin(texts: Sequence[str]) -> int:
    """Return the width of the left margin, which has space for the longest tick text."""
    return max(_LEFT, math.ceil(_GAP + _DIGIT * max(map(len, texts))))


def _band_edges(line: Series) -> list[tuple[int, float, float]]:
    """Return index, lower and upper edge of the band at each point with a standard deviation."""
    pairs = enumerate(zip(line.values, line.deviations, strict=False))
    return [(n, mean - std, mean + std) for n, (mean, std) in pairs if mean is not None and std is not None]


def _axis_range(values: Sequence[float], unit: Unit) -> _Bounds:
    """Return the range of the values, extended to `min_span` within `bounds`, or by 1 if all values are equal."""
    low, high = min(values), max(values)
    if high - low < unit.min_span:
        low = min(max((low + high - unit.min_span) / 2, unit.bounds[0]), unit.bounds[1] - unit.min_span)
        return low, low + unit.min_span
    if high - low > 1e-9:
        return low, high
    return (low - 1, high + 1) if low else (0.0, 1.0)


def _draw(line: Series, rounds: Sequence[int], x_scale: _AxisScale, y_scale: _AxisScale, unit: Unit) -> _DrawnLine:
    measured = [(r, value) for r, value in zip(rounds, line.values, strict=True) if value is not None]
    upper = [(x_scale(rounds[n]), y_scale(high)) for n, _, high in _band_edges(line)]
    lower = [(x_scale(rounds[n]), y_scale(low)) for n, low, _ in reversed(_band_edges(line))]
    return _DrawnLine(
        line.name,
        line.style,
        unit.format_value(measured[0][1]),
        unit.format_value(measured[-1][1]),
        [(x_scale(r), y_scale(value)) for r, value in measured],
        " ".join(f"{x},{y}" for x, y in (*upper, *lower)),
    )


def _strips(
    rounds: Sequence[int], lines: Sequence[Series], x_scale: _AxisScale, unit: Unit, refreshed: set[int], width: float
) -> list[_Strip]:
    """Return a strip for each round, with the values of all lines as its tooltip."""

    def formatted(line: Series, index: int) -> str:
        value, std = line.values[index], line.deviations[index] if line.deviations else None
        if value is None:
            return NOTHING
        return unit.format_value(value) if std is None else f"{unit.format_value(value)} ± {unit.format_value(std)}"

    strips = []
    for index, r in enumerate(rounds):
        values = [formatted(line, index) for line in lines]
        texts = [f"{line.name} {value}" for line, value in zip(lines, values, strict=True)]
        text = "\n".join([f"round {r}", *texts, *(["pseudo labels refreshed"] if r in refreshed else [])])
        strips.append(_Strip(round(x_scale(r) - round(width, 1) / 2, 1), round(width, 1), r, values, text))
    return strips


def _ticks(low: float, high: float, max_steps: int = 6) -> list[float]:
    """Return at most `max_steps` + 1 tick values, multiples of a `_tick_step`, that cover `low` to `high`."""
    step = _tick_step((high - low) / max_steps)
    while math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9) > max_steps:
        step = _tick_step(step * 1.01)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _tick_step(at_least: float) -> float:
    """Return the smallest of ... 0.1 0.2 0.5 1 2 5 10 ... that is at least `at_least`."""
    power: float = 10.0 ** math.floor(math.log10(at_least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9))


def _whole_ticks(low: int, high: int, max_steps: int = 10) -> list[float]:
    """Return whole tick values from `low` to `high`, multiples of a `_tick_step`."""
    step = max(1.0, _tick_step((high - low) / max_steps)) if high > low else 1.0
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True)
class _Bar:
    at: float  # left edge, in pixels
    top: float
    height: float
    style: str


@dataclass(frozen=True)
class _BarGroup:
    """The bars of one class, side by side."""

    middle: float  # pixels
    name: str
    text: str  # of the tooltip
    bars: list[_Bar]


@dataclass(frozen=True)
class BarChart:
    label: str
    width: float
    group_width: float
    bar_width: float
    y_ticks: list[_Tick]
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
    group_width = min(max(900 / len(names), 36.0), 104.0)
    upright = max(map(len, names)) * 8 > group_width
    bottom = _HEIGHT - _BOTTOM
    numbers = [float(number) for one in series for number in one.values if number is not None]
    ticks = _ticks(0, max([1.0, *numbers, *([] if level is None else [level[1]])]))
    y_scale, texts = _AxisScale(ticks[0], ticks[-1], bottom, _TOP), unit.format_ticks(ticks)
    left, bar_pitch, groups = _left_margin(texts), group_width * 0.78 / len(series), []
    for index, name in enumerate(names):
        start, bars, tooltip = left + group_width * index, [], [name]
        for n, (title, style, number) in enumerate((one.name, one.style, one.values[index]) for one in series):
            tooltip.append(f"{title} {NOTHING if number is None else unit.format_value(number)}")
            if number is not None:
                left_edge = round(start + group_width * 0.11 + bar_pitch * n, 1)
                bars.append(_Bar(left_edge, y_scale(number), round(y_scale(0) - y_scale(number), 1), style))
        groups.append(_BarGroup(round(start + group_width / 2, 1), shortened(name, 17), "\n".join(tooltip), bars))
    return BarChart(
        label=label,
        width=round(left + group_width * len(names) + _RIGHT, 1),
        group_width=group_width,
        bar_width=round(bar_pitch - 2, 1),
        y_ticks=[_Tick(y_scale(tick), text) for tick, text in zip(ticks, texts, strict=True)],
        groups=groups,
        series=series,
        level=None if level is None else _Tick(y_scale(level[1]), level[0]),
        upright=upright,
        height=bottom + (128 if upright else 30),
        bottom=bottom,
        left=left,
    )
