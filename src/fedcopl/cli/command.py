"""The application class of the command line, its help pages, and its error lines.

Newer versions of typer contain a private copy of click and format types differently (`<bool>`, `<list[str]>`). Help
pages and error lines are therefore made from the annotations of our functions, so that no version changes them.
"""

import difflib
import os
from collections.abc import Callable, Iterable
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from typer import Option
from typer.core import TyperCommand, TyperGroup

from ..config import setting_names
from ..registry import PLUGINS_VARIABLE

click_errors: Any = import_module(typer.BadParameter.__module__)  # of click, or of the copy of it inside typer
_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLACEHOLDERS = {Path: "PATH", int: "N", float: "X"}
_TYPE_NAMES = {int: "a whole number", float: "a number"}
_COLUMN = 32  # characters of the first column of a help page


def _load_plugin_files(files: list[Path] | None) -> list[Path] | None:
    """Load the files of the option --plugin, after those of the environment."""
    if files or os.environ.get(PLUGINS_VARIABLE):
        from ..plugins import load_plugins  # imports torch

        load_plugins(files or ())
    return files


PluginFiles = Annotated[  # loaded while the command line is parsed
    list[Path] | None,
    Option(
        "--plugin",
        metavar="FILE.py",
        help="Python file with your methods or labelers, which is executed: docs/methods.md; may be repeated.",
        show_default=False,
        callback=_load_plugin_files,
    ),
]


class _Command(TyperCommand):
    """A command with a help page of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_help_page(self, ctx))


class _CommandGroup(TyperGroup):
    """A group of commands with a help page of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_help_page(self, ctx))


class CommandLine(typer.Typer):
    """A group of commands, made from functions."""

    def __init__(self, help: str):
        super().__init__(
            cls=_CommandGroup, help=help, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """Return a decorator that adds a function as a command."""
        return super().command(name, cls=_Command, **options)


class Parameter(NamedTuple):
    """An option or argument of a command, independent of the version of typer."""

    name: str  # longest name of an option; an argument as in the usage line
    title: str  # all names of an option and a placeholder for its value
    help: str
    kind: type  # type of a single value
    choices: tuple[str, ...]
    limits: str  # of a number: `at least 0 and at most 1`
    default: str  # empty if none is shown
    required: bool
    is_option: bool


def parameter_of(command: Any, option: Any) -> Parameter:
    """Describe a parameter object of typer by the annotation of the command's function."""
    hints = get_type_hints(command.callback, include_extras=True) if command.callback else {}
    hint = hints.get(option.name, bool)  # bool: the flag --help
    annotation, info = (hint.__origin__, hint.__metadata__[0]) if hasattr(hint, "__metadata__") else (hint, None)
    kind, choices = _kind_and_choices(annotation)
    bounds = (("at least", getattr(info, "min", None)), ("at most", getattr(info, "max", None)))
    limits = " and ".join(f"{relation} {bound:g}" for relation, bound in bounds if bound is not None)
    names, placeholder = [*option.opts, *option.secondary_opts], option.metavar
    if placeholder is None and kind is not bool:
        placeholder = "|".join(choices) or _PLACEHOLDERS.get(kind, "TEXT")
    is_option = option.param_type_name == "option"
    if is_option:
        name, title = max(names, key=len), " ".join(filter(None, [", ".join(names), placeholder]))
    else:
        name = option.metavar or option.name.upper() + ("..." if option.nargs != 1 else "")
        name = title = name if option.required or name.startswith("[") else f"[{name}]"
    text = getattr(info, "help", None) or getattr(option, "help", None) or ""  # typer 0.20 with click 8.5 loses it
    hidden = option.default is None or option.default is False or option.default == "" or callable(option.default)
    default = "" if hidden or not option.show_default else str(option.default)
    return Parameter(name, title, text, kind, choices, limits, default, option.required, is_option)


def _kind_and_choices(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """Return the type of a single value (of the items for a list), and the choices of a Literal or Enum."""
    if get_origin(annotation) is Literal:
        return str, get_args(annotation)
    inner = [kind for kind in get_args(annotation) if kind is not type(None)]
    if inner:
        return _kind_and_choices(inner[0])
    return annotation, tuple(member.value for member in annotation) if issubclass(annotation, Enum) else ()


def _help_page(command: Any, context: Any) -> str:
    """Return usage, description, arguments, options and commands, wrapped to the width of the terminal."""
    parameters = [parameter_of(command, option) for option in command.get_params(context) if not option.hidden]
    arguments, options = ([one for one in parameters if one.is_option is kind] for kind in (False, True))
    commands = getattr(command, "commands", {})
    usage = [context.command_path, "[OPTIONS]", *(one.name for one in arguments), *["COMMAND ..."][: len(commands)]]
    console = Console(highlight=False, markup=False)
    with console.capture() as page:
        console.print(f"Usage: {' '.join(usage)}\n\n{_paragraphs(command)}")
        _print_rows(console, "Arguments", [(one.title, _help_text(one)) for one in arguments])
        _print_rows(console, "Options", [(one.title, _help_text(one)) for one in options])
        rows = [(name, _paragraphs(one).split("\n")[0]) for name, one in commands.items()]
        _print_rows(console, "Commands", rows)
    return "\n".join(line.rstrip() for line in page.get().splitlines())


def _paragraphs(command: Any) -> str:
    """Return the help text with one line per paragraph; the terminal wraps it."""
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def _help_text(parameter: Parameter) -> str:
    """Return the help of a parameter, followed by its default and limits in brackets."""
    default = f"default: {parameter.default}" if parameter.default else ""
    required = "required" if parameter.is_option and parameter.required else ""
    notes = "; ".join(filter(None, (required, default, parameter.limits)))
    return f"{parameter.help} [{notes}]" if notes else parameter.help


def _print_rows(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(max_width=_COLUMN, overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        console.print(f"\n{title}")
        console.print(table)


def usage_line(error: Any) -> str:
    """Return a usage error of click in one line that suggests a correction or the command for help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fedcopl"
    match error:
        case click_errors.NoSuchOption():
            line = f"{error.option_name}: is not an option of {command}{_nearest_option(error, context)}"
        case click_errors.BadParameter() if error.param is not None and context is not None:
            line = _bad_parameter(error)
        case click_errors.UsageError() if context is not None and error.message.startswith("No such command"):
            typed = error.message.split("'")[1]
            close_matches = difflib.get_close_matches(typed, context.command.commands, n=1)
            line = f"{typed}: is not a command" + (f"; did you mean {close_matches[0]}?" if close_matches else "")
        case _:
            text = " ".join(error.format_message().split()).rstrip(".")
            line = text[:1].lower() + text[1:]
    return line if line.endswith("?") else f"{line}; see {command} --help"


def _nearest_option(error: Any, context: Any) -> str:
    """Suggest the nearest option, or the setting of this name if the command takes settings."""
    typed = error.option_name.lstrip("-")
    parameters = context.command.params if context else []
    takes_settings = any("key=value" in (one.metavar or "") for one in parameters)
    paths = setting_names() if takes_settings else ()
    suggestions = {name: f"{'.'.join(path)}=VALUE" for path in paths for name in (path[-1], ".".join(path))}
    suggestions |= {name.lstrip("-"): name for one in parameters for name in one.opts if name.startswith("--")}
    close_matches = difflib.get_close_matches(typed.replace("-", "_"), suggestions, n=1)
    return f"; did you mean {suggestions[close_matches[0]]}?" if close_matches else ""


def _bad_parameter(error: Any) -> str:
    """Return the error line of a missing argument or a value of the wrong type."""
    parameter = parameter_of(error.ctx.command, error.param)
    name = parameter.name.strip("[]")
    if isinstance(error, click_errors.MissingParameter):
        return f"{name}: is missing"
    choices = " or ".join(filter(None, [", ".join(parameter.choices[:-1]), *parameter.choices[-1:]]))
    expected = choices or parameter.limits or _TYPE_NAMES.get(parameter.kind, "")
    if error.__cause__ is not None and hasattr(error.__cause__, "errors"):  # of pydantic, in newer versions of typer
        given = error.__cause__.errors()[0]["input"]
    else:
        given = error.message.split(" is not ")[0].strip("'")
    return f"{name}: should be {expected}, not {given}"
