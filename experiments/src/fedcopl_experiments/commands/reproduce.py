"""The command `fedcopl reproduce`: runs of a table or figure, and the files drawn from them."""

import shlex
from collections.abc import Mapping, Sequence
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

from .grid_display import describe, print_next, print_plan, print_table, watch

if TYPE_CHECKING:
    from ..experiment_catalog import Experiment
    from ..grid_runner import GridOutcome
    from ..render import Rendering
    from ..scales import ExperimentSetup

SOME_FAILED = 1  # exit code if runs failed; the others are drawn

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME ...]", help="Tables and figures; without names, list them.", show_default=False),
]
ScaleName = Annotated[str, typer.Option(help="smoke, short, demo (glyph-clip and digits) or paper.")]
Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", help="Only this data set, or a folder or .npz file in the folder of --data.", show_default=False
    ),
]
Backbones = Annotated[
    list[str] | None,
    typer.Option(
        "--backbone",
        metavar="[DATASET=]MODEL",
        help="Model that replaces the one of the experiment, for all data sets or for one.",
        show_default=False,
    ),
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="For `grid`: only this method.", show_default=False)
]
Labelers = Annotated[
    list[str] | None, typer.Option("--labeler", help="For `grid`: only this labeler.", show_default=False)
]
Seeds = Annotated[
    str, typer.Option(help="Number of seeds, as 5, or a list, as 1,2,3; default: as the scale.", show_default=False)
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
StoreFolder = Annotated[Path, typer.Option("--place", help="Folder of the runs and their store.")]
DataFolder = Annotated[Path, typer.Option(help="Folder of the data sets, each in a folder of its name.")]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for tables and figures; default: PLACE/SCALE.", show_default=False),
]
Update = Annotated[
    Path | None,
    typer.Option(help="Page in which the marked tables are replaced by those of the grid.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List runs, times, and missing data and models; run nothing.")]
PluginPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE.py", help="File with your methods or labelers, for `grid`.", show_default=False
    ),
]
DrawOnly = Annotated[bool, typer.Option("--draw-only", help="Run nothing; draw the stored runs of any version.")]


def reproduce(
    names: Names = None,
    scale: ScaleName = "demo",
    datasets: Datasets = None,
    backbones: Backbones = None,
    methods: Methods = None,
    labelers: Labelers = None,
    seeds: Seeds = "",
    jobs: Jobs = 1,
    folder: StoreFolder = Path("results"),
    data: DataFolder = Path("data"),
    out: OutputFolder = None,
    update: Update = None,
    dry_run: DryRun = False,
    draw_only: DrawOnly = False,
    plugin: PluginPaths = None,
) -> None:
    """Execute the missing runs of tables and figures, then print and draw them."""
    from ..experiment_catalog import EXPERIMENTS, find_experiments
    from ..scales import ExperimentSetup, find_scale

    if not names:
        _print_catalog()
        print_next(f"fedcopl reproduce {next(iter(EXPERIMENTS))} --dry-run")
        return
    from fedcopl.plugins import load_plugins  # imports torch

    load_plugins(plugin or ())
    experiments = find_experiments(names)
    backbone, backbones_of = _split_backbones(backbones or ())
    setup = ExperimentSetup(
        find_scale(scale),
        tuple(dict.fromkeys(datasets or ())),
        backbone,
        data,
        backbones_of,
        tuple(dict.fromkeys(methods or ())),
        tuple(dict.fromkeys(labelers or ())),
    )
    setup.check()
    _check_registered(setup)
    numbers = read_seeds(seeds) if seeds else tuple(range(1, setup.scale.seeds + 1))
    request = _Request(experiments, setup, numbers, folder, out or folder / scale, update, jobs)
    if dry_run:
        request.plan()
        print_next("the same command without --dry-run")
    else:
        check_output_folder(request.out)
        repeated = {"--dataset": datasets, "--backbone": backbones, "--method": methods, "--labeler": labelers}
        request.execute(draw_only=draw_only, command=_command(names, scale, repeated, seeds))
        print_next(shlex.join(["fedcopl", "results", "--place", str(folder)]))


def _split_backbones(given: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the model for all data sets, or "", and the models of single data sets."""
    of_one = dict(text.split("=", 1) for text in given if "=" in text)
    of_all = [text for text in given if "=" not in text]
    if len(of_all) > 1:
        raise ConfigError(f"--backbone: {', '.join(of_all)}: only one model can be for all data sets")
    return "".join(of_all), of_one


def _check_registered(setup: "ExperimentSetup") -> None:
    """Raise ConfigError for methods and labelers that do not exist."""
    from fedcopl.labelers import LABELERS
    from fedcopl.methods import METHODS

    for option, given, registry in (("--method", setup.methods, METHODS), ("--labeler", setup.labelers, LABELERS)):
        for name in given:
            if name not in registry:
                raise ConfigError(f"{option}: there is no {option[2:]} {name!r} (known: {', '.join(registry)})")


def read_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: `5` means the seeds 1 to 5, `1,2,3` these three, `7,` only the seed 7."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if not numbers or len(numbers) != len(parts) or ("," not in text and numbers[0] == 0):
        raise ConfigError(f"--seeds: should be a number of seeds, as 5, or a list, as 1,2,3 (given: {text!r})")
    return tuple(dict.fromkeys(numbers)) if "," in text else tuple(range(1, numbers[0] + 1))


def _command(names: Sequence[str], scale: str, repeated: Mapping[str, Sequence[str] | None], seeds: str) -> str:
    """Return the command that repeats this one."""
    words = ["fedcopl", "reproduce", *names, "--scale", scale]
    words += [word for option, values in repeated.items() for value in values or () for word in (option, value)]
    return shlex.join([*words, *(["--seeds", seeds] if seeds else [])])


def _print_catalog() -> None:
    from ..experiment_catalog import ALIASES, EXPERIMENTS

    table = Table("name", "description", box=None, pad_edge=False)
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.description)
    for name, parts in ALIASES.items():
        table.add_row(name, "everything" if name == "all" else ", ".join(parts))
    Console(highlight=False).print(table)


@dataclass(frozen=True)
class _Request:
    """The experiments of a command, and the folders of its runs and files."""

    experiments: "Sequence[Experiment]"
    setup: "ExperimentSetup"
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

    def execute(self, *, draw_only: bool, command: str) -> None:
        """Run, print and draw; failed runs are listed last."""
        from ..grid_runner import run_grid
        from ..measures import StoredOutcomes
        from ..render import Renderer
        from ..store import FILE_NAME, ResultStore

        configs = self._configs()
        outcomes = StoredOutcomes(ResultStore(self.folder / FILE_NAME), any_code=draw_only)
        renderer = Renderer(self.setup, outcomes, self.seeds, self.out, command)
        if self.update:
            renderer.check_page(self.update)
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

        empty = [experiment.name for experiment in self.experiments if not experiment.cells(self.setup)]
        if len(empty) == len(self.experiments):
            raise ConfigError(f"--dataset: {', '.join(empty)} has no cells with {', '.join(self.setup.datasets)}")
        return runs_of(self.experiments, self.setup, self.seeds)


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
    """Print each error message once, with its runs."""
    from ..run_key import run_key

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    names = {run_key(config): describe(config) for config in configs}
    console.print(f"{len(outcome.failed)} of {counted(len(names), 'run')} failed; the same command repeats them:")
    for message in dict.fromkeys(outcome.failed.values()):
        keys = [key for key, reason in outcome.failed.items() if reason == message]
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        console.print(f"  {names[keys[0]]}{more}: {message} (see {folder / 'runs' / keys[0]})")
