"""The command line: commands, exit codes and error lines."""

import platform
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires
from importlib.metadata import version as version_of
from typing import Annotated, NoReturn

import typer
from typer import Option

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
_EXTRA_OF = {  # extra that installs a module
    "flwr": "flower",
    "httpx": "flower",
    "grpc": "flower",
    "cryptography": "flower",
    "starlette": "web",
    "uvicorn": "web",
}
_EXPERIMENT_COMMANDS = {  # help texts while the package fedcopl-experiments is not installed
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
    """Add the commands of installed packages; those of fedcopl-experiments print a hint if it is not installed."""
    commands = {point.name: point for point in entry_points(group="fedcopl.commands")}
    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name in sorted({*_EXPERIMENT_COMMANDS, *commands}):
        if name in commands:
            app.command(name)(commands[name].load())
        else:
            app.command(name, help=_EXPERIMENT_COMMANDS[name], context_settings=any_arguments)(_missing_command)


def _missing_command(context: typer.Context) -> None:
    raise ConfigError(
        f"{context.info_name}: is a command of the package fedcopl-experiments: pip install 'fedcopl[experiments]', "
        "or pip install -e experiments in a checkout"
    )


_add_installed_commands()


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[
        bool, Option("--verbose", help="With --version: also the installed packages and extras.")
    ] = False,
) -> None:
    """Unsupervised federated classification with CLIP."""
    if version:
        print(f"fedcopl {version_of('fedcopl')}", *(_installed_versions() if verbose else ()), sep="\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise ConfigError("name a command; see fedcopl --help")


def _installed_versions() -> Iterator[str]:
    """Yield a line for Python, each package, each extra (its packages, or how to install it), and the cache."""
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
    """Return the packages of each extra, from the metadata of fedcopl, without extras that combine others."""
    packages: dict[str, list[str]] = defaultdict(list)
    for line in requires("fedcopl") or ():
        if match := re.fullmatch(r"""([\w.-]+).*; *extra == ['"]([\w-]+)['"]""", line):
            packages[match[2]].append(match[1])
    return {extra: names for extra, names in packages.items() if extra not in _COMBINED_EXTRAS}


def _version(package: str) -> str | None:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Run the command line; a `FedCoPLError` becomes one line and an exit code, any other exception is a bug."""
    try:
        code = app(prog_name="fedcopl", standalone_mode=False)
    except click_errors.NoArgsIsHelpError as help_text:
        help_text.show()
        sys.exit(ConfigError.exit_code)
    except click_errors.ClickException as error:
        _exit_with(usage_line(error), ConfigError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _exit_with("stopped", Interrupted.exit_code)
    except ModuleNotFoundError as error:
        _exit_with(_missing_extra(error), ConfigError.exit_code)
    except FedCoPLError as error:
        _exit_with(str(error), error.exit_code)
    if code == Interrupted.exit_code:  # typer returns it after Ctrl-C
        _exit_with("stopped", code)
    sys.exit(code if isinstance(code, int) else 0)


def _exit_with(line: str, code: int) -> NoReturn:
    print(f"fedcopl: {line}", file=sys.stderr)
    sys.exit(code)


def _missing_extra(error: ModuleNotFoundError) -> str:
    """Return which extra installs the missing module; raise the error again if none does."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRA_OF:
        raise error
    command = " ".join(["fedcopl", *sys.argv[1:2]])
    return f"{command} needs {module}, which is not installed: pip install 'fedcopl[{_EXTRA_OF[module]}]'"
