"""`fedcopl reproduce`: a table or figure of the paper, from its runs to its pages."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.files import check_output_folder
from fedcopl.plurals import counted

from .grid_display import describe, print_plan, print_table, watch

if TYPE_CHECKING:
    from ..experiment_catalog import Experiment
    from ..grid_runner import GridOutcome
    from ..render import Rendering
    from ..scales import Stage

SOME_FAILED = 1  # exit code; everything else is done and drawn

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME ...]", help="Tables and figures; without any, their list.", show_default=False),
]
ScaleName = Annotated[str, typer.Option(help="smoke, short, demo (glyph-clip and digits) or paper.")]
Datasets = Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.", show_default=False)]
BackboneName = Annotated[str, typer.Option(help="Another model than the experiment's own.", show_default=False)]
Seeds = Annotated[str, typer.Option(help="How many, as 5, or which, as 1,2,3; else the scale's.", show_default=False)]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
StoreFolder = Annotated[Path, typer.Option("--place", help="Folder of the runs and their store.")]
DataFolder = Annotated[Path, typer.Option(help="Folder of the data sets, each in a folder of its name.")]
DrawnFolder = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for what is drawn; else PLACE/SCALE.", show_default=False)
]
Update = Annotated[
    Path | None, typer.Option(help="A page whose marked tables are filled from the grid.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs, their cost and what is missing; play none.")]
PluginPaths = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="File with methods of your own, for `grid`.", show_default=False),
]
DrawOnly = Annotated[bool, typer.Option("--draw-only", help="Play nothing; draw what any version has stored.")]


def reproduce(
    names: Names = None,
    scale: ScaleName = "demo",
    dataset: Datasets = None,
    backbone: BackboneName = "",
    seeds: Seeds = "",
    jobs: Jobs = 1,
    folder: StoreFolder = Path("results"),
    data: DataFolder = Path("data"),
    out: DrawnFolder = None,
    update: Update = None,
    dry_run: DryRun = False,
    draw_only: DrawOnly = False,
    plugin: PluginPaths = None,
) -> None:
    """Play the runs of tables and figures that are not done yet, then print and draw them."""
    from ..experiment_catalog import find_experiments
    from ..scales import Stage, check_datasets, find_scale

    if not names:
        _print_catalog()
        return
    from fedcopl.plugins import load_plugins  # brings torch

    load_plugins(plugin or ())
    stage = Stage(find_scale(scale), check_datasets(dataset or ()), backbone, data)
    chosen = read_seeds(seeds) if seeds else tuple(range(1, stage.scale.trials + 1))
    request = _Request(find_experiments(names), stage, chosen, folder, out or folder / scale, update, jobs)
    if dry_run:
        request.plan()
    else:
        check_output_folder(request.out)
        request.fulfil(draw_only=draw_only, command=_command(names, scale, dataset or [], backbone, seeds))


def read_seeds(text: str) -> tuple[int, ...]:
    """`5` means 1 to 5, `1,2,3` means these, `7,` means the seed 7 alone."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if not numbers or len(numbers) != len(parts) or ("," not in text and numbers[0] == 0):
        raise ConfigError(f"--seeds: should be how many, as 5, or which, as 1,2,3 (given: {text!r})")
    return tuple(dict.fromkeys(numbers)) if "," in text else tuple(range(1, numbers[0] + 1))


def _command(names: Sequence[str], scale: str, datasets: Sequence[str], backbone: str, seeds: str) -> str:
    """How to get the same again."""
    words = ["fedcopl", "reproduce", *names, "--scale", scale]
    words += [word for name in datasets for word in ("--dataset", name)]
    words += ["--backbone", backbone] if backbone else []
    return shlex.join([*words, *(["--seeds", seeds] if seeds else [])])


def _print_catalog() -> None:
    from ..experiment_catalog import ALIASES, EXPERIMENTS

    table = Table("name", "what it is", box=None, pad_edge=False)
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.about)
    for name, parts in ALIASES.items():
        table.add_row(name, "everything" if name == "all" else ", ".join(parts))
    Console(highlight=False).print(table)


@dataclass(frozen=True)
class _Request:
    """What was asked for."""

    experiments: "Sequence[Experiment]"
    stage: "Stage"
    seeds: Sequence[int]
    folder: Path
    out: Path
    update: Path | None
    jobs: int

    def plan(self) -> None:
        from ..grid_plan import make_plan
        from ..store import FILE_NAME, ResultStore

        plan = make_plan(self._configs(), ResultStore(self.folder / FILE_NAME))
        print_plan(plan, self.jobs, Console(highlight=False, soft_wrap=True))

    def fulfil(self, *, draw_only: bool, command: str) -> None:
        """Play, print, draw; what failed is named last."""
        from ..grid_runner import run_grid
        from ..measures import StoredOutcomes
        from ..render import Renderer
        from ..store import FILE_NAME, ResultStore

        configs = self._configs()
        outcomes = StoredOutcomes(ResultStore(self.folder / FILE_NAME), any_code=draw_only)
        renderer = Renderer(self.stage, outcomes, self.seeds, self.out, command)
        if self.update:
            renderer.refuse_page(self.update)
        outcome = None
        if not draw_only:
            with watch() as watcher:
                outcome = run_grid(configs, self.folder, jobs=self.jobs, watcher=watcher)
        _print_rendering(renderer.render(self.experiments, self.update))
        if outcome and outcome.failed:
            _print_failures(outcome, configs, self.folder)
            raise typer.Exit(SOME_FAILED)

    def _configs(self) -> list[RunConfig]:
        from ..experiment_catalog import runs_of

        empty = [experiment.name for experiment in self.experiments if not experiment.cells(self.stage)]
        if len(empty) == len(self.experiments):
            raise ConfigError(f"--dataset: {', '.join(empty)} has no part with {', '.join(self.stage.datasets)}")
        return runs_of(self.experiments, self.stage, self.seeds)


def _print_rendering(rendering: "Rendering") -> None:
    console = Console(highlight=False)
    for table in rendering.tables:
        print_table(table, console)
    for name in rendering.empty:
        console.print(f"{name}: nothing to draw yet")
    for folder in dict.fromkeys(file.parent for file in rendering.files):
        endings: dict[str, list[str]] = {}
        for file in rendering.files:
            if file.parent == folder:
                endings.setdefault(file.stem, []).append(file.suffix.removeprefix("."))
        written = ", ".join(f"{stem} ({' '.join(kinds)})" for stem, kinds in endings.items())
        console.print(Text(f"written to {folder}: {written}"))


def _print_failures(outcome: "GridOutcome", configs: Sequence[RunConfig], folder: Path) -> None:
    """Each message once, with the runs that ended so."""
    from ..run_key import run_key

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    names = {run_key(config): describe(config) for config in configs}
    console.print(f"{len(outcome.failed)} of {counted(len(names), 'run')} failed; the same command tries them again:")
    for message in dict.fromkeys(outcome.failed.values()):
        keys = [key for key, reason in outcome.failed.items() if reason == message]
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        console.print(f"  {names[keys[0]]}{more}: {message} (see {folder / 'runs' / keys[0]})")
