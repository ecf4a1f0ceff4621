"""`fedcopl run`: simulate a federation and write its results to a folder."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from ..config import AS_PUBLISHED, RunConfig, load, read_settings, with_overrides
from ..errors import ConfigError, Interrupted, RunFolderError
from ..progress import reporting
from ..report.run_page import write_report
from ..run.record import Outcome, to_plain
from .command import PluginFiles
from .show import print_estimate, print_next, print_results

RUNS = Path("runs")
_Engine = Literal["local", "flower"]
PreviousRunFolder = Annotated[
    Path | None, Option("--from", help="Folder of a finished run to start from: docs/living-study.md.")
]


def run(
    settings: Annotated[
        list[str] | None,
        Argument(
            metavar="[CONFIG.toml] [key=value ...]",
            help="A settings file, and single settings that override it. Without a file: the built-in demo.",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder for the results (default: runs/<time>-<name>).")
    ] = None,
    seed: Annotated[int | None, Option(help="Seed of all random streams.")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue a stopped run: that of --out, else the newest.")] = False,
    engine: Annotated[_Engine, Option(help="Simulate in local processes, or on Flower's simulation (Ray).")] = "local",
    workers: Annotated[str, Option(metavar="auto|N", help="Number of worker processes; auto: one per core.")] = "auto",
    published: Annotated[
        bool, Option("--as-published", help="Use the settings of the paper and its code: docs/as-published.md.")
    ] = False,
    previous_run: PreviousRunFolder = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Estimate time and memory on this machine, without a run.")
    ] = False,
    plugin: PluginFiles = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run a federation on this machine and write settings, results, prompts and a report to a folder."""
    given = list(settings or [])
    file = Path(given.pop(0)) if given and "=" not in given[0] else None
    pairs = [*given, *([] if seed is None else [f"seed={seed}"])]
    folder = _newest_run() if resume and out is None else out
    as_published = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()] if published else []
    config = _read_settings(file, [*as_published, *pairs], folder if resume else None)
    if dry_run:
        from ..data.catalog import load_dataset
        from ..run.build import build_clip
        from ..simulation.time_estimate import estimate_time

        print_estimate(estimate_time(config, build_clip(config.model), load_dataset(config.data)), as_json=as_json)
        if not as_json:
            print_next(("fedcopl", "run", *(settings or [])))
        return
    folder = folder or RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{config.name}"
    simulate = _simulation(engine, workers)
    try:
        with reporting(config.rounds) as reporter:
            outcome = simulate(config, folder, resume=resume, progress=reporter, previous_run=previous_run)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped; continue with: {shlex.join(['fedcopl', 'run', '--out', str(folder), '--resume'])}"
        ) from error
    write_report(folder)
    if as_json:
        print(json.dumps(to_plain(outcome)))
    else:
        print_results(outcome, folder)
        print_next(*_next_commands(outcome, folder, settings or []))


def _next_commands(outcome: Outcome, folder: Path, settings: list[str]) -> Iterator[Sequence[object] | str]:
    """Yield the commands to suggest: to review labels, to train if nothing was trained, and to use a classifier."""
    from ..report.label_free import FIRST_REVIEW, label_free, read_reviews
    from ..run.pseudo_labels import read_last_labels

    has_accuracy = outcome.final.macro is not None
    summary = label_free(outcome, read_last_labels(folder), read_reviews(folder))
    if not has_accuracy and (review := summary.review_command(str(folder))):
        yield f"{review}  # confirm {FIRST_REVIEW} images to measure the accuracy"
    if not outcome.trains:
        yield "fedcopl", "run", *(word for word in settings if not word.startswith("method="))
    client = ("--client", outcome.clients[0].name)
    if has_accuracy:
        yield "fedcopl", "review", folder, *client
    yield "fedcopl", "predict", "PHOTOS", "-c", folder, *client, "-o", "predictions.csv"
    yield "fedcopl", "export", folder, *client, "-o", "classifier"


def _newest_run() -> Path:
    """Return the folder of the run in RUNS that was started last."""
    settings_files = sorted(RUNS.glob("*/settings.toml"), key=lambda path: path.stat().st_mtime)
    if not settings_files:
        raise RunFolderError(f"{RUNS}: has no run to resume; name its folder with --out")
    return settings_files[-1].parent


def _read_settings(file: Path | None, pairs: list[str], resumed: Path | None) -> RunConfig:
    """Read the settings from the given file, else from the resumed run, else from the demo."""
    if file is None and resumed is not None:
        if not (resumed / "settings.toml").exists():
            raise RunFolderError(f"{resumed}: has no run to resume; name its folder with --out")
        return load(resumed / "settings.toml", pairs)
    if file is not None and file.is_dir():
        raise ConfigError(f"{file}: is a folder; for the images in it use data.source=folder data.path={file}")
    if file is not None:
        return with_overrides(read_settings(file), pairs, str(file))
    with as_file(files("fedcopl") / "demo.toml") as demo:
        return with_overrides(read_settings(demo), pairs, "settings")


def _simulation(engine: _Engine, workers: str) -> Callable[..., Outcome]:
    """Return the function that runs the simulation; imports torch."""
    if workers != "auto" and not (workers.isdecimal() and int(workers)):
        raise ConfigError(f"--workers: should be auto or at least 1, not {workers!r}")
    if engine == "local":
        from ..simulation.simulate import simulate

        return partial(simulate, workers="auto" if workers == "auto" else int(workers))
    if workers != "auto":
        raise ConfigError("--workers: cannot be set with --engine flower, which chooses its own number; leave it out")
    if find_spec("ray") is None:
        raise ConfigError("--engine flower: ray is not installed: pip install 'fedcopl[flower-simulation]'")
    from ..simulation.on_flower import simulate_on_ray

    return simulate_on_ray
