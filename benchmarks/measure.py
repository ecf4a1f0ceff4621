"""Measuring two ways of doing one thing by turns, on a machine that does nothing else."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from .machine_load import Load, Machine

Work = Callable[[], object]
Amount = Callable[[], float]  # does something, and says how many seconds it took, or how much of something else
TURNS = 5
UNSTEADY = 0.25  # the middle half of the turns may differ by this share of their median


@dataclass(frozen=True)
class Measured:
    """The median over the turns, and between what the middle half of them lie."""

    median: float
    low: float
    high: float
    turns: int

    def __str__(self) -> str:
        spread = f" ({self.low:.2f}–{self.high:.2f})" if self.turns > 1 else ""
        return f"{self.median:.2f}x{spread}"


@dataclass(frozen=True)
class NotMeasured:
    """Why there is no number."""

    why: str


@dataclass(frozen=True)
class Line:
    """One line of the table: how many times faster (or larger) ours is, and what it should reach."""

    key: str  # names it in the history
    what: str
    against: str
    ratio: Measured | NotMeasured
    reach: float | None = None
    at_most: bool = False  # the ratio should stay below `reach`
    detail: str = ""

    @property
    def reached(self) -> bool | None:
        """None where nothing was measured, or nothing is to be reached."""
        if self.reach is None or isinstance(self.ratio, NotMeasured):
            return None
        return self.ratio.median <= self.reach if self.at_most else self.ratio.median >= self.reach


@dataclass(frozen=True)
class Turns:
    """Pairs (ours, theirs) that were measured while nobody else worked; or the loads that were in the way."""

    pairs: Sequence[tuple[float, float]]
    wanted: int
    busiest: Load | None = None

    @property
    def why_not(self) -> NotMeasured | None:
        return (
            None if len(self.pairs) == self.wanted else NotMeasured(f"machine busy, not a measurement: {self.busiest}")
        )

    @property
    def ratio(self) -> Measured | NotMeasured:
        """How many times as much theirs is, pair by pair."""
        return self.why_not or summary([theirs / ours for ours, theirs in self.pairs])

    @property
    def medians(self) -> tuple[float, float]:
        """Of ours and of theirs; not numbers where nothing was measured."""
        if self.why_not:
            return float("nan"), float("nan")
        ours, theirs = zip(*self.pairs, strict=True)
        return statistics.median(ours), statistics.median(theirs)

    @property
    def in_seconds(self) -> str:
        ours, theirs = self.medians
        return f"{ours:.2f} s against {theirs:.2f} s"


def seconds(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def timed(work: Work) -> Amount:
    return lambda: seconds(work)


@cache
def this_machine() -> Machine:
    return Machine()


def by_turns(ours: Amount, theirs: Amount, turns: int = TURNS, machine: Machine | None = None) -> Turns:
    """Measure both in turns, so that a slow minute hits both; a turn in which others worked is made again.

    Two busy turns more than quiet ones: the machine has other things to do, and the rest is left.
    """
    machine = machine or this_machine()
    pairs: list[tuple[float, float]] = []
    busy: list[Load] = []
    while len(pairs) < turns and len(busy) < len(pairs) + 2:
        before = machine.now()
        pair = ours(), theirs()
        load = machine.since(before)
        if load.is_quiet:
            pairs.append(pair)
        else:
            busy.append(load)
    busiest = max(busy, key=lambda load: load.others + load.stolen, default=None)
    return Turns(pairs, turns, busiest)


def summary(ratios: Sequence[float]) -> Measured | NotMeasured:
    """Median and quartiles; of ratios that lie too far apart nothing can be said."""
    middle = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [middle] * 3
    if high - low > UNSTEADY * middle:
        return NotMeasured(f"unsteady, not a measurement: {low:.2f} to {high:.2f} in {len(ratios)} turns")
    return Measured(middle, low, high, len(ratios))


def share_of_peak(rates: Sequence[float], peaks: Sequence[float]) -> Measured | NotMeasured:
    """What part of the best rate that the machine showed in the same turns; no more than all of it is believed."""
    peak = max(peaks)
    share = summary([rate / peak for rate in rates])
    if isinstance(share, Measured) and share.median > 1:
        return NotMeasured(f"not a measurement: {share.median:.2f} of what was taken for the machine's peak")
    return share


def counted(ratio: float) -> Measured:
    """Bytes do not depend on who else works."""
    return Measured(ratio, ratio, ratio, 1)
