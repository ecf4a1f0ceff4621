"""`fedcopl new`: a folder to start from."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must be new or empty.", show_default=False)],
    sites: Annotated[int, typer.Option(help="How many sites to make folders for.")] = 2,
    backbone: Annotated[str, typer.Option(help="The CLIP model to begin with.")] = "ViT-B/32",
) -> None:
    """Write a commented starting folder: settings, classes.txt, places for images, and the next three commands."""
    from ..doctor.new_study import start_study

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for file in start_study(folder, sites, backbone):
        console.print(str(file))
    console.print(f"\nnext: read {folder / 'README.md'}")
