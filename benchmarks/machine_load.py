"""CPU time of other processes during a measurement.

It is the CPU time of all processes (`/proc/stat`) without that of this process and its children. Stolen time is the
time that a virtual machine could not use because the host was busy.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MAX_OTHER_SHARE = 0.05  # of the time of all processors; with more the measurement is discarded
UNCERTAIN_TICKS = 2  # of each processor: the kernel counts in hundredths of a second


@dataclass(frozen=True)
class Snapshot:
    """The counters at one time, in seconds."""

    clock: float
    worked: float  # by all processes, on all processors
    stolen: float
    own: float  # by this process and its descendants


@dataclass(frozen=True)
class Load:
    """Mean load between two snapshots, in processors: 0.5 means half of one processor."""

    others: float
    stolen: float
    processors: int
    uncertainty: float = 0.0

    @property
    def is_quiet(self) -> bool:
        return self.others + self.stolen <= MAX_OTHER_SHARE * self.processors + self.uncertainty

    def __str__(self) -> str:
        return f"others used {self.others:.2f} of {self.processors} processors, {self.stolen:.2f} stolen"


@dataclass(frozen=True)
class Machine:
    """The counters of Linux; other systems have none."""

    proc: Path = Path("/proc")
    processors: int = field(default_factory=lambda: os.cpu_count() or 1)
    ticks: int = field(default_factory=lambda: os.sysconf("SC_CLK_TCK"))
    process_id: int = field(default_factory=os.getpid)
    clock: Callable[[], float] = time.perf_counter

    def now(self) -> Snapshot:
        user, nice, system, _idle, _iowait, irq, softirq, stolen = self._first_line()
        worked = user + nice + system + irq + softirq
        return Snapshot(self.clock(), worked / self.ticks, stolen / self.ticks, self._own_ticks() / self.ticks)

    def since(self, before: Snapshot) -> Load:
        after = self.now()
        seconds = max(after.clock - before.clock, 1 / self.ticks)
        others = max(after.worked - before.worked - (after.own - before.own), 0.0)
        uncertainty = UNCERTAIN_TICKS * self.processors / self.ticks / seconds
        return Load(others / seconds, (after.stolen - before.stolen) / seconds, self.processors, uncertainty)

    @property
    def model(self) -> str:
        """The model name of the processor."""
        lines = (self.proc / "cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else "unknown"

    def _first_line(self) -> list[int]:
        _cpu, *counts = (self.proc / "stat").read_text().splitlines()[0].split()
        return [int(count) for count in counts[:8]]  # user time includes that of guests

    def _own_ticks(self) -> int:
        """Return the ticks of this process and its descendants, each with its children that have ended."""
        processes = dict(filter(None, map(_process, self.proc.glob("[0-9]*/stat"))))
        own = {self.process_id}
        while children := {number for number, (parent, _) in processes.items() if parent in own} - own:
            own |= children
        return sum(processes[number][1] for number in own if number in processes)


def _process(file: Path) -> tuple[int, tuple[int, int]] | None:
    """Return (process id, (id of the parent, ticks)) of a process; None if it has ended."""
    try:
        text = file.read_text()
    except OSError:
        return None
    words = text.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return int(file.parent.name), (int(words[1]), sum(map(int, words[11:15])))
