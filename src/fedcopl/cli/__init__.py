"""The command line: each command is a thin layer over one function of the library."""

import sys
from typing import Annotated

import typer

from ..errors import FedCoPLError
from . import cache, data
from .methods import methods
from .run import run

app = typer.Typer(
    help="Unsupervised federated classification with CLIP.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(methods)
app.add_typer(data.app, name="data")
app.add_typer(cache.app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"fedcopl {version('fedcopl')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Unsupervised federated classification with CLIP."""


def main() -> None:
    """Run the command line; an error of ours is one line and an exit code, anything else is a bug."""
    try:
        app()
    except FedCoPLError as error:
        print(f"fedcopl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
