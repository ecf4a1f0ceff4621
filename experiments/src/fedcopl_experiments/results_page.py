"""Our own grid as a page: tables between markers, so that what a person writes around them stays.

<!-- table: accuracy-dirichlet-0.1 -->
... is replaced each time ...
<!-- end -->
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.labelers import LABELERS
from fedcopl.plurals import counted

from .cells import ExperimentCell
from .experiment_catalog import EXPERIMENTS, Experiment, runs_of
from .flat_settings import flat
from .grid_methods import grid_methods
from .measures import StoredOutcomes
from .paper_names import BLOCKS, SIX, title
from .result_tables import build_table
from .scales import USUAL_SKEW, Stage
from .table_cells import grid_block, priors_block
from .table_formats import markdown_grid

MARKED = re.compile(r"(?P<begin><!-- table: (?P<name>[\w.-]+) -->\n).*?(?P<end><!-- end -->)", re.S)
LABEL_COLUMNS = {
    "first labels right (%)": "first_labels",
    "last labels right (%)": "last_labels",
    "images labelled at last": "images_used",
}
DIAGNOSTIC_COLUMNS = {
    "drift diversity x 100": "shared_diversity",
    "cosine distance x 100": "shared_cosine",
    "recall of the worst class (%)": "worst_recall",
    "up in a round, all clients (kB)": "kilobytes_up",
}
HEADINGS = {  # of the sections, for a page that does not exist yet
    "accuracy": "Accuracy (%) after the last round, mean over clients on their own test images",
    "gain": "Points above zero-shot CLIP",
    "labels": "Pseudo labels of FedCoPL by labeler",
    "diagnostics": "With CoPL's labels: drift of what is shared, the class found least, and bytes",
}


def page_sections(
    stage: Stage, outcomes: StoredOutcomes, seeds: Sequence[int], command: str, grid: str = "grid"
) -> dict[str, str]:
    """Everything of a grid that can stand between markers, by its name."""
    how, tables = ("how", _tables) if grid == "grid" else ("how-priors", _priors_tables)
    sections = {how: _how(grid, stage, outcomes, seeds, command)}
    for dataset, skew, suffix in _parts(stage):
        for kind, experiment in tables(stage, dataset, skew):
            table = build_table(experiment, stage, outcomes, seeds)
            sections[f"{kind}-{suffix}"] = markdown_grid(table if grid == "grid" else table.played())
    return sections


def new_page(sections: Mapping[str, str], stage: Stage) -> str:
    """A page with every section under a heading of its own."""
    lines = ["# Results", "", *_between("how"), ""]
    for dataset, skew, suffix in _parts(stage):
        lines += [f"## {title(dataset)}: {BLOCKS[skew]}", ""]
        for kind, heading in HEADINGS.items():
            lines += [f"### {heading}", "", *_between(f"{kind}-{suffix}"), ""]
    return update_page("\n".join(lines), sections, "the new page")


def update_page(page: str, sections: Mapping[str, str], origin: str, others: Iterable[str] = ()) -> str:
    """Replace what stands between the markers and nothing else; `others` are sections that are not made now."""
    named = [found["name"] for found in MARKED.finditer(page) if found["name"] not in set(others)]
    unknown = [name for name in named if name not in sections]
    if unknown:
        raise ConfigError(f"{origin}: there is no table {unknown[0]!r} to put there (known: {', '.join(sections)})")
    if not named:
        raise ConfigError(
            f"{origin}: has no <!-- table: NAME --> ... <!-- end --> (known names: {', '.join(sections)})"
        )

    def filled(found: re.Match[str]) -> str:
        made = sections.get(found["name"])
        return found[0] if made is None else f"{found['begin']}\n{made}\n{found['end']}"

    return MARKED.sub(filled, page)


def _between(name: str) -> list[str]:
    return [f"<!-- table: {name} -->", "<!-- end -->"]


def _parts(stage: Stage) -> Iterator[tuple[str, str, str]]:
    """(data set, skew, how the names of its sections end)."""
    datasets = stage.columns(SIX)
    for dataset in datasets:
        for skew in stage.scale.skews:
            yield dataset, skew, skew if len(datasets) == 1 else f"{dataset}-{skew}"


def _tables(stage: Stage, dataset: str, skew: str) -> Iterator[tuple[str, Experiment]]:
    cells = list(grid_block(stage, dataset, skew))
    played = [cell for cell in cells if cell.measure == "final"]
    yield "accuracy", _experiment(cells, "Method")
    yield "gain", _experiment([replace(cell, measure="gain") for cell in played], "Method")
    yield "diagnostics", _experiment(_diagnostic_cells(stage, dataset, skew), "Method")
    yield "labels", _experiment(_label_cells(stage, dataset, skew), "Labeler")


def _priors_tables(stage: Stage, dataset: str, skew: str) -> Iterator[tuple[str, Experiment]]:
    if skew == USUAL_SKEW:
        cells = list(priors_block(stage, dataset))
        yield "priors", _experiment(cells, "Method")
        labels = [cell for cell in cells if cell.measure == "final" and cell.column[0] != "none"]
        yield "priors-labels", _experiment([replace(cell, measure="last_labels") for cell in labels], "Method")


def _experiment(cells: list[ExperimentCell], head: str) -> Experiment:
    return Experiment("grid", "page", EXPERIMENTS["grid"].about, lambda stage: cells, (head,))


def _label_cells(stage: Stage, dataset: str, skew: str) -> list[ExperimentCell]:
    """What each labeler made in FedCoPL; numbers of images are not ranked, nor is more of them better."""
    return [
        ExperimentCell(
            (LABELERS[labeler].title,),
            (column,),
            (stage.config(dataset, labeler=labeler, skew=skew),),
            measure,
            ranked=measure != "images_used",
        )
        for labeler in stage.scale.labelers
        for column, measure in LABEL_COLUMNS.items()
    ]


def _diagnostic_cells(stage: Stage, dataset: str, skew: str) -> list[ExperimentCell]:
    """What explains the accuracies; none of it is ranked."""
    configs = {method.title: stage.config(dataset, method.name, skew=skew) for method in grid_methods()}
    return [
        ExperimentCell((name,), (column,), (config,), measure, ranked=False)
        for name, config in configs.items()
        for column, measure in DIAGNOSTIC_COLUMNS.items()
    ]


def _how(grid: str, stage: Stage, outcomes: StoredOutcomes, seeds: Sequence[int], command: str) -> str:
    """The command, what was run, and by which versions."""
    configs = runs_of([EXPERIMENTS[grid]], stage, seeds)
    runs = [run for config in configs if (run := outcomes.run(config))]
    versions = {f"{name} {number}" for run in runs for name, number in run.versions.items() if name != "fedcopl"}
    codes = sorted({run.code for run in runs})
    return (
        f"Made by `{command}`: {len(runs)} of {counted(len(configs), 'run')}, "
        f"of the seeds {', '.join(map(str, seeds))}; "
        f"{sum(run.seconds for run in runs) / 60:.0f} minutes of computing in all. Mean ± standard deviation over the "
        f"seeds.\n\nSettings other than the defaults: {', '.join(f'`{pair}`' for pair in _unusual(configs))}.\n\n"
        f"Versions: fedcopl {', '.join(codes) or '–'}; {', '.join(sorted(versions)) or '–'}.\n"
    )


def _unusual(configs: Sequence[RunConfig]) -> list[str]:
    """The settings that all the runs have in common and a run without settings has not."""
    usual = flat(RunConfig().model_dump())
    each = [flat(config.model_dump()) for config in configs]
    same = {key: value for key, value in each[0].items() if all(other.get(key) == value for other in each)}
    return [f"{key}={value}" for key, value in same.items() if usual.get(key) != value]
