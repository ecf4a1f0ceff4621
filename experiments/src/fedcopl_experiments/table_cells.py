"""Which runs each table is made of."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedcopl.config import RunConfig
from fedcopl.labelers import LABELERS

from .cells import Cells, ExperimentCell
from .grid_methods import grid_methods, lone_methods
from .paper_names import (
    AVERAGE,
    BASELINES,
    BLOCKS,
    FOUR,
    MIXED,
    OURS,
    SIX,
    SIZES,
    SKEW_TITLES,
    TASKS,
    TITLES,
    title,
)
from .scales import TO_THE_LETTER, USUAL_SKEW, Stage, todays


def _main_rows(labelers: Sequence[str] = ("fpl", "cpl")) -> Iterator[tuple[tuple[str, ...], tuple[str, str], str]]:
    """(row, (method, labeler), measure) of the paper's large tables; zero-shot is measured in every run."""
    yield ("CLIP", "-"), OURS, "zero_shot_of_all"
    for name, method in BASELINES.items():
        for labeler in labelers:
            yield (name, LABELERS[labeler].title), (method, labeler), "final"
    yield ("FedCoPL", "CoPL"), OURS, "final"


def table1(stage: Stage) -> list[ExperimentCell]:
    skews = ("dirichlet-0.1", "dirichlet-0.05")
    cells = []
    for row, run, measure in _main_rows():
        for skew in skews:
            mine = [
                ExperimentCell(row, (title(data), SKEW_TITLES[skew]), (stage.config(data, *run, skew),), measure)
                for data in stage.columns(SIX)
            ]
            cells += _with_average(mine, (AVERAGE, SKEW_TITLES[skew]))
    return _by_column_order(cells)


def table2(stage: Stage) -> list[ExperimentCell]:
    cells = []
    for row, run, measure in _main_rows():
        mine = [
            ExperimentCell(row, (title(data),), (stage.config(data, *run, "quantity"),), measure)
            for data in stage.columns(SIX)
        ]
        cells += _with_average(mine, (AVERAGE,))
    return cells


def _with_average(cells: list[ExperimentCell], column: tuple[str, ...]) -> list[ExperimentCell]:
    """The cells of a row, and where there are several their mean."""
    if len(cells) < 2:
        return cells
    together = tuple(config for cell in cells for config in cell.configs)
    return [*cells, ExperimentCell(cells[0].row, column, together, cells[0].measure)]


def _by_column_order(cells: list[ExperimentCell]) -> list[ExperimentCell]:
    """Both skews of a data set beside each other, the averages last, as the paper has them."""
    order = {name: number for number, name in enumerate([*TITLES.values(), AVERAGE])}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    return sorted(cells, key=lambda cell: (rows.index(cell.row), order.get(cell.column[0], -1)))


def table3(stage: Stage) -> list[ExperimentCell]:
    cells = []
    for name in ("PromptFL", "pFedPrompt", "FedOPT"):
        for labeler in ("fpl", "copl"):
            for data in stage.columns(SIX[:5]):
                config = stage.config(data, BASELINES[name], labeler)
                without = stage.config(data, BASELINES[name], "fpl") if labeler == "copl" else None
                cells.append(
                    ExperimentCell((name, LABELERS[labeler].title), (title(data),), (config,), baseline=without)
                )
    return cells


def backbone_table(backbone: str, datasets: Sequence[str]) -> Cells:
    def cells(stage: Stage) -> list[ExperimentCell]:
        return [
            ExperimentCell(row, (title(data),), (stage.config(data, *run, backbone=backbone),), measure)
            for row, run, measure in _main_rows(("fpl",))
            for data in stage.columns(datasets)
        ]

    return cells


def table5(stage: Stage) -> list[ExperimentCell]:
    switches = ("labels.confidence_filter", "labels.entropy_filter", "labels.global_allocation")
    rows = ((False, False, False), (False, False, True), (False, True, True), (True, False, True), (True, True, True))
    return [
        ExperimentCell(
            tuple("✓" if on else "-" for on in row),
            (title(data),),
            (stage.config(data, changes=dict(zip(switches, row, strict=True))),),
        )
        for row in rows
        for data in stage.columns(FOUR)
    ]


def table6(stage: Stage) -> list[ExperimentCell]:
    rows = {("-", "-"): "none", ("✓", "✓"): "both", ("✓", "-"): "text", ("-", "✓"): "visual"}
    return [
        ExperimentCell(row, (title(data),), (aggregating(stage, data, what),))
        for row, what in rows.items()
        for data in stage.columns(FOUR)
    ]


def aggregating(stage: Stage, dataset: str, what: str) -> RunConfig:
    return stage.config(dataset, changes={"sharing.aggregate": what})


def table7(stage: Stage) -> list[ExperimentCell]:
    return [
        ExperimentCell((title(data), TASKS.get(data, "-")), (column,), (stage.config(data),), measure)
        for data in stage.columns(name for name in TASKS if name in TITLES)
        for column, measure in SIZES.items()
    ]


def table9(stage: Stage) -> list[ExperimentCell]:
    """The labels of the first refresh depend on labeler and split alone: any run of theirs will do."""
    makers = {"fpl": "promptfl", "cpl": "promptfl", "copl": "fedcopl"}
    measures = {"cpl": "first_coverage"}
    return [
        ExperimentCell(
            (LABELERS[labeler].title,),
            (title(data),),
            (stage.config(data, method, labeler, skew),),
            measures.get(labeler, "first_labels"),
            block,
        )
        for skew, block in BLOCKS.items()
        for labeler, method in makers.items()
        for data in stage.columns(SIX)
    ]


SWEEPS = {"τ1": "labels.confidence_quantile", "τ2": "labels.entropy_quantile"}


def sweep(setting: str) -> Cells:
    def cells(stage: Stage) -> list[ExperimentCell]:
        return [
            ExperimentCell((title(data),), (f"{tau:.2f}",), (stage.config(data, changes={setting: tau}),))
            for data in stage.columns(MIXED)
            for tau in stage.scale.taus
        ]

    return cells


def grid(stage: Stage) -> list[ExperimentCell]:
    return [
        replace(cell, block=f"{title(data)}: {BLOCKS[skew]}")
        for data in stage.columns(SIX)
        for skew in stage.scale.skews
        for cell in grid_block(stage, data, skew)
    ]


def grid_block(stage: Stage, dataset: str, skew: str) -> Iterator[ExperimentCell]:
    """Every method with every labeler, and what needs none; what is no federation is a bound, not a competitor."""
    for method in grid_methods():
        for labeler in stage.scale.labelers:
            config = stage.config(dataset, method.name, labeler, skew, reading=TO_THE_LETTER)
            yield ExperimentCell((method.title,), (LABELERS[labeler].title,), (config,), ranked=not method.pools)
    for method in (method for method in grid_methods() if method.can_know_truth):
        config = stage.config(dataset, method.name, skew=skew, changes={"options.labels": "truth"})
        yield ExperimentCell((f"{method.title} + true labels",), ("none",), (config,), ranked=False)
    for method in lone_methods():
        yield ExperimentCell((method.title,), ("none",), (stage.config(dataset, method.name, skew=skew),))
    zero_shot = stage.config(dataset, skew=skew)  # is measured in every run
    yield ExperimentCell(("zero-shot CLIP",), ("none",), (zero_shot,), "zero_shot", ranked=False)


PRIORS = {"no priors": False, "+ priors": True}


def grid_priors(stage: Stage) -> list[ExperimentCell]:
    """The grid by today's defaults, with and without priors: under one skew, for they cost twice the runs."""
    return [
        replace(cell, block=f"{title(data)}: {BLOCKS[USUAL_SKEW]}")
        for data in stage.columns(SIX)
        for cell in priors_block(stage, data)
    ]


def priors_block(stage: Stage, dataset: str) -> Iterator[ExperimentCell]:
    """Every method with every labeler, first without and then with priors, and what priors do without training."""
    for method in grid_methods():
        for labeler in stage.scale.labelers:
            for word, priors in PRIORS.items():
                config = _by_todays(stage, dataset, method.name, labeler, priors)
                column = (LABELERS[labeler].title, word)
                yield ExperimentCell((method.title,), column, (config,), ranked=not method.pools)
    alone = _by_todays(stage, dataset, "priors", "copl", priors=True)
    yield ExperimentCell(("no training",), ("none", "no priors"), (alone,), "zero_shot", ranked=False)
    yield ExperimentCell(("no training",), ("none", "+ priors"), (alone,), ranked=False)


def _by_todays(stage: Stage, dataset: str, method: str, labeler: str, priors: bool) -> RunConfig:
    config = stage.config(dataset, method, labeler, reading=TO_THE_LETTER, changes=todays(priors=priors))
    name = "-".join([method, labeler, dataset, "priors" if priors else "no-priors"])
    return config.model_copy(update={"name": name})
