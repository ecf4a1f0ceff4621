"""Commands that other packages bring along, found by their entry points, as those of `fedcopl[experiments]`."""

from importlib.metadata import entry_points

import typer

from ..errors import ConfigError

GROUP = "fedcopl.commands"
OURS = {  # ours as well, but not in this wheel
    "reproduce": "Make a table or figure of the paper (needs the package fedcopl-experiments).",
    "results": "Look into a store of results (needs the package fedcopl-experiments).",
}


def add_commands(app: typer.Typer) -> None:
    """Every command that is installed, and a word about ours that are not."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted({*OURS, *found}):
        if name in found:
            app.command(name)(found[name].load())
        else:
            _add_missing(app, name)


def _add_missing(app: typer.Typer, name: str) -> None:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=OURS[name], context_settings=anything)
    def missing() -> None:
        raise ConfigError(
            f"{name}: is in a package of its own: pip install 'fedcopl[experiments]', or pip install -e experiments "
            "in a checkout"
        )
