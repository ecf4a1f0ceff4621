"""The command line: a command is a thin layer over one function."""

import platform
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires
from importlib.metadata import version as version_of
from typing import Annotated, NoReturn

import typer

from ..errors import ConfigError, FedCoPLError, Interrupted
from . import data, models
from .classifier import drift, export, predict
from .command import CommandLine, click_errors, usage_line
from .join import join
from .pages import report, review, watch
from .provision import admit, provision, service
from .run import run
from .server import audit, server, status, stop
from .study import doctor, methods, new, privacy

_PACKAGES = ("torch", "numpy", "pillow", "tokenizers", "safetensors", "pydantic", "scikit-learn")
_COMBINED_EXTRAS = ("all", "dev", "flower-simulation")
_EXTRA_OF = {  # module: the extra that installs it
    "flwr": "flower",
    "httpx": "flower",
    "grpc": "flower",
    "cryptography": "flower",
    "starlette": "web",
    "uvicorn": "web",
}
_OTHER_PACKAGE = {  # commands of the package fedcopl-experiments
    "reproduce": "Make a table or figure of the paper (needs the package fedcopl-experiments).",
    "results": "List or export stored results (needs the package fedcopl-experiments).",
}

app = CommandLine("Unsupervised federated classification with CLIP.")
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, new, doctor, predict, export, drift, methods, privacy, report, review, watch),
    *(provision, admit, server, join, service, status, stop, audit),
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
app.add_typer(data.cache_app, name="cache")


def _add_installed_commands() -> None:
    """Add the commands that installed packages declare as entry points, and a hint for ours that are missing."""
    commands = {point.name: point for point in entry_points(group="fedcopl.commands")}
    for name in sorted({*_OTHER_PACKAGE, *commands}):
        if name in commands:
            app.command(name)(commands[name].load())
        else:
            _add_missing(name)


def _add_missing(name: str) -> None:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=_OTHER_PACKAGE[name], context_settings=anything)
    def missing() -> None:
        raise ConfigError(
            f"{name}: is in a separate package: pip install 'fedcopl[experiments]', or pip install -e experiments "
            "in a checkout"
        )


_add_installed_commands()


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: also the installed packages and extras.")
    ] = False,
) -> None:
    """Unsupervised federated classification with CLIP."""
    if version:
        print(f"fedcopl {version_of('fedcopl')}", *(_installed_versions() if verbose else ()), sep="\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise ConfigError("name a command; see fedcopl --help")


def _installed_versions() -> Iterator[str]:
    """Yield Python, the packages, and each extra with its packages, or how to install it."""
    from ..data.cache import default_folder

    yield f"{'python':<14}{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in _PACKAGES:
        yield f"{package:<14}{_version(package) or 'missing'}"
    for extra, packages in _extras().items():
        versions = [f"{package} {_version(package)}" for package in packages if _version(package)]
        complete = len(versions) == len(packages)
        yield f"{f'[{extra}]':<14}" + (", ".join(versions) if complete else f"no: pip install 'fedcopl[{extra}]'")
    yield f"{'cache':<14}{default_folder()}"


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra, from our metadata, without extras that combine others."""
    packages: dict[str, list[str]] = defaultdict(list)
    for line in requires("fedcopl") or ():
        if needed := re.fullmatch(r"""([\w.-]+).*; *extra == ['"]([\w-]+)['"]""", line):
            packages[needed[2]].append(needed[1])
    return {extra: names for extra, names in packages.items() if extra not in _COMBINED_EXTRAS}


def _version(package: str) -> str | None:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Run the command line; a `FedCoPLError` is one line and an exit code, any other exception is a bug."""
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
        _leave(_missing_extra(error), ConfigError.exit_code)
    except FedCoPLError as error:
        _leave(str(error), error.exit_code)
    if code == Interrupted.exit_code:  # Ctrl-C, which typer turns into this number
        _leave("stopped", code)
    sys.exit(code if isinstance(code, int) else 0)


def _leave(line: str, code: int) -> NoReturn:
    print(f"fedcopl: {line}", file=sys.stderr)
    sys.exit(code)


def _missing_extra(error: ModuleNotFoundError) -> str:
    """Return which extra to install; raise the error again if no extra has the module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRA_OF:
        raise error
    command = " ".join(["fedcopl", *sys.argv[1:2]])
    return f"{command} needs {module}, which is not installed: pip install 'fedcopl[{_EXTRA_OF[module]}]'"
