"""Write docs/commands.md from the commands themselves.

.venv/bin/python tools/commands_page.py
"""

from collections.abc import Iterator
from pathlib import Path

import click
from typer.main import get_command

from fedcopl.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Commands

Made by `tools/commands_page.py` from the commands themselves; a test holds it to that. `--help` after a
command says the same.
"""


def page() -> str:
    return "\n".join([HEAD, *(section(name, command) for name, command in commands("fedcopl", get_command(app)))])


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name; groups are only a part of names."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for part, inner in command.commands.items():
        yield from commands(f"{name} {part}", inner)


def section(name: str, command: click.Command) -> str:
    about = " ".join((command.help or "").split())
    rows = [f"| {cell(title)} | {cell(text)} |" for title, text in parameters(command)]
    table = "\n".join(["| | |", "|---|---|", *rows]) if rows else ""
    return f"## {name}\n\n{cell(about)}\n\n{table}\n"


def parameters(command: click.Command) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if not parameter.hidden:
                yield (
                    ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts)),
                    described(parameter),
                )
        else:
            yield f"`{parameter.make_metavar(click.Context(command))}`", getattr(parameter, "help", "") or ""


def described(option: click.Option) -> str:
    """What it is, the words it takes, and its default where there is one worth telling."""
    words = f" ({', '.join(map(str, option.type.choices))})" if isinstance(option.type, click.Choice) else ""
    value = option.default
    told = value is not None and value != "" and value is not False and not callable(value) and option.show_default
    return f"{option.help or ''}{words}" + (f" Default: {value}." if told else "")


def cell(text: str) -> str:
    """Text as Markdown shows it: what looks like a tag is not one, a bar does not end a cell."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
