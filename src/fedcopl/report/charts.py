"""Where the lines, bars and ticks of a chart stand. The template draws them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .words import NOTHING, count, shortened

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 16, 46
MARKED = 40  # a line with more points is drawn without marks
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Scale:
    """From a value to its place in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Line:
    """A row of measurements, one per round; None where nothing was measured."""

    name: str
    kind: str  # names its look: dash, mark and colour
    values: Sequence[float | None]


@dataclass(frozen=True)
class DrawnLine:
    name: str
    kind: str
    last: str
    places: list[tuple[float, float]]

    @property
    def points(self) -> str:
        return " ".join(f"{x},{y}" for x, y in self.places)

    @property
    def marks(self) -> list[tuple[float, float]]:
        return self.places if len(self.places) <= MARKED else []


@dataclass(frozen=True)
class Strip:
    """The upright strip of the picture that answers to the pointer, and what it says."""

    at: float
    width: float
    text: str


@dataclass(frozen=True)
class LineChart:
    label: str
    across: list[Tick]
    up: list[Tick]
    lines: list[DrawnLine]
    level: Tick | None
    refreshes: list[float]
    strips: list[Strip]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def line_chart(
    label: str,
    rounds: Sequence[int],
    lines: Sequence[Line],
    write: Callable[[float], str],
    *,
    bounds: Bounds,
    suffix: str = "",
    level: float | None = None,
    refreshed: Sequence[int] = (),
) -> LineChart | None:
    """Lines over the rounds, with a horizontal one at `level`; None when there is nothing to draw."""
    lines = [line for line in lines if any(value is not None for value in line.values)]
    if not lines:
        return None
    values = [value for line in lines for value in line.values if value is not None]
    steps = ticks(*_room(values + ([] if level is None else [level]), bounds))
    up = Scale(steps[0], steps[-1], HEIGHT - BOTTOM, TOP)
    pad = min(14.0, (WIDTH - LEFT - RIGHT) / (2 * len(rounds)))
    across = Scale(rounds[0], rounds[-1], LEFT + pad, WIDTH - RIGHT - pad)
    return LineChart(
        label=label,
        across=[Tick(across(value), count(round(value))) for value in whole_ticks(rounds[0], rounds[-1])],
        up=[Tick(up(value), text + suffix) for value, text in zip(steps, tick_texts(steps), strict=True)],
        lines=[_drawn(line, rounds, across, up, write) for line in lines],
        level=None if level is None else Tick(up(level), write(level)),
        refreshes=[across(value) for value in refreshed],
        strips=_strips(rounds, lines, across, write, set(refreshed)),
    )


def _room(values: Sequence[float], bounds: Bounds) -> Bounds:
    """The range of an axis: that of the values, and some room around a single one."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    return max(low, bounds[0]), min(high, bounds[1])


def _drawn(line: Line, rounds: Sequence[int], across: Scale, up: Scale, write: Callable[[float], str]) -> DrawnLine:
    measured = [(r, value) for r, value in zip(rounds, line.values, strict=True) if value is not None]
    places = [(across(r), up(value)) for r, value in measured]
    return DrawnLine(line.name, line.kind, write(measured[-1][1]), places)


def _strips(
    rounds: Sequence[int],
    lines: Sequence[Line],
    across: Scale,
    write: Callable[[float], str],
    refreshed: set[int],
) -> list[Strip]:
    width = round((WIDTH - LEFT - RIGHT) / len(rounds), 1)
    strips = []
    for place, r in enumerate(rounds):
        said = [(line.name, line.values[place]) for line in lines]
        texts = [f"{name} {NOTHING if value is None else write(value)}" for name, value in said]
        refresh = ["pseudo labels refreshed"] if r in refreshed else []
        strips.append(Strip(round(across(r) - width / 2, 1), width, "\n".join([f"round {r}", *texts, *refresh])))
    return strips


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that reach from at or below `low` to at or above `high`, in at most so many steps."""
    step = _step((high - low) / most)
    while math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9) > most:
        step = _step(step * 1.01)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _step(at_least: float) -> float:
    """The next of ... 0.1 0.2 0.5 1 2 5 10 ..."""
    power: float = 10.0 ** math.floor(math.log10(at_least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9))


def tick_texts(values: Sequence[float]) -> list[str]:
    """With as many decimals as tell neighbours apart."""
    decimals = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
    return [f"{value:,.{decimals}f}" for value in values]


def whole_ticks(low: int, high: int, most: int = 10) -> list[float]:
    """Round whole numbers between the two."""
    step = max(1.0, _step((high - low) / most)) if high > low else 1.0
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True)
class Bar:
    at: float
    top: float
    height: float
    kind: str


@dataclass(frozen=True)
class Group:
    """The bars of one class, side by side."""

    middle: float
    name: str
    text: str
    bars: list[Bar]


@dataclass(frozen=True)
class BarChart:
    label: str
    width: float
    slot: float
    up: list[Tick]
    groups: list[Group]
    level: float
    upright: bool  # the names do not fit side by side
    height: int
    bottom: int
    left: int = LEFT
    top: int = TOP


def bar_chart(
    label: str, names: Sequence[str], series: Sequence[tuple[str, str, Sequence[int]]], level: float
) -> BarChart:
    """For each name one bar of each series (its name, its look, its numbers), and a line at `level`."""
    slot = min(max(900 / len(names), 36.0), 104.0)
    upright = max(map(len, names)) * 8 > slot
    bottom = HEIGHT - BOTTOM
    steps = ticks(0, max(1.0, level, *(float(number) for _, _, numbers in series for number in numbers)))
    up = Scale(steps[0], steps[-1], bottom, TOP)
    return BarChart(
        label=label,
        width=LEFT + slot * len(names) + RIGHT,
        slot=slot,
        up=[Tick(up(value), text) for value, text in zip(steps, tick_texts(steps), strict=True)],
        groups=[_group(place, name, series, slot, up) for place, name in enumerate(names)],
        level=up(level),
        upright=upright,
        height=bottom + (128 if upright else 30),
        bottom=bottom,
    )


def _group(place: int, name: str, series: Sequence[tuple[str, str, Sequence[int]]], slot: float, up: Scale) -> Group:
    start, wide = LEFT + slot * place, slot * 0.78 / len(series)
    bars = [
        Bar(
            round(start + slot * 0.11 + wide * n, 1),
            up(numbers[place]),
            round(up(0) - up(numbers[place]), 1),
            kind,
        )
        for n, (_, kind, numbers) in enumerate(series)
    ]
    said = [f"{title} {count(numbers[place])}" for title, _, numbers in series]
    return Group(round(start + slot / 2, 1), shortened(name, 17), "\n".join([name, *said]), bars)
