"""Tables in the paper's layout: our mean over the seeds, the paper's number, and marks of the best two."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from fedcopl.config import Data, is_as_published
from fedcopl.data.catalog import load_dataset
from fedcopl.data.dataset import Dataset
from fedcopl.errors import FedCoPLError

from .cells import ExperimentCell
from .experiment_catalog import Experiment
from .measures import SeedSample, StoredOutcomes, read, read_gain
from .paper_names import NEEDS_NO_RUN
from .paper_numbers import CellKey, PaperNumber, PaperTable, paper_tables
from .scales import ExperimentSetup

RowName = tuple[str, ...]
ColumnName = tuple[str, ...]


@dataclass(frozen=True)
class TableEntry:
    """One number of a table, with the paper's number, its mark and the method that ran."""

    sample: SeedSample
    gain: float | None = None
    paper: PaperNumber | None = None
    mark: str = ""  # "best" or "second"
    dagger: str = ""  # mark of a doubtful number of the paper: †, or †1, †2 for several reasons
    ranked: bool = True
    spread: bool = True  # whether the standard deviation is shown
    runs: str = ""  # titles of the methods that ran

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's number."""
        mean = self.sample.mean
        return None if mean is None or self.paper is None else mean - self.paper.value


@dataclass(frozen=True)
class TableBlock:
    """Rows under a common heading."""

    title: str
    rows: Sequence[tuple[RowName, Sequence[TableEntry | None]]]  # None: the table has no such number


@dataclass(frozen=True)
class ResultTable:
    """A table with its caption, blocks and notes."""

    name: str
    caption: str
    heads: tuple[str, ...]
    columns: tuple[ColumnName, ...]
    blocks: tuple[TableBlock, ...]
    notes: tuple[str, ...]
    decimals: int

    @property
    def entries(self) -> list[TableEntry]:
        return [entry for block in self.blocks for _, row in block.rows for entry in row if entry]

    def without_empty(self) -> "ResultTable":
        """Return the table without rows, columns and blocks that have no number yet."""
        rows = [entries for block in self.blocks for _, entries in block.rows]
        kept = [n for n in range(len(self.columns)) if any(_has_number(entries[n]) for entries in rows)]
        blocks = tuple(
            replace(
                block,
                rows=[(name, [row[n] for n in kept]) for name, row in block.rows if any(map(_has_number, row))],
            )
            for block in self.blocks
        )
        filled = tuple(block for block in blocks if block.rows)
        return replace(self, columns=tuple(self.columns[n] for n in kept), blocks=filled)


def _has_number(entry: TableEntry | None) -> bool:
    return entry is not None and bool(entry.sample.values)


def build_table(
    experiment: Experiment, setup: ExperimentSetup, outcomes: StoredOutcomes, seeds: Sequence[int]
) -> ResultTable:
    """Build the table of an experiment from stored outcomes."""
    cells = experiment.cells(setup)
    printed = paper_tables().get(experiment.name) if setup.is_paper else None
    read_cells = {(cell.block, cell.row, cell.column): _entry(cell, outcomes, seeds, printed) for cell in cells}
    daggers = _daggers(read_cells.values())
    entries = {key: _with_dagger(entry, daggers) for key, entry in read_cells.items()}
    columns = tuple(dict.fromkeys(cell.column for cell in cells))
    decimals = 0 if not experiment.best_of else 2 if setup.is_paper else 1
    blocks = tuple(_marked(block, experiment.best_of, decimals) for block in _blocks(cells, columns, entries))
    table = ResultTable(experiment.name, "", experiment.heads, columns, blocks, (), decimals)
    return replace(
        table, caption=_caption(experiment, setup, printed), notes=_notes(experiment, cells, table, seeds, daggers)
    )


def _daggers(entries: Iterable[TableEntry]) -> dict[str, str]:
    """Return the mark of each reason to doubt a number of the paper."""
    reasons = list(dict.fromkeys(entry.paper.doubt for entry in entries if entry.paper and entry.paper.doubt))
    return {reason: f"†{number}" if len(reasons) > 1 else "†" for number, reason in enumerate(reasons, 1)}


def _with_dagger(entry: TableEntry, daggers: Mapping[str, str]) -> TableEntry:
    return replace(entry, dagger=daggers.get(entry.paper.doubt, "")) if entry.paper else entry


def _blocks(
    cells: Sequence[ExperimentCell], columns: Sequence[ColumnName], entries: Mapping[CellKey, TableEntry]
) -> Iterator[TableBlock]:
    """Yield the rows in order, grouped by heading."""
    rows = dict.fromkeys((cell.block, cell.row) for cell in cells)
    for title in dict.fromkeys(block for block, _ in rows):
        names = [row for block, row in rows if block == title]
        yield TableBlock(title, [(row, [entries.get((title, row, column)) for column in columns]) for row in names])


SIZES_OF: dict[str, Callable[[Dataset], int]] = {
    "classes": lambda dataset: len(dataset.classes),
    "train": lambda dataset: len(dataset.train),
    "test": lambda dataset: len(dataset.test),
}


def _entry(
    cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Sequence[int], printed: PaperTable | None
) -> TableEntry:
    paper = printed.find(cell.row, cell.column, cell.block) if printed else None
    if cell.measure in NEEDS_NO_RUN:
        return TableEntry(_size(cell), None, paper, ranked=False)
    gain = read_gain(cell, outcomes, seeds).mean if cell.baseline else None
    return TableEntry(
        read(cell, outcomes, seeds), gain, paper, ranked=cell.ranked, spread=cell.spread, runs=_methods(cell)
    )


def _methods(cell: ExperimentCell) -> str:
    from fedcopl.methods import run_title  # imports torch

    if cell.measure.startswith("zero_shot"):
        return "CLIP"
    return ", ".join(dict.fromkeys(map(run_title, cell.configs)))


def _size(cell: ExperimentCell) -> SeedSample:
    """Return the size of a data set; empty if it is missing."""
    dataset = _dataset(cell.configs[0].data)
    return SeedSample(()) if dataset is None else SeedSample((float(SIZES_OF[cell.measure](dataset)),))


@cache
def _dataset(data: Data) -> Dataset | None:
    try:
        return load_dataset(data)
    except FedCoPLError:
        return None


def _marked(block: TableBlock, best_of: str, decimals: int) -> TableBlock:
    """Mark the best two rounded numbers of each column or row, among the numbers with the most seeds."""
    grid = [list(entries) for _, entries in block.rows]
    if best_of == "row":
        grid = [_mark_line(line, decimals) for line in grid]
    elif best_of == "column":
        grid = _transposed([_mark_line(line, decimals) for line in _transposed(grid)])
    return replace(block, rows=[(row, entries) for (row, _), entries in zip(block.rows, grid, strict=True)])


def _transposed(grid: Sequence[Sequence[TableEntry | None]]) -> list[list[TableEntry | None]]:
    return [list(line) for line in zip(*grid, strict=True)]


def _mark_line(entries: Sequence[TableEntry | None], decimals: int) -> list[TableEntry | None]:
    seeds = max((len(entry.sample.values) for entry in entries if entry), default=0)
    compared = [entry if entry and len(entry.sample.values) == seeds else None for entry in entries]
    shown = [_shown(entry, decimals) for entry in compared]
    order = sorted({value for value in shown if value is not None}, reverse=True)
    marks = dict(zip(order[:2], ("best", "second"), strict=False)) if len(order) > 1 else {}
    return [
        replace(entry, mark=marks[value]) if entry and value in marks else entry
        for entry, value in zip(entries, shown, strict=True)
    ]


def _shown(entry: TableEntry | None, decimals: int) -> float | None:
    mean = entry.sample.mean if entry and entry.ranked else None
    return None if mean is None else round(mean, decimals)


def _caption(experiment: Experiment, setup: ExperimentSetup, printed: PaperTable | None) -> str:
    if printed:
        return printed.caption
    description = experiment.description.removesuffix("; needs no runs")
    models = {config.model.backbone for cell in experiment.cells(setup) for config in cell.configs}
    scope = f"Scale {setup.scale.name}, {', '.join(sorted(models))}: not comparable with the paper."
    return f"{description[0].upper()}{description[1:]}. {scope}"


def _notes(
    experiment: Experiment,
    cells: Sequence[ExperimentCell],
    table: ResultTable,
    seeds: Sequence[int],
    daggers: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the notes: seeds, methods, number of missing cells, and doubtful numbers of the paper."""
    entries = table.entries
    notes = [_of_seeds(seeds)] if experiment.best_of else []
    published = experiment.best_of and all(is_as_published(config) for cell in cells for config in cell.configs)
    notes += ["All methods as published: without priors."] if published else []
    notes += [experiment.note] if experiment.note else []
    notes += (
        ["Second line: the paper's number, and our number minus the paper's."] if any(e.paper for e in entries) else []
    )
    missing = sum(entry.sample.mean is None for entry in entries)
    notes += [f"–: {missing} of {len(entries)} numbers have no run yet."] if missing else []
    partial = sum(0 < len(entry.sample.values) < len(seeds) for entry in entries) if experiment.best_of else 0
    notes += [f"{partial} numbers have fewer seeds so far."] if partial else []
    return (*notes, *(f"{dagger} doubtful in the paper: {reason}." for reason, dagger in daggers.items()))


def _of_seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"Seed {seeds[0]} only."
    return f"Mean ± standard deviation over the seeds {', '.join(map(str, seeds))}."
