"""The cells of each table: its runs, and the measure that is shown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedcopl.config import RunConfig
from fedcopl.labelers import LABELERS

from .cells import Cells, ExperimentCell
from .grid_methods import GridMethod, grid_methods, untrained_methods
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
from .scales import FEATURES, ORIGINAL_RULES, ExperimentSetup, default_settings


def _main_rows(labelers: Sequence[str] = ("fpl", "cpl")) -> Iterator[tuple[tuple[str, ...], tuple[str, str], str]]:
    """Yield (row, (method, labeler), measure) of the paper's large tables; every run measures zero-shot too."""
    yield ("CLIP", "-"), OURS, "zero_shot_of_all"
    for name, method in BASELINES.items():
        for labeler in labelers:
            yield (name, LABELERS[labeler].title), (method, labeler), "final"
    yield ("FedCoPL", "CoPL"), OURS, "final"


def table1(setup: ExperimentSetup) -> list[ExperimentCell]:
    skews = ("dirichlet-0.1", "dirichlet-0.05")
    cells = []
    for row, run, measure in _main_rows():
        for skew in skews:
            row_cells = [
                ExperimentCell(row, (title(data), SKEW_TITLES[skew]), (setup.config(data, *run, skew),), measure)
                for data in setup.columns(SIX)
            ]
            cells += _with_average(row_cells, (AVERAGE, SKEW_TITLES[skew]))
    return _by_column_order(cells)


def table2(setup: ExperimentSetup) -> list[ExperimentCell]:
    cells = []
    for row, run, measure in _main_rows():
        row_cells = [
            ExperimentCell(row, (title(data),), (setup.config(data, *run, "quantity"),), measure)
            for data in setup.columns(SIX)
        ]
        cells += _with_average(row_cells, (AVERAGE,))
    return cells


def _with_average(cells: list[ExperimentCell], column: tuple[str, ...]) -> list[ExperimentCell]:
    """Return the cells of a row, and their mean if there are several."""
    if len(cells) < 2:
        return cells
    configs = tuple(config for cell in cells for config in cell.configs)
    return [*cells, ExperimentCell(cells[0].row, column, configs, cells[0].measure)]


def _by_column_order(cells: list[ExperimentCell]) -> list[ExperimentCell]:
    """Sort columns as in the paper: both skews of a data set together, the averages last."""
    order = {name: number for number, name in enumerate([*TITLES.values(), AVERAGE])}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    return sorted(cells, key=lambda cell: (rows.index(cell.row), order.get(cell.column[0], -1)))


def table3(setup: ExperimentSetup) -> list[ExperimentCell]:
    cells = []
    for name in ("PromptFL", "pFedPrompt", "FedOPT"):
        for labeler in ("fpl", "copl"):
            for data in setup.columns(SIX[:5]):
                config = setup.config(data, BASELINES[name], labeler)
                baseline = setup.config(data, BASELINES[name], "fpl") if labeler == "copl" else None
                cells.append(
                    ExperimentCell((name, LABELERS[labeler].title), (title(data),), (config,), baseline=baseline)
                )
    return cells


def backbone_table(backbone: str, datasets: Sequence[str]) -> Cells:
    def cells(setup: ExperimentSetup) -> list[ExperimentCell]:
        return [
            ExperimentCell(row, (title(data),), (setup.config(data, *run, backbone=backbone),), measure)
            for row, run, measure in _main_rows(("fpl",))
            for data in setup.columns(datasets)
        ]

    return cells


def table5(setup: ExperimentSetup) -> list[ExperimentCell]:
    switches = ("labels.confidence_filter", "labels.entropy_filter", "labels.global_allocation")
    rows = ((False, False, False), (False, False, True), (False, True, True), (True, False, True), (True, True, True))
    return [
        ExperimentCell(
            tuple("✓" if on else "-" for on in row),
            (title(data),),
            (setup.config(data, changes=dict(zip(switches, row, strict=True))),),
        )
        for row in rows
        for data in setup.columns(FOUR)
    ]


def table6(setup: ExperimentSetup) -> list[ExperimentCell]:
    rows = {("-", "-"): "none", ("✓", "✓"): "both", ("✓", "-"): "text", ("-", "✓"): "visual"}
    return [
        ExperimentCell(row, (title(data),), (aggregating(setup, data, prompts),))
        for row, prompts in rows.items()
        for data in setup.columns(FOUR)
    ]


def aggregating(setup: ExperimentSetup, dataset: str, prompts: str) -> RunConfig:
    return setup.config(dataset, changes={"sharing.aggregate": prompts})


def table7(setup: ExperimentSetup) -> list[ExperimentCell]:
    return [
        ExperimentCell((title(data), TASKS.get(data, "-")), (column,), (setup.config(data),), measure)
        for data in setup.columns(name for name in TASKS if name in TITLES)
        for column, measure in SIZES.items()
    ]


def table9(setup: ExperimentSetup) -> list[ExperimentCell]:
    """Return a cell for each labeler and skew; the pseudo labels of the first refresh do not depend on the method."""
    makers = {"fpl": "promptfl", "cpl": "promptfl", "copl": "fedcopl"}
    measures = {"cpl": "first_coverage"}
    return [
        ExperimentCell(
            (LABELERS[labeler].title,),
            (title(data),),
            (setup.config(data, method, labeler, skew),),
            measures.get(labeler, "first_labels"),
            block,
        )
        for skew, block in BLOCKS.items()
        for labeler, method in makers.items()
        for data in setup.columns(SIX)
    ]


SWEEPS = {"τ1": "labels.confidence_quantile", "τ2": "labels.entropy_quantile"}


def sweep(setting: str) -> Cells:
    def cells(setup: ExperimentSetup) -> list[ExperimentCell]:
        return [
            ExperimentCell((title(data),), (f"{tau:.2f}",), (setup.config(data, changes={setting: tau}),))
            for data in setup.columns(MIXED)
            for tau in setup.scale.taus
        ]

    return cells


NO_LABELER = "no labeler"
PUBLISHED, WITH_PRIORS = "as published", "+ priors"
COSTS = {
    "seconds": "seconds",
    "kB up a round": "kilobytes_up",
}  # of a run as published, with CoPL if it uses labels


def grid(setup: ExperimentSetup) -> list[ExperimentCell]:
    """Return every method with every labeler, as published and with priors, by data set, under the default skew."""
    datasets = setup.columns(SIX)
    return [
        replace(cell, block=_grid_title(setup, data) if len(datasets) > 1 else "")
        for data in datasets
        for cell in _grid_block(setup, data)
    ]


def _grid_title(setup: ExperimentSetup, dataset: str) -> str:
    config = setup.config(dataset)
    if config.data.source == FEATURES:
        return f"{title(Path(dataset).stem)}, stored features"
    return f"{title(dataset)}, {Path(config.model.backbone).name}"


def _grid_block(setup: ExperimentSetup, dataset: str) -> Iterator[ExperimentCell]:
    """Yield the cells as published, then with priors, each sorted by labeler, then the cost of each method."""
    trained, untrained = (_usable(setup, dataset, methods) for methods in (grid_methods(), untrained_methods()))
    costs: dict[str, RunConfig] = {}
    for variant, configure in ((PUBLISHED, _published), (WITH_PRIORS, _with_priors)):
        column = (variant, NO_LABELER)
        if not setup.methods or "priors" in setup.methods:
            priors = costs["CLIP"] = _with_priors(setup, dataset, "priors", "copl")
            yield ExperimentCell(("CLIP",), column, (priors,), "zero_shot" if variant == PUBLISHED else "final")
        for method in untrained:
            config = configure(setup, dataset, method.name, "copl")
            costs.setdefault(method.title, config)
            yield ExperimentCell((method.title,), column, (config,))
        for method in trained if variant == PUBLISHED else ():
            if method.accepts_true_labels:  # an upper bound, so it is not ranked
                config = setup.config(dataset, method.name, changes={"options.labels": "truth"})
                yield ExperimentCell((f"{method.title} + true labels",), column, (config,), ranked=False)
        for labeler in setup.grid_labelers:
            for method in trained:
                config = configure(setup, dataset, method.name, labeler)
                costs.setdefault(method.title, config)
                column = (variant, LABELERS[labeler].title)
                yield ExperimentCell((method.title,), column, (config,), ranked=not method.centralised)
    for row, config in costs.items():
        for cost, measure in COSTS.items():
            yield ExperimentCell((row,), ("cost", cost), (config,), measure, ranked=False, spread=False)


def _usable(setup: ExperimentSetup, dataset: str, methods: Iterable[GridMethod]) -> list[GridMethod]:
    """Return the methods of --method that can use a data set: on stored features, methods without prompts."""
    features_only = setup.config(dataset).data.source == FEATURES
    usable = (method for method in methods if method.needs_features_only or not features_only)
    return [method for method in usable if not setup.methods or method.name in setup.methods]


def _published(setup: ExperimentSetup, dataset: str, method: str, labeler: str) -> RunConfig:
    return setup.config(dataset, method, labeler, label_rules=ORIGINAL_RULES)


def _with_priors(setup: ExperimentSetup, dataset: str, method: str, labeler: str) -> RunConfig:
    """Return a run with the default settings, which include priors."""
    config = setup.config(dataset, method, labeler, label_rules=ORIGINAL_RULES, changes=default_settings())
    return config.model_copy(update={"name": f"{method}-{labeler}-{dataset}-priors"})
