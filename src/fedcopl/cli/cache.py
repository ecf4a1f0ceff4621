"""`fedcopl cache`: what the cache of decoded images holds, and how to be rid of it."""

from datetime import datetime

from rich.console import Console
from rich.table import Table

from ..data.cache import PixelCache
from ..plurals import counted
from .command import CommandLine
from .show import size

app = CommandLine("Show or clear the cache of decoded images.")


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
            used = f"{datetime.fromtimestamp(entry.last_used):%Y-%m-%d %H:%M}"
            table.add_row(used, f"{entry.shape[0]:,}", size(entry.size), entry.transform)
        console.print(table)
    console.print(
        f"{cache.folder}: {counted(len(entries), 'entry', 'entries')}, {size(sum(entry.size for entry in entries))}"
    )


@app.command()
def clear() -> None:
    """Remove all of it; a run that is using it is not disturbed."""
    cache = PixelCache()
    freed = sum(entry.size for entry in cache.entries())
    cache.clear()
    print(f"{cache.folder}: {size(freed)} freed")
