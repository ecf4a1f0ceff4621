"""`fedcopl run`: one simulated federation, from settings to a folder with results."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..config import RunConfig, load, read_settings, with_typed
from ..errors import ConfigError, Interrupted, RunFolderError
from ..progress import watch
from ..published import AS_PUBLISHED
from ..report.run_page import write_report
from ..run.record import Outcome, to_plain
from .command import PluginFiles
from .show import print_estimate, print_next, print_results

if TYPE_CHECKING:
    from ..simulation.time_estimate import TimeEstimate

RUNS = Path("runs")


class EngineName(StrEnum):
    """Who carries the questions of a simulation."""

    LOCAL = "local"
    FLOWER = "flower"


GivenSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml] [key=value ...]",
        help="A settings file, and single settings on top of it. Without a file: the embedded demo.",
        show_default=False,
    ),
]
WorkersArgument = Annotated[
    str, typer.Option(metavar="auto|N", help="Processes that share the clients: one for each core, or so many.")
]
Published = Annotated[
    bool,
    typer.Option(
        "--as-published", help="The paper, with its authors' choices where it is silent: docs/as-published.md."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Estimate time and memory on this machine: docs/scale.md. Run nothing.")
]
Earlier = Annotated[
    Path | None,
    typer.Option("--from", help="Folder of a finished run to go on from: docs/living-study.md.", show_default=False),
]


def run(
    settings: GivenSettings = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results; without it runs/<time>-<name>.", show_default=False),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random stream.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    engine: Annotated[
        EngineName, typer.Option(help="Who carries the questions: fedcopl itself, or Flower's simulation.")
    ] = EngineName.LOCAL,
    workers: WorkersArgument = "auto",
    published: Published = False,
    earlier: Earlier = None,
    dry_run: DryRun = False,
    plugin: PluginFiles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run a federation on this machine and write settings, results, prompts and a report into a folder."""
    given = list(settings or [])
    file = Path(given.pop(0)) if given and "=" not in given[0] else None
    pairs = [*given, *([] if seed is None else [f"seed={seed}"])]
    folder = _newest_run() if resume and out is None else out
    paper = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()] if published else []
    config = _read(file, [*paper, *pairs], folder if resume else None)
    if dry_run:
        print_estimate(_estimate(config), as_json=as_json)
        return
    folder = folder or RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{config.name}"
    outcome = _simulate(_simulation(engine, workers), config, folder, resume, earlier)
    write_report(folder)
    if as_json:
        print(json.dumps(to_plain(outcome)))
    else:
        print_results(outcome, folder)
        print_next(*_next(outcome, folder, settings or []))


def _next(outcome: Outcome, folder: Path, settings: list[str]) -> Iterator[Sequence[object] | str]:
    """Yield what follows a run: review without labels, training where nothing was trained, and use of a classifier."""
    from ..report.label_free import REVIEWED, label_free, read_reviews
    from ..run.pseudo_labels import read_last_labels

    labelled = outcome.final.macro is not None
    summary = label_free(outcome, read_last_labels(folder), read_reviews(folder))
    if not labelled and (review := summary.review_command(str(folder))):
        yield f"{review}  # confirm {REVIEWED} images to measure the accuracy"
    if not outcome.trains:
        yield "fedcopl", "run", *(word for word in settings if not word.startswith("method="))
    client = ("--client", outcome.clients[0].name)
    if labelled:
        yield "fedcopl", "review", folder, *client
    yield "fedcopl", "predict", "PHOTOS", "-c", folder, *client, "-o", "answers.csv"
    yield "fedcopl", "export", folder, *client, "-o", "classifier"


def _estimate(config: RunConfig) -> "TimeEstimate":
    """Load the model, list the images and time them; imports torch."""
    from ..data.catalog import load_dataset
    from ..run.build import build_clip
    from ..simulation.time_estimate import estimate_time

    return estimate_time(config, build_clip(config.model), load_dataset(config.data))


def _newest_run() -> Path:
    """The run to resume when none is named."""
    begun = sorted(RUNS.glob("*/settings.toml"), key=lambda path: path.stat().st_mtime)
    if not begun:
        raise RunFolderError(f"{RUNS}: holds no run to resume; name one with --out")
    return begun[-1].parent


def _read(file: Path | None, pairs: list[str], resumed: Path | None) -> RunConfig:
    """Settings from the file named, else of the run that is resumed, else of the demo."""
    if file is None and resumed is not None:
        if not (resumed / "settings.toml").exists():
            raise RunFolderError(f"{resumed}: holds no run to resume; name one with --out")
        return load(resumed / "settings.toml", pairs)
    if file is not None and file.is_dir():
        raise ConfigError(f"{file}: is a folder; for images in it say data.source=folder data.path={file}")
    if file is not None:
        return with_typed(read_settings(file), pairs, str(file))
    with as_file(files("fedcopl") / "demo.toml") as demo:
        return with_typed(read_settings(demo), pairs, "settings")


def _simulate(
    simulate: Callable[..., Outcome], config: RunConfig, folder: Path, resume: bool, earlier: Path | None
) -> Outcome:
    try:
        with watch(config.rounds) as watcher:
            return simulate(config, folder, resume=resume, progress=watcher, previous_run=earlier)
    except KeyboardInterrupt as error:
        raise Interrupted(f"stopped; go on with: fedcopl run --out {folder} --resume") from error


def _simulation(engine: EngineName, workers: str) -> Callable[..., Outcome]:
    """Brings torch: a second that --help need not wait for."""
    count = _number_of(workers)
    if engine is EngineName.FLOWER:
        if count != "auto":
            raise ConfigError("--workers: Flower's simulation has its own; leave it at auto")
        if find_spec("ray") is None:
            raise ConfigError("--engine flower: is not installed: pip install 'fedcopl[flower-simulation]'")
        from ..simulation.on_flower import simulate_on_ray

        return simulate_on_ray
    from ..simulation.simulate import simulate

    return partial(simulate, workers=count)


def _number_of(workers: str) -> int | Literal["auto"]:
    if workers == "auto" or (workers.isdecimal() and int(workers)):
        return "auto" if workers == "auto" else int(workers)
    raise ConfigError(f"--workers: should be auto or a number from 1 on, not {workers!r}")
