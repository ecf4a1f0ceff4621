"""The command line: a command is a thin layer over one function."""

import sys
from typing import Annotated

import typer

from ..errors import FedCoPLError
from . import cache, data
from .classifier import export, predict
from .federation import server, status, stop
from .federation_join import join
from .installed import add_commands
from .local_pages import review, watch
from .methods import methods, privacy
from .report import report
from .run import run
from .study import doctor, new

app = typer.Typer(
    help="Unsupervised federated classification with CLIP.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(new)
app.command()(doctor)
app.command()(predict)
app.command()(export)
app.command()(methods)
app.command()(privacy)
app.command()(report)
app.command()(review)
app.command()(watch)
app.command()(server)
app.command()(join)
app.command()(status)
app.command()(stop)
app.add_typer(data.app, name="data")
app.add_typer(cache.app, name="cache")
add_commands(app)


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
