"""Which runs each table is made of."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedcopl.config import RunConfig

from .cells import (
    AVERAGE,
    BASELINES,
    BLOCKS,
    FOUR,
    LABELERS,
    METHODS,
    MIXED,
    SIX,
    SIZES,
    SKEW_TITLES,
    TASKS,
    TITLES,
    Cell,
    Cells,
    title,
)
from .scales import Stage

OURS = ("fedcopl", "copl")


def _main_rows(labelers: Sequence[str] = ("fpl", "cpl")) -> Iterator[tuple[tuple[str, ...], tuple[str, str], str]]:
    """(row, (method, labeler), measure) of the paper's large tables; zero-shot is measured in every run."""
    yield ("CLIP", "-"), OURS, "zero_shot"
    for name, method in BASELINES.items():
        for labeler in labelers:
            yield (name, LABELERS[labeler]), (method, labeler), "final"
    yield ("FedCoPL", "CoPL"), OURS, "final"


def table1(stage: Stage) -> list[Cell]:
    skews = ("dirichlet-0.1", "dirichlet-0.05")
    cells = []
    for row, run, measure in _main_rows():
        for skew in skews:
            mine = [
                Cell(row, (title(data), SKEW_TITLES[skew]), (stage.config(data, *run, skew),), measure)
                for data in stage.columns(SIX)
            ]
            cells += _with_average(mine, (AVERAGE, SKEW_TITLES[skew]))
    return _by_column_order(cells)


def table2(stage: Stage) -> list[Cell]:
    cells = []
    for row, run, measure in _main_rows():
        mine = [
            Cell(row, (title(data),), (stage.config(data, *run, "quantity"),), measure) for data in stage.columns(SIX)
        ]
        cells += _with_average(mine, (AVERAGE,))
    return cells


def _with_average(cells: list[Cell], column: tuple[str, ...]) -> list[Cell]:
    """The cells of a row, and where there are several their mean."""
    if len(cells) < 2:
        return cells
    together = tuple(config for cell in cells for config in cell.configs)
    return [*cells, Cell(cells[0].row, column, together, cells[0].measure)]


def _by_column_order(cells: list[Cell]) -> list[Cell]:
    """Both skews of a data set beside each other, the averages last, as the paper has them."""
    order = {name: place for place, name in enumerate([*TITLES.values(), AVERAGE])}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    return sorted(cells, key=lambda cell: (rows.index(cell.row), order.get(cell.column[0], -1)))


def table3(stage: Stage) -> list[Cell]:
    cells = []
    for name in ("PromptFL", "pFedPrompt", "FedOPT"):
        for labeler in ("fpl", "copl"):
            for data in stage.columns(SIX[:5]):
                config = stage.config(data, BASELINES[name], labeler)
                without = stage.config(data, BASELINES[name], "fpl") if labeler == "copl" else None
                cells.append(Cell((name, LABELERS[labeler]), (title(data),), (config,), baseline=without))
    return cells


def backbone_table(backbone: str, datasets: Sequence[str]) -> Cells:
    def cells(stage: Stage) -> list[Cell]:
        return [
            Cell(row, (title(data),), (stage.config(data, *run, backbone=backbone),), measure)
            for row, run, measure in _main_rows(("fpl",))
            for data in stage.columns(datasets)
        ]

    return cells


def table5(stage: Stage) -> list[Cell]:
    switches = ("labels.confidence_filter", "labels.entropy_filter", "labels.global_allocation")
    rows = ((False, False, False), (False, False, True), (False, True, True), (True, False, True), (True, True, True))
    return [
        Cell(
            tuple("✓" if on else "-" for on in row),
            (title(data),),
            (stage.config(data, changes=dict(zip(switches, row, strict=True))),),
        )
        for row in rows
        for data in stage.columns(FOUR)
    ]


def table6(stage: Stage) -> list[Cell]:
    rows = {("-", "-"): "none", ("✓", "✓"): "both", ("✓", "-"): "text", ("-", "✓"): "visual"}
    return [
        Cell(row, (title(data),), (aggregating(stage, data, what),))
        for row, what in rows.items()
        for data in stage.columns(FOUR)
    ]


def aggregating(stage: Stage, dataset: str, what: str) -> RunConfig:
    return stage.config(dataset, changes={"sharing.aggregate": what})


def table7(stage: Stage) -> list[Cell]:
    return [
        Cell((title(data), TASKS.get(data, "-")), (column,), (stage.config(data),), measure)
        for data in stage.columns(name for name in TASKS if name in TITLES)
        for column, measure in SIZES.items()
    ]


def table9(stage: Stage) -> list[Cell]:
    """The labels of the first refresh depend on labeler and split alone: any run of theirs will do."""
    makers = {"fpl": "promptfl", "cpl": "promptfl", "copl": "fedcopl"}
    return [
        Cell(
            (LABELERS[labeler],),
            (title(data),),
            (stage.config(data, method, labeler, skew),),
            "first_labels",
            block,
        )
        for skew, block in BLOCKS.items()
        for labeler, method in makers.items()
        for data in stage.columns(SIX)
    ]


SWEEPS = {"τ1": "labels.confidence_quantile", "τ2": "labels.entropy_quantile"}


def sweep(setting: str) -> Cells:
    def cells(stage: Stage) -> list[Cell]:
        return [
            Cell((title(data),), (f"{tau:.2f}",), (stage.config(data, changes={setting: tau}),))
            for data in stage.columns(MIXED)
            for tau in stage.scale.taus
        ]

    return cells


def grid(stage: Stage) -> list[Cell]:
    return [
        replace(cell, block=f"{title(data)}: {BLOCKS[skew]}")
        for data in stage.columns(SIX)
        for skew in stage.scale.skews
        for cell in grid_block(stage, data, skew)
    ]


def grid_block(stage: Stage, dataset: str, skew: str) -> Iterator[Cell]:
    """Every method with every labeler; what is no federation is a bound, not a competitor."""
    for name, method in METHODS.items():
        for labeler in stage.scale.labelers:
            config = stage.config(dataset, method, labeler, skew)
            yield Cell((name,), (LABELERS[labeler],), (config,), ranked=method != "central")
    none = ("none",)
    truth = stage.config(dataset, "central", skew=skew, changes={"options.labels": "truth"})
    yield Cell(("central, true labels",), none, (truth,), ranked=False)
    yield Cell(("zero-shot CLIP",), none, (stage.config(dataset, skew=skew),), "zero_shot", ranked=False)
