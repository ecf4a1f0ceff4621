"""At a site's terminal: show a run before its first question is answered, and ask whether to take part."""

import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..deployment.site.policies import ApprovalPrompt

LOOK = 0.5  # seconds between two looks whether the site is asked to stop


def ask_at_terminal(folder: Path) -> "ApprovalPrompt":
    """Asks whoever sits there; None at once where nobody can."""

    def request(run: str, words: list[str]) -> bool | None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        typer.echo(f"\nThe server asks for answers in the run {run}:", err=True)
        for line in words:
            typer.echo(f"  - {line}", err=True)
        typer.echo("Take part? Nothing has been answered yet. [y/N] ", err=True, nl=False)
        return _answer(folder).strip().lower() in {"y", "yes"}

    return request


def _answer(folder: Path) -> str:
    """A line from the terminal; `fedcopl stop` is not made to wait for it."""
    from ..deployment.processes import should_stop

    while not select.select([sys.stdin], [], [], LOOK)[0]:
        if should_stop(folder):
            raise KeyboardInterrupt
    return sys.stdin.readline()
