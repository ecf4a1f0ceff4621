"""What a person sees of a grid: its plan, its progress on stderr, its tables on stdout."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table as Grid
from rich.text import Text

from fedcopl.cli.show import percent
from fedcopl.config import RunConfig

if TYPE_CHECKING:
    from ..grid import GridWatcher
    from ..plan import Plan, PlannedRun
    from ..tables import Block, Entry, Table

MARKS = {"best": "bold green", "second": "underline cyan", "": ""}
GAP = 2  # between two columns of a table


class Tally:
    """How far a grid is, in runs and parts of runs, and how long the rest will take."""

    def __init__(self) -> None:
        self.total, self.settled = 0, 0
        self._before, self._began = 0, time.monotonic()
        self._parts: dict[str, float] = {}
        self.names: dict[str, str] = {}

    def plan(self, total: int, done_before: int) -> None:
        self.total, self.settled, self._before = total, done_before, done_before
        self._began = time.monotonic()

    def start(self, key: str, config: RunConfig) -> None:
        self.names[key], self._parts[key] = describe(config), 0.0

    def progress(self, key: str, share: float) -> None:
        self._parts[key] = share

    def settle(self, key: str) -> None:
        self._parts.pop(key, None)
        self.settled += 1

    @property
    def completed(self) -> float:
        return self.settled + sum(self._parts.values())

    @property
    def time_left(self) -> str:
        played = self.completed - self._before
        if played < 0.2:
            return "time left unknown yet"
        return f"about {duration((time.monotonic() - self._began) / played * (self.total - self.completed))} left"


def describe(config: RunConfig) -> str:
    return f"{describe_kind(config)}, seed {config.seed}"


def describe_kind(config: RunConfig) -> str:
    """All that runs of several seeds have in common."""
    skew = f"dirichlet {config.data.beta:g}" if config.data.partition == "dirichlet" else config.data.partition
    return f"{config.name}, {skew}, {config.model.backbone}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"


@contextmanager
def watch() -> Iterator["GridWatcher"]:
    """Moving bars on a terminal, plain lines anywhere else."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineWatcher(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Counter(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarWatcher(progress)


class LineWatcher:
    """One line for each run that is done."""

    def __init__(self, console: Console):
        self._console, self._tally = console, Tally()

    def planned(self, total: int, done_before: int) -> None:
        self._tally.plan(total, done_before)
        self._line(f"{total} runs, {done_before} of them done already")

    def started(self, key: str, config: RunConfig) -> None:
        self._tally.start(key, config)

    def progressed(self, key: str, round: int, rounds: int) -> None:
        self._tally.progress(key, round / rounds)

    def finished(self, key: str, results: Mapping[str, Any]) -> None:
        self._tally.settle(key)
        self._say(key, outcome_line(results))

    def failed(self, key: str, message: str) -> None:
        self._tally.settle(key)
        self._say(key, f"failed: {message}")

    def _say(self, key: str, what: str) -> None:
        tally = self._tally
        name = tally.names.get(key, key)
        self._line(f"{tally.settled}/{tally.total} {name}: {what}; {tally.time_left}")

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Counter(ProgressColumn):
    """Whole runs of all runs; rounds of a single run."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed)}/{task.total:.0f}" if task.total else "")


class BarWatcher:
    """One bar over all runs, one for each that is being played."""

    def __init__(self, progress: Progress):
        self._progress, self._tally = progress, Tally()
        self._all = progress.add_task("runs", total=None, left="")
        self._bars: dict[str, TaskID] = {}

    def planned(self, total: int, done_before: int) -> None:
        self._tally.plan(total, done_before)
        self._move()

    def started(self, key: str, config: RunConfig) -> None:
        self._tally.start(key, config)
        self._bars[key] = self._progress.add_task(f"  {config.name}, seed {config.seed}", total=config.rounds, left="")

    def progressed(self, key: str, round: int, rounds: int) -> None:
        self._tally.progress(key, round / rounds)
        self._progress.update(self._bars[key], completed=round)
        self._move()

    def finished(self, key: str, results: Mapping[str, Any]) -> None:
        self._settle(key, outcome_line(results))

    def failed(self, key: str, message: str) -> None:
        self._settle(key, f"failed: {message}")

    def _settle(self, key: str, what: str) -> None:
        self._tally.settle(key)
        if key in self._bars:
            self._progress.remove_task(self._bars.pop(key))
        name = self._tally.names.get(key, key)
        self._progress.console.print(f"{name}: {what}", highlight=False, markup=False)
        self._move()

    def _move(self) -> None:
        tally = self._tally
        self._progress.update(self._all, total=tally.total, completed=tally.completed, left=tally.time_left)


def outcome_line(results: Mapping[str, Any]) -> str:
    return f"accuracy {percent(results['final']['macro'])}, {duration(results['seconds'])}"


def print_plan(plan: "Plan", jobs: int, console: Console) -> None:
    """Each kind of run on a line, how long the rest may take and how sure that is, and what is missing."""
    console.print(_plan_grid(plan))
    left, total = len(plan.to_play), len(plan.runs)
    time_left = duration(plan.seconds(jobs))
    console.print(f"{total} runs, {total - left} done, {left} to play: about {time_left} with --jobs {jobs}")
    failed = sum(run.status == "failed before" for run in plan.runs)
    if failed:
        console.print(f"{failed} of them failed before and will be tried again")
    guessed = sum(not run.likes for run in plan.to_play)
    if left:
        console.print(f"{left - guessed} of the times are by stored runs of like settings, {guessed} a rough guess")
    for line in plan.missing:
        console.print(Text.assemble(("missing: ", "bold red"), line))


def _plan_grid(plan: "Plan") -> Grid:
    kinds: dict[str, list[PlannedRun]] = {}
    for run in plan.runs:
        kinds.setdefault(describe_kind(run.config), []).append(run)
    grid = Grid("run", "done", "each, about", box=None, pad_edge=False)
    for name, runs in kinds.items():
        done = sum(run.status == "done" for run in runs)
        grid.add_row(Text(name), f"{done} of {len(runs)}", duration(runs[0].seconds))
    return grid


def print_table(table: "Table", console: Console) -> None:
    """Block by block, as many columns at a time as fit."""
    console.print(Text.assemble((f"{table.name}: ", "bold"), table.caption))
    fit = _columns_that_fit(table, console.width)
    for first in range(0, len(table.columns), fit):
        places = range(first, min(first + fit, len(table.columns)))
        for block in table.blocks:
            if block.title:
                console.print(Text(block.title, style="italic"))
            console.print(_grid(table, block, places))
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _columns_that_fit(table: "Table", width: int) -> int:
    rows = [row for block in table.blocks for row, _ in block.rows]
    names = sum(GAP + max(len(name) for name in column) for column in zip(table.heads, *rows, strict=True))
    cells = [_cell(entry, table.decimals).plain for entry in table.entries]
    heads = [" ".join(column) for column in table.columns]
    widest = max(len(line) for text in (*cells, *heads) for line in text.split("\n"))
    return max(1, (width - names) // (widest + GAP))


def _grid(table: "Table", block: "Block", places: Sequence[int]) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for head in table.heads:
        grid.add_column(Text(head), no_wrap=True)
    for place in places:
        grid.add_column(Text(" ".join(table.columns[place])), justify="right", no_wrap=True)
    for row, entries in block.rows:
        grid.add_row(*map(Text, row), *(_cell(entries[place], table.decimals) for place in places))
    return grid


def _cell(entry: "Entry | None", decimals: int) -> Text:
    from ..table_formats import ours, theirs

    if entry is None:
        return Text("")
    beside = ("\n" + theirs(entry, decimals), "dim") if entry.paper else ""
    return Text.assemble((ours(entry, decimals), MARKS[entry.mark]), beside)
