"""`fedcopl cache`: what the cache of decoded images holds, and how to be rid of it."""

from datetime import datetime

import typer
from rich.console import Console
from rich.table import Table

from ..data.cache import ENTRY, PIXELS, Entry, PixelCache
from .show import size

app = typer.Typer(help="Show or clear the cache of decoded images.", no_args_is_help=True)


@app.command()
def info() -> None:
    """Print where the cache lies and what is in it, the last used first."""
    cache, console = PixelCache(), Console(highlight=False, soft_wrap=True)
    entries = cache.entries()
    if entries:
        table = Table(box=None, pad_edge=False)
        table.add_column("last used")
        table.add_column("images", justify="right")
        table.add_column("size", justify="right")
        table.add_column("transform")
        for entry in entries:
            table.add_row(_last_used(entry), f"{entry.shape[0]:,}", size(_bytes(entry)), entry.transform)
        console.print(table)
    console.print(f"{cache.folder}: {len(entries)} entries, {size(sum(map(_bytes, entries)))}")


@app.command()
def clear() -> None:
    """Remove all of it; a run that is using it is not disturbed."""
    cache = PixelCache()
    freed = sum(map(_bytes, cache.entries()))
    cache.clear()
    print(f"{cache.folder}: {size(freed)} freed")


def _last_used(entry: Entry) -> str:
    return f"{datetime.fromtimestamp((entry.folder / ENTRY).stat().st_mtime):%Y-%m-%d %H:%M}"


def _bytes(entry: Entry) -> int:
    return (entry.folder / PIXELS).stat().st_size
