"""Our own grid as a page: its table between markers, so that what a person writes around it stays.

<!-- table: grid -->
... is replaced each time ...
<!-- end -->
"""

import re
from collections.abc import Mapping, Sequence

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.plurals import counted

from .experiment_catalog import EXPERIMENTS, runs_of
from .flat_settings import flat
from .measures import StoredOutcomes
from .result_tables import build_table
from .scales import Stage
from .table_formats import markdown_grid

MARKED = re.compile(r"(?P<begin><!-- table: (?P<name>[\w.-]+) -->\n).*?(?P<end><!-- end -->)", re.S)


def page_sections(stage: Stage, outcomes: StoredOutcomes, seeds: Sequence[int], command: str) -> dict[str, str]:
    """Everything of the grid that can stand between markers, by its name."""
    table = build_table(EXPERIMENTS["grid"], stage, outcomes, seeds).played()
    notes = "".join(f"\n{note}" for note in table.notes)
    return {"how": _how(stage, outcomes, seeds, command), "grid": f"{markdown_grid(table)}{notes}\n"}


def new_page(sections: Mapping[str, str]) -> str:
    """A page with every section."""
    lines = ["# Results", ""]
    for name in sections:
        lines += [f"<!-- table: {name} -->", "<!-- end -->", ""]
    return update_page("\n".join(lines), sections, "the new page")


def update_page(page: str, sections: Mapping[str, str], origin: str) -> str:
    """Replace what stands between the markers and nothing else."""
    named = [found["name"] for found in MARKED.finditer(page)]
    unknown = [name for name in named if name not in sections]
    if unknown:
        raise ConfigError(f"{origin}: there is no table {unknown[0]!r} to put there (known: {', '.join(sections)})")
    if not named:
        raise ConfigError(
            f"{origin}: has no <!-- table: NAME --> ... <!-- end --> (known names: {', '.join(sections)})"
        )

    def filled(found: re.Match[str]) -> str:
        return f"{found['begin']}\n{sections[found['name']]}\n{found['end']}"

    return MARKED.sub(filled, page)


def _how(stage: Stage, outcomes: StoredOutcomes, seeds: Sequence[int], command: str) -> str:
    """The command, what was run, and by which versions."""
    configs = runs_of([EXPERIMENTS["grid"]], stage, seeds)
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
