"""Alternating measurements of two ways to do the same work, on an idle machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from .machine_load import Load, Machine

Work = Callable[[], object]
Measurement = Callable[[], float]  # does some work; returns its seconds or another amount
TURNS = 5
MAX_SPREAD = 0.25  # of the middle half of the turns, as a share of their median


@dataclass(frozen=True)
class Measured:
    """Median and quartiles over the turns."""

    median: float
    low: float
    high: float
    turns: int

    def __str__(self) -> str:
        spread = f" ({self.low:.2f}–{self.high:.2f})" if self.turns > 1 else ""
        return f"{self.median:.2f}x{spread}"


@dataclass(frozen=True)
class NotMeasured:
    """The reason why there is no number."""

    why: str


@dataclass(frozen=True)
class Line:
    """One line of the table: a ratio and its target."""

    key: str  # in the history
    what: str
    against: str
    ratio: Measured | NotMeasured
    reach: float | None = None
    at_most: bool = False  # the ratio should stay below `reach`
    detail: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without a measurement or a target."""
        if self.reach is None or isinstance(self.ratio, NotMeasured):
            return None
        return self.ratio.median <= self.reach if self.at_most else self.ratio.median >= self.reach


@dataclass(frozen=True)
class PairedTurns:
    """Pairs (value, reference) from turns on an idle machine, and the highest load of the discarded turns."""

    pairs: Sequence[tuple[float, float]]
    required: int  # number of pairs
    busiest: Load | None = None

    @property
    def failure(self) -> NotMeasured | None:
        if len(self.pairs) == self.required:
            return None
        return NotMeasured(f"machine busy, not a measurement: {self.busiest}")

    @property
    def ratio(self) -> Measured | NotMeasured:
        """The ratio reference / value over the pairs."""
        return self.failure or summary([reference / value for value, reference in self.pairs])

    @property
    def medians(self) -> tuple[float, float]:
        """The medians of values and references; NaN without a measurement."""
        if self.failure:
            return float("nan"), float("nan")
        values, references = zip(*self.pairs, strict=True)
        return statistics.median(values), statistics.median(references)

    @property
    def in_seconds(self) -> str:
        value, reference = self.medians
        return f"{value:.2f} s against {reference:.2f} s"


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed(work: Work) -> Measurement:
    return lambda: seconds(work)


@cache
def this_machine() -> Machine:
    return Machine()


def measure_alternately(
    value: Measurement, reference: Measurement, turns: int = TURNS, machine: Machine | None = None
) -> PairedTurns:
    """Measure both alternately, so that a slow minute affects both; repeat turns on a busy machine.

    The measurement ends without a result when there are two more busy turns than quiet ones.
    """
    machine = machine or this_machine()
    pairs: list[tuple[float, float]] = []
    busy: list[Load] = []
    while len(pairs) < turns and len(busy) < len(pairs) + 2:
        before = machine.now()
        pair = value(), reference()
        load = machine.since(before)
        if load.is_quiet:
            pairs.append(pair)
        else:
            busy.append(load)
    busiest = max(busy, key=lambda load: load.others + load.stolen, default=None)
    return PairedTurns(pairs, turns, busiest)


def summary(ratios: Sequence[float]) -> Measured | NotMeasured:
    """Return median and quartiles, or NotMeasured if the quartiles are too far apart."""
    middle = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [middle] * 3
    if high - low > MAX_SPREAD * middle:
        return NotMeasured(f"unsteady, not a measurement: {low:.2f} to {high:.2f} in {len(ratios)} turns")
    return Measured(middle, low, high, len(ratios))


def share_of_peak(rates: Sequence[float], peaks: Sequence[float]) -> Measured | NotMeasured:
    """Return the rates as shares of the machine's highest rate in the same turns; shares above 1 are invalid."""
    peak = max(peaks)
    share = summary([rate / peak for rate in rates])
    if isinstance(share, Measured) and share.median > 1:
        return NotMeasured(f"not a measurement: {share.median:.2f} of the machine's measured peak")
    return share


def counted(ratio: float) -> Measured:
    """Return a counted ratio, which does not depend on the load of the machine."""
    return Measured(ratio, ratio, ratio, 1)
