"""Rendering of stored runs: tables as Markdown, LaTeX and CSV, figures as PDF, SVG and PNG, the page of the grid."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedcopl.errors import ConfigError
from fedcopl.files import publish_text

from .experiment_catalog import Experiment
from .measures import StoredOutcomes
from .result_tables import ResultTable, build_table
from .results_page import new_page, page_sections, update_page
from .scales import ExperimentSetup
from .table_formats import to_csv, to_latex, to_markdown


@dataclass
class Rendering:
    """The rendered tables and files, and the names of figures without data."""

    tables: list[ResultTable] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Renderer:
    """Renders experiments from stored outcomes into a folder."""

    setup: ExperimentSetup
    outcomes: StoredOutcomes
    seeds: Sequence[int]
    out: Path
    command: str  # printed on the page

    def render(self, experiments: Sequence[Experiment], update: Path | None = None) -> Rendering:
        """Render all experiments; `update` is a page with markers to fill."""
        rendering = Rendering()
        for experiment in experiments:
            if experiment.kind == "figure":
                self._figure(experiment, rendering)
            else:
                self._table(experiment, rendering)
        if update or any(experiment.name == "grid" for experiment in experiments):
            self._page(update, rendering)
        return rendering

    def check_page(self, update: Path) -> None:
        """Raise ConfigError if the page has no usable markers; called before any run."""
        update_page(read_page(update), self._sections(), str(update))

    def _sections(self) -> dict[str, str]:
        return page_sections(self.setup, self.outcomes, self.seeds, self.command)

    def _table(self, experiment: Experiment, rendering: Rendering) -> None:
        table = build_table(experiment, self.setup, self.outcomes, self.seeds)
        rendering.tables.append(table)
        for ending, text in (("md", to_markdown(table)), ("tex", to_latex(table)), ("csv", to_csv(table))):
            rendering.files.append(self.out / f"{experiment.name}.{ending}")
            publish_text(rendering.files[-1], text)

    def _figure(self, experiment: Experiment, rendering: Rendering) -> None:
        from .figure_drawing import draw_heat_maps, draw_lines  # imports matplotlib
        from .figure_panels import build_heat_maps, build_panels, panels_csv

        file = self.out / experiment.name
        if experiment.name == "fig-partition":
            maps = build_heat_maps(experiment, self.setup, self.seeds[0])
            drawn = draw_heat_maps(maps, file) if maps else []
        else:
            panels = build_panels(experiment, self.setup, self.outcomes, self.seeds)
            drawn = draw_lines(panels, file) if panels else []
            if drawn:
                drawn.append(file.with_name(f"{file.name}.csv"))
                publish_text(drawn[-1], panels_csv(panels))
        rendering.files += drawn
        if not drawn:
            rendering.empty.append(experiment.name)

    def _page(self, update: Path | None, rendering: Rendering) -> None:
        sections = self._sections()
        rendering.files.append(self.out / "results.md")
        publish_text(rendering.files[-1], new_page(sections))
        if update:
            publish_text(update, update_page(read_page(update), sections, str(update)))
            rendering.files.append(update)


def read_page(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--update: {path}: cannot be read: {error}") from error
