"""The page of the grid: tables between markers are replaced, and the text around them is kept.

<!-- table: grid -->
...
<!-- end -->
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.plurals import counted

from .experiment_catalog import EXPERIMENTS, runs_of
from .flat_settings import flat
from .measures import StoredOutcomes
from .result_tables import ResultTable, build_table
from .scales import ExperimentSetup
from .table_formats import markdown_grid

MARKED = re.compile(r"(?P<begin><!-- table: (?P<name>[\w.-]+) -->\n).*?(?P<end><!-- end -->)", re.S)


def page_sections(
    setup: ExperimentSetup, outcomes: StoredOutcomes, seeds: Sequence[int], command: str
) -> dict[str, str]:
    """Return the texts that can be put between markers, by name."""
    table = build_table(EXPERIMENTS["grid"], setup, outcomes, seeds)
    notes = "".join(f"\n{note}  " for note in table.notes if not note.startswith("–")).rstrip()
    return {
        "how": _provenance(setup, outcomes, seeds, command),
        "coverage": _coverage(table, len(seeds)),
        "grid": f"{markdown_grid(table.without_empty())}{notes}\n",
    }


def new_page(sections: Mapping[str, str]) -> str:
    """Return a page with every section."""
    lines = ["# Results", ""]
    for name in sections:
        lines += [f"<!-- table: {name} -->", "<!-- end -->", ""]
    return update_page("\n".join(lines), sections, "the new page")


def update_page(page: str, sections: Mapping[str, str], origin: str) -> str:
    """Replace the text between the markers; keep all other text."""
    named = [match["name"] for match in MARKED.finditer(page)]
    unknown = [name for name in named if name not in sections]
    if unknown:
        raise ConfigError(f"{origin}: there is no table {unknown[0]!r} (known: {', '.join(sections)})")
    if not named:
        raise ConfigError(
            f"{origin}: has no <!-- table: NAME --> ... <!-- end --> (known names: {', '.join(sections)})"
        )

    def fill(match: re.Match[str]) -> str:
        return f"{match['begin']}\n{sections[match['name']]}\n{match['end']}"

    return MARKED.sub(fill, page)


def _coverage(table: ResultTable, seeds: int) -> str:
    """Return a table with the number of cells of each block and variant by their number of finished seeds."""
    counts = range(seeds, -1, -1)
    lines = [
        f"| | {' | '.join(counted(count, 'seed') if count else 'not run' for count in counts)} |",
        f"|---|{'---:|' * len(counts)}",
    ]
    variants = dict.fromkeys(column[0] for column in table.columns if column[0] != "cost")
    for block in table.blocks:
        for variant in variants:
            entries = [
                entry
                for _, row in block.rows
                for column, entry in zip(table.columns, row, strict=True)
                if entry is not None and column[0] == variant
            ]
            cells = Counter(len(entry.sample.values) for entry in entries)
            if set(cells) - {0}:
                name = ", ".join(filter(None, (block.title, variant)))
                lines.append(f"| {name} | {' | '.join(str(cells[count]) for count in counts)} |")
    return "\n".join(lines) + "\n"


def _provenance(setup: ExperimentSetup, outcomes: StoredOutcomes, seeds: Sequence[int], command: str) -> str:
    """Return the command, the number of runs and the versions."""
    configs = runs_of([EXPERIMENTS["grid"]], setup, seeds)
    runs = [run for config in configs if (run := outcomes.run(config))]
    versions = {f"{name} {number}" for run in runs for name, number in run.versions.items() if name != "fedcopl"}
    codes = sorted({run.code for run in runs})
    return (
        f"Made by `{command}`: {len(runs)} of {counted(len(configs), 'run')}, "
        f"of the seeds {', '.join(map(str, seeds))}; "
        f"{sum(run.seconds for run in runs) / 60:.0f} minutes of wall time in all.\n\n"
        f"Settings other than the defaults: {', '.join(f'`{pair}`' for pair in _shared_changes(configs))}.\n\n"
        f"Versions: fedcopl {', '.join(codes) or '–'}; {', '.join(sorted(versions)) or '–'}.\n"
    )


def _shared_changes(configs: Sequence[RunConfig]) -> list[str]:
    """Return the settings that all runs share and that differ from the defaults."""
    defaults = flat(RunConfig().model_dump())
    each = [flat(config.model_dump()) for config in configs]
    shared = {key: value for key, value in each[0].items() if all(other.get(key) == value for other in each)}
    return [f"{key}={value}" for key, value in shared.items() if defaults.get(key) != value]
