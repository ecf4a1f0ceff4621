"""`fedcopl methods` and `fedcopl privacy`: what can be run, and which noise makes which epsilon."""

import math
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..config import RunConfig
from ..errors import ConfigError
from ..plurals import counted
from .command import PluginFiles


def methods(plugin: PluginFiles = None) -> None:
    """List the methods with their own options; run one with `fedcopl run method=NAME options.KEY=VALUE`."""
    from ..config import RunConfig
    from ..methods import METHODS, choose_method  # brings torch

    table = Table("method", "what it does", "options and their defaults")
    for name, build in METHODS.items():
        kind = choose_method(RunConfig(method=name)).Options
        options = ", ".join(f"{key}={field.default}" for key, field in kind.model_fields.items())
        table.add_row(name, (build.__doc__ or "").partition("\n")[0].rstrip("."), options)
    Console().print(table)


STEP = 1e-4  # of the noise; rounded up, so that the epsilon asked for holds
LARGEST = 1e6


def privacy(
    epsilon: Annotated[float | None, typer.Option(help="Find the noise for this epsilon.", show_default=False)] = None,
    noise: Annotated[
        float | None, typer.Option(help="Find the epsilon of this `privacy.noise_multiplier`.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 20,
    refresh_every: Annotated[int, typer.Option(help="Rounds between two refreshes of the pseudo labels.")] = 5,
    delta: Annotated[float, typer.Option(help="The chance that the epsilon does not hold.")] = 1e-5,
) -> None:
    """Which noise gives which epsilon over a whole run, for the data of one site (differential privacy)."""
    from ..privacy.accountant import UNIT, epsilon_of, noise_for, planned_releases  # brings dp-accounting: seconds

    settings = {"rounds": rounds, "labels": {"refresh_every": refresh_every}, "privacy": {"delta": delta}}
    config = RunConfig.from_mapping(settings, "privacy")
    releases = planned_releases(config)
    if (epsilon is None) == (noise is None):
        raise ConfigError("name either --epsilon or --noise; the other one is found")
    if noise is None:
        noise = _rounded_up(noise_for(_positive("--epsilon", epsilon), delta, releases))
    stated = epsilon_of([_positive("--noise", noise)] * releases, delta)
    print(f"{'privacy.noise_multiplier':<26}{noise:g}")
    print(f"{'epsilon':<26}{stated:.3g} at delta {delta:g}, for the data of {UNIT}")
    refreshes = -(-rounds // refresh_every)
    counts = f"class counts at {counted(refreshes, 'refresh')}"
    print(f"{'releases':<26}{releases}: prompts in {counted(rounds, 'round')}, {counts}, logit bias in 3 steps")


def _positive(option: str, value: float | None) -> float:
    if value is None or not 0 < value <= LARGEST:
        raise ConfigError(f"{option}: should be above 0 and at most {LARGEST:g} (given: {value})")
    return value


def _rounded_up(noise: float) -> float:
    return round(math.ceil(noise / STEP) * STEP, 4)
