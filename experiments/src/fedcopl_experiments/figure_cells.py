"""Which runs each figure is made of."""

from collections.abc import Sequence
from dataclasses import replace

from .cells import ExperimentCell
from .paper_names import LINES, MIXED, SIX, SKEW_TITLES, title
from .scales import Stage
from .table_cells import SWEEPS, aggregating, sweep


def clients(stage: Stage) -> list[ExperimentCell]:
    return _over(stage, "data.clients", stage.scale.crowds)


def participation(stage: Stage) -> list[ExperimentCell]:
    return _over(stage, "sharing.participation", stage.scale.rates)


def _over(stage: Stage, setting: str, values: Sequence[float]) -> list[ExperimentCell]:
    return [
        ExperimentCell((name,), (title(data), f"{value:g}"), (stage.config(data, *run, changes={setting: value}),))
        for data in stage.columns(MIXED)
        for name, run in LINES.items()
        for value in values
    ]


def drift(stage: Stage) -> list[ExperimentCell]:
    """Two panels a data set; a line for each prompt, while both are aggregated and while only the visual ones are."""
    return [
        ExperimentCell(
            (f"{prompt} prompts", what), (title(data), kind), (aggregating(stage, data, what),), f"{kind}-{prompt}"
        )
        for data in stage.columns(("cifar10", "dtd", "resisc45"))
        for kind in ("diversity", "cosine")
        for what in ("both", "visual")
        for prompt in ("text", "visual")
    ]


def partition(stage: Stage) -> list[ExperimentCell]:
    return [
        ExperimentCell((), (title(data), SKEW_TITLES[skew]), (stage.config(data, skew=skew),), "partition")
        for data in stage.columns(("cifar10",))
        for skew in SKEW_TITLES
    ]


def allocation(stage: Stage) -> list[ExperimentCell]:
    return [
        ExperimentCell(
            (name,), (title(data),), (stage.config(data, changes={"labels.global_allocation": on}),), "labels"
        )
        for data in stage.columns(MIXED)
        for name, on in {"with global allocation": True, "without": False}.items()
    ]


def accuracy(stage: Stage) -> list[ExperimentCell]:
    cells = []
    for data in stage.columns(SIX):
        cells += [
            ExperimentCell((name,), (title(data),), (stage.config(data, *run),), "accuracy")
            for name, run in LINES.items()
        ]
        cells.append(ExperimentCell(("zero-shot CLIP",), (title(data),), (stage.config(data),), "zero_shot_level"))
    return cells


def taus(stage: Stage) -> list[ExperimentCell]:
    """Both sweeps as lines: (data set) over (which tau, its value)."""
    return [
        replace(cell, column=(name, *cell.column)) for name, setting in SWEEPS.items() for cell in sweep(setting)(stage)
    ]
