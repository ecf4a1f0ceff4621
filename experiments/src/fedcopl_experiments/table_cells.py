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
from .scales import TO_THE_LETTER, Stage, todays


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


PUBLISHED, WITH_PRIORS = "as published", "+ priors"
COSTS = {"seconds": "seconds", "kB up a round": "kilobytes_up"}  # of a run as published, with CoPL if it has a labeler
NO_LABELER = "no labeler"


def grid(stage: Stage) -> list[ExperimentCell]:
    """Every method with every labeler, as published and by today's defaults with priors, under the usual skew."""
    datasets = stage.columns(SIX)
    return [
        replace(cell, block=title(data) if len(datasets) > 1 else "")
        for data in datasets
        for cell in _grid_block(stage, data)
    ]


def _grid_block(stage: Stage, dataset: str) -> Iterator[ExperimentCell]:
    """A labeler after the other, so that an interrupted grid has whole columns; the cost of each method last."""
    costs: dict[str, RunConfig] = {}
    yield from _without_labeler(stage, dataset, costs)
    for labeler in stage.labelers:
        for method in grid_methods():
            published = stage.config(dataset, method.name, labeler, reading=TO_THE_LETTER)
            costs.setdefault(method.title, published)
            for word, config in ((PUBLISHED, published), (WITH_PRIORS, _todays(stage, dataset, method.name, labeler))):
                column = (LABELERS[labeler].title, word)
                yield ExperimentCell((method.title,), column, (config,), ranked=not method.pools)
    for row, config in costs.items():
        for cost, measure in COSTS.items():
            yield ExperimentCell((row,), ("cost", cost), (config,), measure, ranked=False)


def _without_labeler(stage: Stage, dataset: str, costs: dict[str, RunConfig]) -> Iterator[ExperimentCell]:
    """What needs no labeler; true labels in one place are a bound and not a competitor."""
    alone = costs["CLIP"] = _todays(stage, dataset, "priors", "copl")
    yield ExperimentCell(("CLIP",), (NO_LABELER, PUBLISHED), (alone,), "zero_shot")
    yield ExperimentCell(("CLIP",), (NO_LABELER, WITH_PRIORS), (alone,))
    for method in lone_methods():
        published, priors = stage.config(dataset, method.name), _todays(stage, dataset, method.name, "copl")
        costs[method.title] = published
        yield ExperimentCell((method.title,), (NO_LABELER, PUBLISHED), (published,))
        yield ExperimentCell((method.title,), (NO_LABELER, WITH_PRIORS), (priors,))
    for method in (method for method in grid_methods() if method.can_know_truth):
        config = stage.config(dataset, method.name, changes={"options.labels": "truth"})
        yield ExperimentCell((f"{method.title} + true labels",), (NO_LABELER, PUBLISHED), (config,), ranked=False)


def _todays(stage: Stage, dataset: str, method: str, labeler: str) -> RunConfig:
    """The defaults of today, with priors."""
    config = stage.config(dataset, method, labeler, reading=TO_THE_LETTER, changes=todays())
    return config.model_copy(update={"name": f"{method}-{labeler}-{dataset}-priors"})
