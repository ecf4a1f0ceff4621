"""`fedcopl report`: one page about a run, or one that compares several."""

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..files import check_output_file

if TYPE_CHECKING:
    from ..report.comparison import ComparedRun

_COMPARISON = Path("comparison.html")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, finished or not; a folder that holds runs stands for all of them.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page to write; without it RUN/report.html, or comparison.html.", show_default=False
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a self-contained HTML page about a run, or one that compares several.

    RUN is the folder of a run, finished or not, or a folder that holds runs and stands for all of them.
    """
    if out is not None:
        check_output_file(out)
    from ..report.comparison import write_comparison
    from ..report.run_page import write_report

    runs = _read(folders)
    if len(runs) == 1:
        page = write_report(runs[0].folder, out)
    else:
        page = out or _COMPARISON
        write_comparison(page, runs)
    print(page)
    if show and not webbrowser.open(page.resolve().as_uri()):
        print("note: no browser was found to open it with", file=sys.stderr)


def _read(folders: list[Path]) -> "list[ComparedRun]":
    """Read each run once; runs without a finished round are skipped unless requested by name."""
    from ..report.comparison import ComparedRun
    from ..run.folder import NothingYet, find_runs, read_so_far

    requested = {folder.resolve() for folder in folders}
    paths: dict[Path, Path] = {}
    for path in (path for folder in folders for path in find_runs(folder)):
        paths.setdefault(path.resolve(), path)
    runs, empty = [], []
    for resolved, path in paths.items():
        try:
            runs.append(ComparedRun(path, read_so_far(path)))
        except NothingYet as error:
            if resolved in requested:
                raise
            empty.append(error)
    if not runs:
        raise empty[0]
    for nothing in empty:
        print(f"note: {nothing}", file=sys.stderr)
    return runs
