"""Terminal output of a grid: its plan, progress on stderr, tables on stdout."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table as Grid
from rich.text import Text

from fedcopl.config import RunConfig
from fedcopl.plurals import counted

if TYPE_CHECKING:
    from fedcopl.run.record import Outcome

    from ..grid_plan import GridPlan, PlannedRun
    from ..grid_runner import GridWatcher
    from ..result_tables import ResultTable, TableBlock, TableEntry

STYLES = {"best": "bold green", "second": "underline cyan", "": ""}
GAP = 2  # characters between two columns of a table


class GridProgress:
    """Progress of a grid in runs and parts of runs, and its expected remaining time."""

    def __init__(self) -> None:
        self.total, self.settled = 0, 0
        self._settled_before, self._start_time = 0, time.monotonic()
        self._shares: dict[str, float] = {}  # of each active run, its finished share
        self.names: dict[str, str] = {}

    def plan(self, total: int, done_before: int) -> None:
        self.total, self.settled, self._settled_before = total, done_before, done_before
        self._start_time = time.monotonic()

    def start(self, key: str, config: RunConfig) -> None:
        self.names[key], self._shares[key] = describe(config), 0.0

    def progress(self, key: str, share: float) -> None:
        self._shares[key] = share

    def settle(self, key: str) -> None:
        self._shares.pop(key, None)
        self.settled += 1

    @property
    def completed(self) -> float:
        return self.settled + sum(self._shares.values())

    @property
    def time_left(self) -> str:
        finished = self.completed - self._settled_before
        if finished < 0.2:
            return "time left unknown"
        return (
            f"about {duration((time.monotonic() - self._start_time) / finished * (self.total - self.completed))} left"
        )


def print_next(command: str) -> None:
    """Print the next command to use on standard error, in the form of `fedcopl.cli`, which is above this package."""
    print(f"next: {command}", file=sys.stderr)


def describe(config: RunConfig) -> str:
    return f"{describe_kind(config)}, seed {config.seed}"


def describe_kind(config: RunConfig) -> str:
    """Describe a run without its seed."""
    skew = f"dirichlet {config.data.beta:g}" if config.data.partition == "dirichlet" else config.data.partition
    return f"{config.name}, {skew}, {config.model.backbone}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else counted(hours / 24, "day")


@contextmanager
def watch() -> Iterator["GridWatcher"]:
    """Show progress bars on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield GridLineWatcher(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Counter(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield GridBarWatcher(progress)


class GridLineWatcher:
    """Prints one line for each finished run."""

    def __init__(self, console: Console):
        self._console, self._grid = console, GridProgress()

    def planned(self, total: int, done_before: int) -> None:
        self._grid.plan(total, done_before)
        self._line(f"{counted(total, 'run')}, {done_before} of them finished before")

    def started(self, key: str, config: RunConfig) -> None:
        self._grid.start(key, config)

    def progressed(self, key: str, round: int, rounds: int) -> None:
        self._grid.progress(key, round / rounds)

    def finished(self, key: str, outcome: "Outcome") -> None:
        self._grid.settle(key)
        self._print_run(key, outcome_line(outcome))

    def failed(self, key: str, message: str) -> None:
        self._grid.settle(key)
        self._print_run(key, f"failed: {message}")

    def _print_run(self, key: str, result: str) -> None:
        grid = self._grid
        name = grid.names.get(key, key)
        self._line(f"{grid.settled}/{grid.total} {name}: {result}; {grid.time_left}")

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Counter(ProgressColumn):
    """Finished runs of all runs, or finished rounds of one run."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed)}/{task.total:.0f}" if task.total else "")


class GridBarWatcher:
    """Shows one bar for all runs, and one for each that is running."""

    def __init__(self, progress: Progress):
        self._progress, self._grid = progress, GridProgress()
        self._all = progress.add_task("runs", total=None, left="")
        self._bars: dict[str, TaskID] = {}

    def planned(self, total: int, done_before: int) -> None:
        self._grid.plan(total, done_before)
        self._refresh()

    def started(self, key: str, config: RunConfig) -> None:
        self._grid.start(key, config)
        self._bars[key] = self._progress.add_task(f"  {config.name}, seed {config.seed}", total=config.rounds, left="")

    def progressed(self, key: str, round: int, rounds: int) -> None:
        self._grid.progress(key, round / rounds)
        self._progress.update(self._bars[key], completed=round)
        self._refresh()

    def finished(self, key: str, outcome: "Outcome") -> None:
        self._settle(key, outcome_line(outcome))

    def failed(self, key: str, message: str) -> None:
        self._settle(key, f"failed: {message}")

    def _settle(self, key: str, result: str) -> None:
        self._grid.settle(key)
        if key in self._bars:
            self._progress.remove_task(self._bars.pop(key))
        name = self._grid.names.get(key, key)
        self._progress.console.print(f"{name}: {result}", highlight=False, markup=False)
        self._refresh()

    def _refresh(self) -> None:
        grid = self._grid
        self._progress.update(self._all, total=grid.total, completed=grid.completed, left=grid.time_left)


def outcome_line(outcome: "Outcome") -> str:
    macro = outcome.final.macro
    accuracy = "unknown" if macro is None else f"{share_text(macro)} %"
    return f"accuracy {accuracy}, {duration(outcome.seconds)}"


def share_text(share: float | None) -> str:
    """Format a share in percent, without the sign."""
    return "unknown" if share is None else f"{100 * share:.1f}"


def print_plan(plan: "GridPlan", jobs: int, console: Console) -> None:
    """Print each kind of run, the expected remaining time and its source, and missing data, models and devices."""
    console.print(_plan_grid(plan))
    left, total = len(plan.to_run), len(plan.runs)
    unknown = sum(run.seconds is None for run in plan.to_run)
    time_left = "" if unknown == left else f": about {duration(plan.seconds(jobs))} with --jobs {jobs}"
    console.print(f"{counted(total, 'run')}, {total - left} done, {left} to run{time_left}")
    failed = sum(run.status == "failed before" for run in plan.runs)
    if failed:
        console.print(f"{failed} of them failed before and will be tried again")
    stored = sum(run.similar_runs > 0 for run in plan.to_run)
    if left:
        console.print(f"times: {stored} from stored runs, {left - stored - unknown} measured here, {unknown} unknown")
    for line in plan.missing:
        console.print(Text.assemble(("missing: ", "bold red"), line))


def _plan_grid(plan: "GridPlan") -> Grid:
    kinds: dict[str, list[PlannedRun]] = {}
    for run in plan.runs:
        kinds.setdefault(describe_kind(run.config), []).append(run)
    grid = Grid("run", "done", "each, about", box=None, pad_edge=False)
    for name, runs in kinds.items():
        done = sum(run.status == "done" for run in runs)
        seconds = runs[0].seconds
        grid.add_row(Text(name), f"{done} of {len(runs)}", "unknown" if seconds is None else duration(seconds))
    return grid


def print_table(table: "ResultTable", console: Console) -> None:
    """Print a table block by block, as many columns at a time as fit."""
    console.print(Text.assemble((f"{table.name}: ", "bold"), table.caption))
    count = _columns_that_fit(table, console.width)
    for first in range(0, len(table.columns), count):
        columns = range(first, min(first + count, len(table.columns)))
        for block in table.blocks:
            if block.title:
                console.print(Text(block.title, style="italic"))
            console.print(_grid(table, block, columns))
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _columns_that_fit(table: "ResultTable", width: int) -> int:
    rows = [row for block in table.blocks for row, _ in block.rows]
    names = sum(GAP + max(len(name) for name in column) for column in zip(table.heads, *rows, strict=True))
    cells = [_cell(entry, table.decimals).plain for entry in table.entries]
    heads = [" ".join(column) for column in table.columns]
    widest = max(len(line) for text in (*cells, *heads) for line in text.split("\n"))
    return max(1, (width - names) // (widest + GAP))


def _grid(table: "ResultTable", block: "TableBlock", columns: Sequence[int]) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for head in table.heads:
        grid.add_column(Text(head), no_wrap=True)
    for number in columns:
        grid.add_column(Text(" ".join(table.columns[number])), justify="right", no_wrap=True)
    for row, entries in block.rows:
        grid.add_row(*map(Text, row), *(_cell(entries[number], table.decimals) for number in columns))
    return grid


def _cell(entry: "TableEntry | None", decimals: int) -> Text:
    from ..table_formats import our_number, paper_number

    if entry is None:
        return Text("")
    second_line = ("\n" + paper_number(entry, decimals), "dim") if entry.paper else ""
    return Text.assemble((our_number(entry, decimals), STYLES[entry.mark]), second_line)
