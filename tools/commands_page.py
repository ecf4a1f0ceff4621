"""Write docs/commands.md from the commands themselves.

.venv/bin/python tools/commands_page.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from fedcopl.cli import app
from fedcopl.cli.command import Parameter, parameter_of

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Commands

Made by `tools/commands_page.py` from the commands themselves; a test holds it to that. `--help` after a
command says the same.
"""


def page() -> str:
    return "\n".join([HEAD, *(section(name, command) for name, command in commands("fedcopl", get_command(app)))])


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its whole name; groups are only a part of names."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, inner in command.commands.items():
        yield from commands(f"{name} {part}", inner)


def section(name: str, command: Any) -> str:
    about = " ".join((command.help or "").split())
    found = (parameter_of(command, one) for one in command.params if not one.hidden)
    rows = [f"| `{cell(one.shown)}` | {cell(explained(one))} |" for one in found]
    table = "\n".join(["| | |", "|---|---|", *rows]) if rows else ""
    return f"## {name}\n\n{cell(about)}\n\n{table}\n"


def explained(one: Parameter) -> str:
    return f"{one.help} Default: {one.default}." if one.default else one.help


def cell(text: str) -> str:
    """Text as Markdown shows it: what looks like a tag is not one, a bar does not end a cell."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
