"""The application class of the command line, and the help pages of its commands.

Newer versions of typer contain a private copy of click and format types differently (`<bool>`, `<list[str]>`). Help
pages and error messages are therefore made from the annotations of our own functions: they are the same with all
versions.
"""

import os
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from ..registry import PLUGINS_VARIABLE

PLACEHOLDERS = {Path: "PATH", int: "N", float: "X"}
Function = TypeVar("Function", bound=Callable[..., Any])
WIDEST = 32  # characters of the first column of a help page


def load_plugin_files(files: list[Path] | None) -> list[Path] | None:
    """Load the files of the option --plugin, after those of the environment."""
    if files or os.environ.get(PLUGINS_VARIABLE):
        from ..plugins import load_plugins  # brings torch

        load_plugins(files or ())
    return files


PluginFiles = Annotated[  # loaded while the command line is read
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="File with methods or labelers of your own, see docs/methods.md; may be repeated. It is executed.",
        show_default=False,
        callback=load_plugin_files,
    ),
]


class Command(TyperCommand):
    """A command with a help page of ours."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_help_page(self, ctx))


class CommandGroup(TyperGroup):
    """A group of commands with a help page of ours."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_help_page(self, ctx))


class CommandLine(typer.Typer):
    """A group of commands, to which functions are added."""

    def __init__(self, help: str):
        super().__init__(
            cls=CommandGroup, help=help, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Decorator that adds a function as a command."""
        return super().command(name, cls=Command, **options)


class Parameter(NamedTuple):
    """An option or argument of a command, whatever typer's objects look like."""

    name: str  # an option's longest name, an argument as in the usage line
    shown: str  # an option's names and a placeholder for its value
    help: str
    kind: type  # of one value
    choices: tuple[str, ...]
    limits: str  # of a number: `at least 0 and at most 1`
    default: str  # empty where it says nothing
    required: bool
    is_option: bool


def parameter_of(command: Any, found: Any) -> Parameter:
    """Describe one of typer's parameter objects by the annotation of the command's function."""
    hints = get_type_hints(command.callback, include_extras=True) if command.callback else {}
    hint = hints.get(found.name, bool)  # bool: the flag --help
    annotation, info = (hint.__origin__, hint.__metadata__[0]) if hasattr(hint, "__metadata__") else (hint, None)
    kind, choices = _kind_and_choices(annotation)
    bounds = (("at least", getattr(info, "min", None)), ("at most", getattr(info, "max", None)))
    limits = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    names, value = [*found.opts, *found.secondary_opts], found.metavar
    if value is None and kind is not bool:
        value = "|".join(choices) or PLACEHOLDERS.get(kind, "TEXT")
    is_option = found.param_type_name == "option"
    name = max(names, key=len) if is_option else _argument_name(found)
    shown = " ".join([", ".join(names), *([value] if value else [])]) if is_option else name
    about = getattr(info, "help", None) or getattr(found, "help", None) or ""  # typer 0.20 with click 8.5 loses it
    return Parameter(name, shown, about, kind, choices, limits, _default(found), found.required, is_option)


def _kind_and_choices(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """The type of one value, without None and of a list that of its items, and the words that it may be."""
    if get_origin(annotation) is Literal:
        return str, get_args(annotation)
    inner = [kind for kind in get_args(annotation) if kind is not type(None)]
    if inner:
        return _kind_and_choices(inner[0])
    return annotation, tuple(one.value for one in annotation) if issubclass(annotation, Enum) else ()


def _argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _default(found: Any) -> str:
    value = found.default
    says_nothing = value is None or value is False or value == "" or callable(value)
    return "" if says_nothing or not found.show_default else str(value)


def _help_page(command: Any, context: Any) -> str:
    found = [parameter_of(command, one) for one in command.get_params(context) if not one.hidden]
    arguments, options = ([one for one in found if one.is_option is kind] for kind in (False, True))
    commands = getattr(command, "commands", {})
    usage = [context.command_path, "[OPTIONS]", *(one.name for one in arguments), *["COMMAND ..."][: len(commands)]]
    console = Console(highlight=False, markup=False)
    with console.capture() as page:
        console.print(f"Usage: {' '.join(usage)}\n\n{_paragraphs(command)}")
        _print_rows(console, "Arguments", [(one.shown, _explained(one)) for one in arguments])
        _print_rows(console, "Options", [(one.shown, _explained(one)) for one in options])
        rows = [(name, _paragraphs(one).split("\n")[0]) for name, one in commands.items()]
        _print_rows(console, "Commands", rows)
    return "\n".join(line.rstrip() for line in page.get().splitlines())


def _paragraphs(command: Any) -> str:
    """The help text with each paragraph on one line: the terminal's width wraps it."""
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def _explained(one: Parameter) -> str:
    default = f"default: {one.default}" if one.default else ""
    notes = [note for note in ("required" if one.is_option and one.required else "", default, one.limits) if note]
    return " ".join([one.help, *([f"[{'; '.join(notes)}]"] if notes else [])])


def _print_rows(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(max_width=WIDEST, overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        console.print(f"\n{title}")
        console.print(table)
