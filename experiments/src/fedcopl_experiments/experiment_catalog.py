"""Catalog of experiments: the tables and figures of the paper, and the grid."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError

from . import figure_cells, table_cells
from .cells import Cells, seeded
from .paper_names import FOUR, NEEDS_NO_RUN
from .scales import ExperimentSetup

ExperimentKind = Literal["table", "figure", "page"]
Best = Literal["", "column", "row"]


@dataclass(frozen=True)
class Experiment:
    """A table, a figure or a page."""

    name: str
    kind: ExperimentKind
    description: str
    cells: Cells
    heads: tuple[str, ...] = ()  # headings of the columns that name a row
    best_of: Best = "column"  # where the best two numbers are marked; "": nowhere
    note: str = ""  # below the table: how we interpret the paper


OF_ALL = "CLIP: accuracy on the whole test set, as in the paper; the others: mean over the clients."
NOTES = {
    **dict.fromkeys(("table1", "table2", "table4", "table8"), OF_ALL),
    "table5": "Without any of the three each client trains on all its images, with CLIP's predictions as labels.",
    "table9": "CPL: share of candidate sets that contain the true label, as its authors count; it trains on the sets.",
    "table10": "τ is the level of a quantile: 0.5 is the median.",
    "fig-drift": "Solid: both prompts are aggregated, so that both are measured from an aggregated prompt, as in the "
    "supplement's definition. Dashed: FedCoPL, whose text prompts are measured from their mean.",
    "grid": "As published: without priors; + priors: the default settings. Cost: wall seconds and bytes of the run as "
    "published with CoPL's labels (CLIP: of its priors). Central, with all images in one place, is not ranked.",
    "fig-allocation": "The paper does not name the four data sets; these are the ones of its sweeps.",
}
METHOD_PL = ("Method", "PL")
RN50_DATA = ("dtd", "resisc45", "ucf101", "cifar10")


def _entry(name: str, description: str, cells: Cells, heads: tuple[str, ...] = (), best: Best = "column") -> Experiment:
    kind: ExperimentKind = "figure" if name.startswith("fig-") else "table" if name.startswith("table") else "page"
    return Experiment(name, kind, description, cells, heads, best, NOTES.get(name, ""))


ENTRIES = (
    _entry("table1", "all methods, Dirichlet skews 0.1 and 0.05", table_cells.table1, METHOD_PL),
    _entry("table2", "all methods, quantity skew", table_cells.table2, METHOD_PL),
    _entry("table3", "CoPL's pseudo labels with other methods", table_cells.table3, METHOD_PL),
    _entry("table4", "another backbone: ViT-B/16", table_cells.backbone_table("ViT-B/16", FOUR), METHOD_PL),
    _entry("table5", "ablation: filters and global allocation", table_cells.table5, ("Conf.", "Ent.", "G.A.")),
    _entry("table6", "ablation: which prompts are aggregated", table_cells.table6, ("T.P.", "V.P.")),
    _entry("table7", "the data sets; needs no runs", table_cells.table7, ("Dataset", "Task"), ""),
    _entry("table8", "another backbone: RN50", table_cells.backbone_table("RN50", RN50_DATA), METHOD_PL),
    _entry("table9", "accuracy of pseudo labels made from zero-shot predictions", table_cells.table9, ("Method",)),
    _entry("table10", "sensitivity to τ1", table_cells.sweep(table_cells.SWEEPS["τ1"]), ("τ1",), "row"),
    _entry("table11", "sensitivity to τ2", table_cells.sweep(table_cells.SWEEPS["τ2"]), ("τ2",), "row"),
    _entry("fig-drift", "drift of text and visual prompts between clients", figure_cells.drift),
    _entry("fig-clients", "accuracy over the number of clients", figure_cells.clients),
    _entry("fig-participation", "accuracy over the participation rate", figure_cells.participation),
    _entry("fig-partition", "classes of each client under the three skews; needs no runs", figure_cells.partition),
    _entry("fig-allocation", "accuracy of pseudo labels with and without global allocation", figure_cells.allocation),
    _entry("fig-accuracy", "accuracy over the rounds (not in the paper)", figure_cells.accuracy),
    _entry("fig-tau", "table10 and table11 as curves", figure_cells.taus),
    _entry(
        "grid",
        "every method with every labeler, without and with priors (not in the paper)",
        table_cells.grid,
        ("Method",),
    ),
)
EXPERIMENTS: Mapping[str, Experiment] = {entry.name: entry for entry in ENTRIES}
ALIASES: Mapping[str, tuple[str, ...]] = {
    "sweep-tau": ("table10", "table11", "fig-tau"),
    "all": tuple(EXPERIMENTS),
}


def find_experiments(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments of these names and aliases, each once."""
    experiments: dict[str, Experiment] = {}
    for name in names:
        if name not in EXPERIMENTS and name not in ALIASES:
            known = [*EXPERIMENTS, *ALIASES]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{name}: there is no such table or figure (known: {', '.join(known)}){hint}")
        experiments |= {part: EXPERIMENTS[part] for part in ALIASES.get(name, (name,))}
    return list(experiments.values())


def runs_of(experiments: Iterable[Experiment], setup: ExperimentSetup, seeds: Sequence[int]) -> list[RunConfig]:
    """Return all runs, each once, sorted by seed, so that an interrupted grid has a number in every row."""
    cells = [cell for experiment in experiments for cell in experiment.cells(setup) if cell.measure not in NEEDS_NO_RUN]
    configs = [config for cell in cells for config in (*cell.configs, *([cell.baseline] if cell.baseline else []))]
    return list({run.to_toml(): run for seed in seeds for run in (seeded(config, seed) for config in configs)}.values())
