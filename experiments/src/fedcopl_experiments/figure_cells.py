"""The cells of each figure: its runs, and the measure that is drawn."""

from collections.abc import Sequence
from dataclasses import replace

from .cells import ExperimentCell
from .paper_names import CURVE_METHODS, MIXED, SIX, SKEW_TITLES, title
from .scales import ExperimentSetup
from .table_cells import SWEEPS, aggregating, sweep


def clients(setup: ExperimentSetup) -> list[ExperimentCell]:
    return _over(setup, "data.clients", setup.scale.client_counts)


def participation(setup: ExperimentSetup) -> list[ExperimentCell]:
    return _over(setup, "sharing.participation", setup.scale.participation_rates)


def _over(setup: ExperimentSetup, setting: str, values: Sequence[float]) -> list[ExperimentCell]:
    return [
        ExperimentCell((name,), (title(data), f"{value:g}"), (setup.config(data, *run, changes={setting: value}),))
        for data in setup.columns(MIXED)
        for name, run in CURVE_METHODS.items()
        for value in values
    ]


def drift(setup: ExperimentSetup) -> list[ExperimentCell]:
    """Return the drift of text and visual prompts, with both aggregated and with only the visual prompts aggregated."""
    return [
        ExperimentCell(
            (f"{prompt} prompts", shared), (title(data), kind), (aggregating(setup, data, shared),), f"{kind}-{prompt}"
        )
        for data in setup.columns(("cifar10", "dtd", "resisc45"))
        for kind in ("diversity", "cosine")
        for shared in ("both", "visual")
        for prompt in ("text", "visual")
    ]


def partition(setup: ExperimentSetup) -> list[ExperimentCell]:
    return [
        ExperimentCell((), (title(data), SKEW_TITLES[skew]), (setup.config(data, skew=skew),), "partition")
        for data in setup.columns(("cifar10",))
        for skew in SKEW_TITLES
    ]


def allocation(setup: ExperimentSetup) -> list[ExperimentCell]:
    return [
        ExperimentCell(
            (name,), (title(data),), (setup.config(data, changes={"labels.global_allocation": on}),), "labels"
        )
        for data in setup.columns(MIXED)
        for name, on in {"with global allocation": True, "without": False}.items()
    ]


def accuracy(setup: ExperimentSetup) -> list[ExperimentCell]:
    cells = []
    for data in setup.columns(SIX):
        cells += [
            ExperimentCell((name,), (title(data),), (setup.config(data, *run),), "accuracy")
            for name, run in CURVE_METHODS.items()
        ]
        cells.append(ExperimentCell(("zero-shot CLIP",), (title(data),), (setup.config(data),), "zero_shot_level"))
    return cells


def taus(setup: ExperimentSetup) -> list[ExperimentCell]:
    """Return both sweeps as lines over the quantile level, one line for each data set."""
    return [
        replace(cell, column=(name, *cell.column)) for name, setting in SWEEPS.items() for cell in sweep(setting)(setup)
    ]
