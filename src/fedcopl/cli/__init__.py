"""The command line: a command is a thin layer over one function."""

import sys
from importlib.metadata import version as installed_version
from typing import Annotated, NoReturn

import typer

from ..errors import ConfigError, FedCoPLError, Interrupted
from . import cache, data, models
from .audit import audit
from .classifier import export, predict
from .command import CommandLine
from .drift import drift
from .federation import server, status, stop
from .federation_join import join
from .installed import add_commands
from .local_pages import review, watch
from .methods import methods, privacy
from .one_line import click_errors, missing_extra, usage_line
from .provision import admit, provision
from .report import report
from .run import run
from .service import service
from .study import doctor, new
from .versions import installed_versions

app = CommandLine("Unsupervised federated classification with CLIP.")
app.command()(run)
app.command()(new)
app.command()(doctor)
app.command()(predict)
app.command()(export)
app.command()(drift)
app.command()(methods)
app.command()(privacy)
app.command()(report)
app.command()(review)
app.command()(watch)
app.command()(provision)
app.command()(admit)
app.command()(server)
app.command()(join)
app.command()(service)
app.command()(status)
app.command()(stop)
app.command()(audit)
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
app.add_typer(cache.app, name="cache")
add_commands(app)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: also what is installed, and what can be read.")
    ] = False,
) -> None:
    """Unsupervised federated classification with CLIP."""
    if version:
        print(f"fedcopl {installed_version('fedcopl')}", *(installed_versions() if verbose else ()), sep="\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise ConfigError("name a command; see fedcopl --help")


def main() -> None:
    """Run the command line; an error of ours is one line and an exit code, anything else is a bug."""
    try:
        code = app(prog_name="fedcopl", standalone_mode=False)
    except click_errors.NoArgsIsHelpError as help_text:
        help_text.show()
        sys.exit(ConfigError.exit_code)
    except click_errors.ClickException as error:
        _leave(usage_line(error), ConfigError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _leave("stopped", Interrupted.exit_code)
    except ModuleNotFoundError as error:
        _leave(missing_extra(error), ConfigError.exit_code)
    except FedCoPLError as error:
        _leave(str(error), error.exit_code)
    if code == Interrupted.exit_code:  # Ctrl-C, which typer turns into this number
        _leave("stopped", code)
    sys.exit(code if isinstance(code, int) else 0)


def _leave(line: str, code: int) -> NoReturn:
    print(f"fedcopl: {line}", file=sys.stderr)
    sys.exit(code)
