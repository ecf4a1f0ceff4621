"""`fedcopl new` and `fedcopl doctor`: a folder to start from, and whether everything is there."""

import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..plurals import counted
from .command import PluginFiles
from .data import progress_bar
from .show import print_next

if TYPE_CHECKING:
    from ..doctor import Finding


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must be new or empty.", show_default=False)],
    sites: Annotated[int, typer.Option(help="How many sites to make folders for.")] = 2,
    backbone: Annotated[str, typer.Option(help="The CLIP model to begin with.")] = "ViT-B/32",
) -> None:
    """Write a commented starting folder: settings, classes.txt, places for images, and the next commands."""
    from ..doctor.new_study import start_study

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for file in start_study(folder, sites, backbone):
        console.print(str(file))
    console.print(f"\nPut the images of each site into its folder and your classes into {folder / 'classes.txt'}.")
    print_next(f"cd {shlex.quote(str(folder))} && fedcopl doctor")


SIGNS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


def doctor(
    where: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR|settings.toml]",
            help="A study's folder or settings, or the folder of a site or server, whose keys and certificates may end "
            "soon; without it, settings.toml here if there is one.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[str | None, typer.Option(help="HOST:PORT of a server to reach.", show_default=False)] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="The server's certificate, where it made its own.", show_default=False)
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="First do what is safe: rename folders whose names are slips.")
    ] = False,
    plugin: PluginFiles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Check machine, packages, device, disk, model, images and server, and say what to do about each finding."""
    from ..doctor import diagnose, settings_file
    from ..doctor import fix as apply_fixes

    for done in apply_fixes(where) if fix else ():
        print(f"fixed: {_plain(done)}", file=sys.stderr)
    with progress_bar("opening the images") as progress:
        found = list(diagnose(where, server=server, certificate=certificate, progress=progress))
    levels = Counter(finding.level for finding in found)
    if as_json:
        print(json.dumps({"ok": not levels["problem"], "findings": [finding._asdict() for finding in found]}))
    else:
        _print(found)
        print(f"\n{counted(levels['problem'], 'problem')}, {counted(levels['note'], 'note')}")
        file = settings_file(where)
        if levels["problem"]:
            print_next("fix the problems above, then run fedcopl doctor again")
        elif file is not None:
            print_next(("fedcopl", "run", file, "method=priors"))
        elif where is None:
            print_next(("fedcopl", "new", "STUDY"), ("fedcopl", "run"))
    if levels["problem"]:
        raise typer.Exit(1)


def _print(found: list["Finding"]) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for finding in found:
        console.print(f"{SIGNS[finding.level]} {finding.subject}: {_plain(finding.detail)}")
        if finding.advice:
            console.print(f"        -> {finding.advice}")


def _plain(text: str) -> str:
    """File names may hold anything, also what steers a terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
