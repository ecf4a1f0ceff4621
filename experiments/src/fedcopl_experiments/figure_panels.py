"""The numbers of figures: panels with lines over rounds, clients, participation rates or quantile levels."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcopl.algorithm.partition import counts_by_client
from fedcopl.config import RunConfig
from fedcopl.data.catalog import load_dataset
from fedcopl.data.partitioning import partition_dataset
from fedcopl.errors import FedCoPLError

from .cells import ExperimentCell, seeded
from .experiment_catalog import EXPERIMENTS, Experiment
from .measures import CURVES, SeedSample, StoredOutcomes, read, read_curves
from .paper_numbers import paper_tables
from .scales import ExperimentSetup

ACCURACY, ROUND = "accuracy (%)", "communication round"


@dataclass(frozen=True)
class Point:
    """One point of a line: the mean over the seeds."""

    x: float
    sample: SeedSample

    @property
    def mean(self) -> float:
        return statistics.fmean(self.sample.values)


@dataclass(frozen=True)
class FigureLine:
    """A line of our values over the seeds, and of the paper's values if it prints them."""

    name: str
    variant: str  # drawn dashed if not empty
    points: tuple[Point, ...]
    paper: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[FigureLine, ...]
    ticks: tuple[float, ...] = ()  # all values of the x axis; empty: rounds


@dataclass(frozen=True)
class PartitionMap:
    """Number of images of each class at each client, (K, C)."""

    title: str
    counts: NDArray[np.int64]
    classes: tuple[str, ...]


def build_panels(
    experiment: Experiment, setup: ExperimentSetup, outcomes: StoredOutcomes, seeds: Sequence[int]
) -> list[Panel]:
    """Return the panels that have data."""
    cells: dict[tuple[str, ...], list[ExperimentCell]] = {}
    for cell in experiment.cells(setup):
        cells.setdefault(cell.column if cell.measure in CURVES else cell.column[:1], []).append(cell)
    build = PANELS[experiment.name]
    panels = [build(PanelData(column, group, setup, outcomes, seeds)) for column, group in cells.items()]
    return [panel for panel in panels if any(line.points or line.paper for line in panel.lines)]


def build_heat_maps(experiment: Experiment, setup: ExperimentSetup, seed: int) -> list[PartitionMap]:
    """Return the partition under each skew for one seed; none if the data set is missing."""
    return [heat_map for cell in experiment.cells(setup) if (heat_map := _heat_map(cell, seed))]


def _heat_map(cell: ExperimentCell, seed: int) -> PartitionMap | None:
    config = seeded(cell.configs[0], seed)
    try:
        dataset = load_dataset(config.data)
        parts = partition_dataset(dataset, config.data, seed)
    except FedCoPLError:
        return None
    assert dataset.train.labels is not None  # a data set without labels cannot be partitioned by class
    counts = counts_by_client(dataset.train.labels, parts.train, len(dataset.classes))
    return PartitionMap(", ".join(cell.column), counts, tuple(dataset.classes))


@dataclass(frozen=True)
class PanelData:
    """The cells of one panel, and the stored outcomes of their runs."""

    column: Sequence[str]
    cells: Sequence[ExperimentCell]
    setup: ExperimentSetup
    outcomes: StoredOutcomes
    seeds: Sequence[int]

    def curve(self, cell: ExperimentCell) -> tuple[Point, ...]:
        """Return a point for each round with the values of all seeds."""
        values: dict[int, list[float]] = {}
        for curve in read_curves(cell, self.outcomes, self.seeds):
            for round, value in curve:
                values.setdefault(round, []).append(value)
        return tuple(Point(round, SeedSample(tuple(values[round]))) for round in sorted(values))

    def points(self, cells: Iterable[ExperimentCell]) -> tuple[Point, ...]:
        """Return a point for each cell that has finished runs."""
        points = (Point(float(cell.column[-1]), read(cell, self.outcomes, self.seeds)) for cell in cells)
        return tuple(point for point in points if point.sample.values)


def _over_rounds(y_label: str) -> "Build":
    """Return the builder of panels over the rounds."""

    def build(data: PanelData) -> Panel:
        lines = tuple(FigureLine(cell.row[0], "", data.curve(cell)) for cell in data.cells)
        return Panel(data.column[0], ROUND, y_label, lines)

    return build


def _drift(data: PanelData) -> Panel:
    dataset, kind = data.column
    y_label = {"diversity": "drift diversity", "cosine": "cosine distance"}[kind]
    variant = {"both": "", "visual": "only visual prompts aggregated"}
    lines = tuple(FigureLine(cell.row[0], variant[cell.row[1]], data.curve(cell)) for cell in data.cells)
    return Panel(dataset, ROUND, y_label, lines)


def _over_values(x_label: str) -> "Build":
    """Return the builder of panels of final accuracies over the values of a setting."""

    def build(data: PanelData) -> Panel:
        rows: dict[str, list[ExperimentCell]] = {}
        for cell in data.cells:
            rows.setdefault(cell.row[0], []).append(cell)
        printed = _paper_values(data.setup) if data.setup.is_paper else {}
        lines = tuple(
            FigureLine(name, "", data.points(group), _paper_points(group, printed)) for name, group in rows.items()
        )
        ticks = tuple(dict.fromkeys(float(cell.column[-1]) for cell in data.cells))
        title = "" if "{}" in x_label else data.column[0]
        return Panel(title, x_label.format(data.column[0]), ACCURACY, lines, ticks)

    return build


def _paper_values(setup: ExperimentSetup) -> dict[tuple[str, str], float]:
    """Return the numbers of the paper's tables by settings and measure; its figures print no numbers."""
    return {
        (_settings(cell.configs[0]), cell.measure): number.value
        for name in ("table1", "table10", "table11")
        for cell in EXPERIMENTS[name].cells(setup)
        if len(cell.configs) == 1 and (number := paper_tables()[name].find(cell.row, cell.column))
    }


def _settings(config: RunConfig) -> str:
    return config.model_dump_json()


def _paper_points(
    cells: Iterable[ExperimentCell], printed: Mapping[tuple[str, str], float]
) -> tuple[tuple[float, float], ...]:
    keys = ((float(cell.column[-1]), (_settings(cell.configs[0]), cell.measure)) for cell in cells)
    return tuple((x, printed[key]) for x, key in keys if key in printed)


Build = Callable[[PanelData], Panel]
PANELS: Mapping[str, Build] = {
    "fig-accuracy": _over_rounds(ACCURACY),
    "fig-allocation": _over_rounds("pseudo label accuracy (%)"),
    "fig-drift": _drift,
    "fig-clients": _over_values("clients"),
    "fig-participation": _over_values("joining rate"),
    "fig-tau": _over_values("{} (level of the quantile)"),
}


def panels_csv(panels: Iterable[Panel]) -> str:
    """Return the numbers of a figure, one line for each point."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["panel", "y", "line", "variant", "x", "mean", "std", "seeds", "paper"])
    for panel in panels:
        writer.writerows(row for line in panel.lines for row in _csv_rows(panel, line))
    return file.getvalue()


def _csv_rows(panel: Panel, line: FigureLine) -> Iterator[list[str | int]]:
    points, paper = {point.x: point.sample for point in line.points}, dict(line.paper)
    for x in sorted({*points, *paper}):
        sample = points.get(x, SeedSample(()))
        numbers = ["" if n is None else f"{n:.6g}" for n in (sample.mean, sample.std, paper.get(x))]
        mean, std, printed = numbers
        yield [panel.title, panel.y_label, line.name, line.variant, f"{x:g}", mean, std, len(sample.values), printed]
