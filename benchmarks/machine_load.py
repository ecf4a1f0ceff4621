"""Who else used the processors while something was measured.

The kernel counts the time of all processes (`/proc/stat`) and of each of ours; what is left is the others'. Time that a
virtual machine wanted and did not get is counted as stolen.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

QUIET_SHARE = 0.05  # of all processors' time may be others'; more, and a number is not a measurement
TICKS_OF_DOUBT = 2  # of each processor: the kernel counts in hundredths of a second


@dataclass(frozen=True)
class Moment:
    """What the counters say at one time, in seconds."""

    clock: float
    worked: float  # by all processes, on all processors
    stolen: float
    own: float  # by this process and those it started


@dataclass(frozen=True)
class Load:
    """Between two moments, in processors: 0.5 means half of one, all the time."""

    others: float
    stolen: float
    processors: int
    doubt: float = 0.0

    @property
    def is_quiet(self) -> bool:
        return self.others + self.stolen <= QUIET_SHARE * self.processors + self.doubt

    def __str__(self) -> str:
        return f"others used {self.others:.2f} of {self.processors} processors, {self.stolen:.2f} stolen"


@dataclass(frozen=True)
class Machine:
    """The counters of Linux. Elsewhere there are none, and nothing can be measured."""

    proc: Path = Path("/proc")
    processors: int = field(default_factory=lambda: os.cpu_count() or 1)
    ticks: int = field(default_factory=lambda: os.sysconf("SC_CLK_TCK"))
    me: int = field(default_factory=os.getpid)
    clock: Callable[[], float] = time.perf_counter

    def now(self) -> Moment:
        user, nice, system, _idle, _iowait, irq, softirq, stolen = self._first_line()
        worked = user + nice + system + irq + softirq
        return Moment(self.clock(), worked / self.ticks, stolen / self.ticks, self._own_ticks() / self.ticks)

    def since(self, before: Moment) -> Load:
        after = self.now()
        seconds = max(after.clock - before.clock, 1 / self.ticks)
        others = max(after.worked - before.worked - (after.own - before.own), 0.0)
        doubt = TICKS_OF_DOUBT * self.processors / self.ticks / seconds
        return Load(others / seconds, (after.stolen - before.stolen) / seconds, self.processors, doubt)

    @property
    def model(self) -> str:
        """What the processor calls itself."""
        lines = (self.proc / "cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else "unknown"

    def _first_line(self) -> list[int]:
        _cpu, *counts = (self.proc / "stat").read_text().splitlines()[0].split()
        return [int(count) for count in counts[:8]]  # guests' time is within the user's

    def _own_ticks(self) -> int:
        """Of all our processes that live, each with its children that have ended."""
        found = dict(filter(None, map(_process, self.proc.glob("[0-9]*/stat"))))
        ours = {self.me}
        while more := {number for number, (parent, _) in found.items() if parent in ours} - ours:
            ours |= more
        return sum(found[number][1] for number in ours if number in found)


def _process(file: Path) -> tuple[int, tuple[int, int]] | None:
    """Number of a process, its parent's and its ticks; None if it has ended meanwhile."""
    try:
        text = file.read_text()
    except OSError:
        return None
    words = text.rpartition(")")[2].split()  # the name before it may hold anything
    return int(file.parent.name), (int(words[1]), sum(map(int, words[11:15])))
