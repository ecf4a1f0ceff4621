"""The numbers of a figure: panels of lines over rounds, clients, participation rates or quantile levels."""

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
from .measures import CURVES, RoundCurve, SeedSample, StoredOutcomes, read, read_curves
from .paper_numbers import paper_tables
from .scales import ExperimentSetup

ACCURACY = "accuracy (%)"


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
    """Our values over the seeds, and the paper's where it prints them."""

    name: str
    variant: str  # drawn dashed if not empty
    points: tuple[Point, ...]
    paper: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    title: str
    across: str
    up: str
    lines: tuple[FigureLine, ...]
    ticks: tuple[float, ...] = ()  # all values of the x axis, if they are few


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
    build = PANELS[experiment.name]
    cells: dict[tuple[str, ...], list[ExperimentCell]] = {}
    for cell in experiment.cells(setup):
        cells.setdefault(cell.column if cell.measure in CURVES else cell.column[:1], []).append(cell)
    panels = [build(column, group, setup, outcomes, seeds) for column, group in cells.items()]
    return [panel for panel in panels if any(line.points or line.paper for line in panel.lines)]


def build_heat_maps(experiment: Experiment, setup: ExperimentSetup, seed: int) -> list[PartitionMap]:
    """Return the partition under each skew for one seed; none if the data set is missing."""
    return [found for cell in experiment.cells(setup) if (found := _heat_map(cell, seed))]


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


def _over_rounds(up: str) -> "Build":
    """Return the builder of panels over the rounds."""

    def build(
        column: Sequence[str],
        cells: Sequence[ExperimentCell],
        setup: ExperimentSetup,
        outcomes: StoredOutcomes,
        seeds: Sequence[int],
    ) -> Panel:
        lines = tuple(FigureLine(cell.row[0], "", _points(read_curves(cell, outcomes, seeds))) for cell in cells)
        return Panel(column[0], "communication round", up, lines)

    return build


def _drift(
    column: Sequence[str],
    cells: Sequence[ExperimentCell],
    setup: ExperimentSetup,
    outcomes: StoredOutcomes,
    seeds: Sequence[int],
) -> Panel:
    dataset, kind = column
    up = {"diversity": "drift diversity", "cosine": "cosine distance"}[kind]
    variant = {"both": "", "visual": "only visual prompts aggregated"}
    lines = tuple(
        FigureLine(cell.row[0], variant[cell.row[1]], _points(read_curves(cell, outcomes, seeds))) for cell in cells
    )
    return Panel(dataset, "communication round", up, lines)


def _points(curves: Iterable[RoundCurve]) -> tuple[Point, ...]:
    """Collect the values of all seeds for each round."""
    values: dict[int, list[float]] = {}
    for curve in curves:
        for round, value in curve:
            values.setdefault(round, []).append(value)
    return tuple(Point(round, SeedSample(tuple(values[round]))) for round in sorted(values))


def _over_values(across: str) -> "Build":
    """Return the builder of panels of final accuracies over the values of a setting."""

    def build(
        column: Sequence[str],
        cells: Sequence[ExperimentCell],
        setup: ExperimentSetup,
        outcomes: StoredOutcomes,
        seeds: Sequence[int],
    ) -> Panel:
        rows: dict[str, list[ExperimentCell]] = {}
        for cell in cells:
            rows.setdefault(cell.row[0], []).append(cell)
        known = _known(setup) if setup.is_paper else {}
        lines = tuple(
            FigureLine(name, "", _read_points(group, outcomes, seeds), _paper_points(group, known))
            for name, group in rows.items()
        )
        ticks = tuple(dict.fromkeys(float(cell.column[-1]) for cell in cells))
        title = "" if "{}" in across else column[0]
        return Panel(title, across.format(column[0]), ACCURACY, lines, ticks)

    return build


def _read_points(cells: Iterable[ExperimentCell], outcomes: StoredOutcomes, seeds: Sequence[int]) -> tuple[Point, ...]:
    found = (Point(float(cell.column[-1]), read(cell, outcomes, seeds)) for cell in cells)
    return tuple(point for point in found if point.sample.values)


def _known(setup: ExperimentSetup) -> dict[tuple[str, str], float]:
    """(settings, measure) -> what the paper's tables say of it: its figures have no numbers of their own."""
    return {
        (_settings(cell.configs[0]), cell.measure): number.value
        for name in ("table1", "table10", "table11")
        for cell in EXPERIMENTS[name].cells(setup)
        if len(cell.configs) == 1 and (number := paper_tables()[name].find(cell.row, cell.column))
    }


def _settings(config: RunConfig) -> str:
    return config.model_dump_json()


def _paper_points(
    cells: Iterable[ExperimentCell], known: Mapping[tuple[str, str], float]
) -> tuple[tuple[float, float], ...]:
    keys = ((float(cell.column[-1]), (_settings(cell.configs[0]), cell.measure)) for cell in cells)
    return tuple((x, known[key]) for x, key in keys if key in known)


Build = Callable[[Sequence[str], Sequence[ExperimentCell], ExperimentSetup, StoredOutcomes, Sequence[int]], Panel]
PANELS: Mapping[str, Build] = {
    "fig-accuracy": _over_rounds(ACCURACY),
    "fig-allocation": _over_rounds("pseudo label accuracy (%)"),
    "fig-drift": _drift,
    "fig-clients": _over_values("clients"),
    "fig-participation": _over_values("joining rate"),
    "fig-tau": _over_values("{} (level of the quantile)"),
}


def panels_csv(panels: Iterable[Panel]) -> str:
    """The numbers behind a figure, one line for each point."""
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
        yield [panel.title, panel.up, line.name, line.variant, f"{x:g}", mean, std, len(sample.values), printed]
