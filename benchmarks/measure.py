"""Timing two ways of doing one thing side by side."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One line of the table: how many times faster (or larger) ours is, and what it should reach."""

    what: str
    against: str
    ratio: float
    reach: float
    at_most: bool = False  # the ratio should stay below `reach`
    detail: str = ""

    @property
    def reached(self) -> bool:
        return self.ratio <= self.reach if self.at_most else self.ratio >= self.reach


def seconds(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def side_by_side(ours: Work, theirs: Work, repeats: int = 5) -> tuple[float, float]:
    """Median seconds of each, taken in turns so that a slow minute of the machine hits both."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def matmul_peak(rows: int, width: int, hidden: int) -> float:
    """FLOP per second of a bare matrix product of a tower's shapes: the most that this machine gives."""
    a, b = torch.randn(rows, width), torch.randn(width, hidden)
    best = min(seconds(lambda: torch.mm(a, b)) for _ in range(20))
    return 2 * rows * width * hidden / best
