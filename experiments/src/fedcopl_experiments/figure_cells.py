"""Which runs each figure is made of."""

from collections.abc import Sequence
from dataclasses import replace

from .cells import BASELINES, MIXED, SIX, SKEW_TITLES, Cell, title
from .scales import Stage
from .table_cells import SWEEPS, aggregating, sweep

# FedCoPL and the baselines with FPL, as in the paper's figure about clients: (method, labeler)
LINES = {"FedCoPL": ("fedcopl", "copl")} | {name: (method, "fpl") for name, method in BASELINES.items()}


def clients(stage: Stage) -> list[Cell]:
    return _over(stage, "data.clients", stage.scale.crowds)


def participation(stage: Stage) -> list[Cell]:
    return _over(stage, "sharing.participation", stage.scale.rates)


def _over(stage: Stage, setting: str, values: Sequence[float]) -> list[Cell]:
    return [
        Cell((name,), (title(data), f"{value:g}"), (stage.config(data, *run, changes={setting: value}),))
        for data in stage.columns(MIXED)
        for name, run in LINES.items()
        for value in values
    ]


def drift(stage: Stage) -> list[Cell]:
    """Two panels a data set; a line for each prompt, while both are aggregated and while only the visual ones are."""
    return [
        Cell((f"{prompt} prompts", what), (title(data), kind), (aggregating(stage, data, what),), f"{kind}-{prompt}")
        for data in stage.columns(("cifar10", "dtd", "resisc45"))
        for kind in ("diversity", "cosine")
        for what in ("both", "visual")
        for prompt in ("text", "visual")
    ]


def partition(stage: Stage) -> list[Cell]:
    return [
        Cell((), (title(data), SKEW_TITLES[skew]), (stage.config(data, skew=skew),), "partition")
        for data in stage.columns(("cifar10",))
        for skew in SKEW_TITLES
    ]


def allocation(stage: Stage) -> list[Cell]:
    return [
        Cell((name,), (title(data),), (stage.config(data, changes={"labels.global_allocation": on}),), "labels")
        for data in stage.columns(MIXED)
        for name, on in {"with global allocation": True, "without": False}.items()
    ]


def accuracy(stage: Stage) -> list[Cell]:
    cells = []
    for data in stage.columns(SIX):
        cells += [Cell((name,), (title(data),), (stage.config(data, *run),), "accuracy") for name, run in LINES.items()]
        cells.append(Cell(("zero-shot CLIP",), (title(data),), (stage.config(data),), "zero_shot_level"))
    return cells


def taus(stage: Stage) -> list[Cell]:
    """Both sweeps as lines: (data set) over (which tau, its value)."""
    return [
        replace(cell, column=(name, *cell.column)) for name, setting in SWEEPS.items() for cell in sweep(setting)(stage)
    ]
