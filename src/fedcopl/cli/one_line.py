"""A mistake on the command line as one line in our words, where typer would draw a box."""

import difflib
import sys
from importlib import import_module
from typing import Any

import typer

from ..config import setting_names
from .command import parameter_of

click_errors: Any = import_module(typer.BadParameter.__module__)  # of click, or of the copy of it inside typer
EXTRA_OF = {  # module: the extra that installs it
    "flwr": "flower",
    "httpx": "flower",
    "grpc": "flower",
    "cryptography": "flower",
    "starlette": "web",
    "uvicorn": "web",
}
KINDS = {int: "a whole number", float: "a number"}


def usage_line(error: Any) -> str:
    """What is wrong with the command line, and where to look it up."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fedcopl"
    what = _what(error, context, command)
    return what if what.endswith("?") else f"{what}; see {command} --help"


def missing_extra(error: ModuleNotFoundError) -> str:
    """Say which extra to install for a command; raise the error again where no extra has the module."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        raise error
    command = " ".join(["fedcopl", *sys.argv[1:2]])
    return f"{command} needs {module}, which is not installed: pip install 'fedcopl[{EXTRA_OF[module]}]'"


def _what(error: Any, context: Any, command: str) -> str:
    match error:
        case click_errors.NoSuchOption():
            return f"{error.option_name}: there is no such option of {command}{_meant_option(error, context)}"
        case click_errors.BadParameter() if error.param is not None and context is not None:
            return _bad_parameter(error)
        case click_errors.UsageError() if context is not None and error.message.startswith("No such command"):
            return _no_command(error.message.split("'")[1], context.command.commands)
    plain = " ".join(error.format_message().split()).rstrip(".")
    return plain[:1].lower() + plain[1:]


def _meant_option(error: Any, context: Any) -> str:
    """The nearest option; or the setting of this name, where the command takes settings."""
    typed = error.option_name.lstrip("-")
    parameters = context.command.params if context else []
    takes_settings = any("key=value" in (one.metavar or "") for one in parameters)
    paths = setting_names() if takes_settings else ()
    known = {name: f"{'.'.join(path)}=VALUE" for path in paths for name in (path[-1], ".".join(path))}
    known |= {name.lstrip("-"): name for one in parameters for name in one.opts if name.startswith("--")}
    near = difflib.get_close_matches(typed.replace("-", "_"), known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else ""


def _bad_parameter(error: Any) -> str:
    parameter = parameter_of(error.ctx.command, error.param)
    name = parameter.name.strip("[]")
    if isinstance(error, click_errors.MissingParameter):
        return f"{name}: is missing"
    choices = " or ".join(filter(None, [", ".join(parameter.choices[:-1]), *parameter.choices[-1:]]))
    meant = choices or parameter.limits or KINDS.get(parameter.kind, "")
    return f"{name}: should be {meant}, not {_given(error)}"


def _given(error: Any) -> str:
    """The value that was typed: newer versions of typer do not name it."""
    if error.__cause__ is not None and hasattr(error.__cause__, "errors"):  # of pydantic
        return str(error.__cause__.errors()[0]["input"])
    return str(error.message.split(" is not ")[0].strip("'"))


def _no_command(typed: str, known: dict[str, Any]) -> str:
    near = difflib.get_close_matches(typed, known, n=1)
    return f"{typed}: there is no such command" + (f"; did you mean {near[0]}?" if near else "")
