"""`fedcopl new`, `doctor`, `methods` and `privacy`: commands that prepare a study."""

import json
import math
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from ..config import RunConfig
from ..errors import ConfigError, printable
from ..plurals import counted
from .command import PluginFiles
from .data import progress_bar
from .show import print_next

_LEVELS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
_NOISE_STEP = 1e-4  # the noise multiplier is rounded up to a multiple, so that the epsilon holds
_MAX_VALUE = 1e6  # of epsilon and noise multiplier


def new(
    folder: Annotated[Path, Argument(help="Folder to write; it must be new or empty.")],
    sites: Annotated[int, Option(help="Number of sites: each has a folder for its images.")] = 2,
    backbone: Annotated[str, Option(help="Name or path of the CLIP model.")] = "ViT-B/32",
) -> None:
    """Write the folder of a new study: commented settings, classes.txt, folders for images, and a README."""
    from ..doctor.new_study import start_study

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for file in start_study(folder, sites, backbone):
        console.print(str(file))
    console.print(f"\nPut the images of each site into its folder and your classes into {folder / 'classes.txt'}.")
    print_next(f"cd {shlex.quote(str(folder))} && fedcopl doctor")


def doctor(
    path: Annotated[
        Path | None,
        Argument(
            metavar="[DIR|settings.toml]",
            help="Folder or settings of a study, or the folder of a site or server (default: settings.toml in the "
            "current folder, if it exists).",
        ),
    ] = None,
    server: Annotated[str | None, Option(metavar="HOST:PORT", help="Server to connect to.")] = None,
    ca: Annotated[Path | None, Option(help="Certificate of the server's authority, ca.pem.")] = None,
    fix: Annotated[bool, Option("--fix", help="First apply safe fixes: rename folders with misspelled names.")] = False,
    plugin: PluginFiles = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Check machine, packages, device, disk, model, images and server, and print how to fix each problem."""
    from ..doctor.checks import apply_fixes, diagnose, settings_file

    for fixed in apply_fixes(path) if fix else ():
        print(f"fixed: {printable(fixed)}", file=sys.stderr)
    with progress_bar("opening the images") as progress:
        findings = list(diagnose(path, server=server, certificate=ca, progress=progress))
    levels = Counter(finding.level for finding in findings)
    if as_json:
        print(json.dumps({"ok": not levels["problem"], "findings": [finding._asdict() for finding in findings]}))
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for finding in findings:
            console.print(f"{_LEVELS[finding.level]} {finding.subject}: {printable(finding.detail)}")
            if finding.advice:
                console.print(f"        -> {finding.advice}")
        print(f"\n{counted(levels['problem'], 'problem')}, {counted(levels['note'], 'note')}")
        file = settings_file(path)
        if levels["problem"]:
            print_next("fix the problems above, then run fedcopl doctor again")
        elif file is not None:
            print_next(("fedcopl", "run", file, "method=priors"))
        elif path is None:
            print_next(("fedcopl", "new", "STUDY"), ("fedcopl", "run"))
    if levels["problem"]:
        raise typer.Exit(1)


def methods(plugin: PluginFiles = None) -> None:
    """List the methods and their options; run one with `fedcopl run method=NAME options.KEY=VALUE`."""
    from ..methods import METHODS, choose_method  # imports torch

    table = Table("method", "description", "options and their defaults")
    for name, method_class in METHODS.items():
        fields = choose_method(RunConfig(method=name)).Options.model_fields
        options = ", ".join(f"{key}={field.default}" for key, field in fields.items())
        table.add_row(name, (method_class.__doc__ or "").partition("\n")[0].rstrip("."), options)
    Console().print(table)
    print_next(("fedcopl", "run", "method=NAME", "options.KEY=VALUE"))


def privacy(
    epsilon: Annotated[float | None, Option(help="Compute the noise multiplier for this epsilon.")] = None,
    noise: Annotated[
        float | None, Option("--noise-multiplier", help="Compute the epsilon of this noise multiplier.")
    ] = None,
    rounds: Annotated[int, Option(help="Rounds of the run.")] = 20,
    refresh_every: Annotated[int, Option(help="Rounds between two refreshes of the pseudo labels.")] = 5,
    delta: Annotated[float, Option(help="Probability that the epsilon does not hold.")] = 1e-5,
) -> None:
    """Convert between noise multiplier and epsilon of a whole run (differential privacy of one site's data)."""
    from ..privacy.accountant import (  # imports dp-accounting, which takes seconds
        UNIT,
        epsilon_of,
        noise_for,
        planned_releases,
    )

    settings = {"rounds": rounds, "labels": {"refresh_every": refresh_every}, "privacy": {"delta": delta}}
    releases = planned_releases(RunConfig.from_mapping(settings, "command line"))
    if (epsilon is None) == (noise is None):
        raise ConfigError("name either --epsilon or --noise-multiplier; the other one is computed")
    for option, value in (("--epsilon", epsilon), ("--noise-multiplier", noise)):
        if value is not None and not 0 < value <= _MAX_VALUE:
            raise ConfigError(f"{option}: should be above 0 and at most {_MAX_VALUE:g}, not {value}")
    if epsilon is not None:
        noise = round(math.ceil(noise_for(epsilon, delta, releases) / _NOISE_STEP) * _NOISE_STEP, 4)
    assert noise is not None
    reached = epsilon_of([noise] * releases, delta)
    print(f"{'privacy.noise_multiplier':<26}{noise:g}")
    print(f"{'epsilon':<26}{reached:.3g} at delta {delta:g}, for the data of {UNIT}")
    refreshes = -(-rounds // refresh_every)
    counts = f"class counts at {counted(refreshes, 'refresh')}"
    print(f"{'releases':<26}{releases}: prompts in {counted(rounds, 'round')}, {counts}, logit bias in 3 steps")
    print_next(("fedcopl", "run", "STUDY.toml", f"privacy.noise_multiplier={noise:g}", f"privacy.delta={delta:g}"))
