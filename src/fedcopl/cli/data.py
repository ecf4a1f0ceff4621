"""`fedcopl data`: which data sets there are, what is in one, what it looks like."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ..algorithm.partition import counts_by_client
from ..config import RunConfig, with_typed
from ..data.catalog import SOURCES, load_dataset
from ..data.dataset import Dataset
from ..data.overview import DatasetSurvey, survey
from ..data.sharing_out import client_names, share_out

MOST_LISTED = 20  # images left out that are named one by one; --json names all

app = typer.Typer(help="List, check, show and fetch data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the data set, see `fedcopl data list`.", show_default=False)]
Where = Annotated[str, typer.Argument(help="Its folder, manifest or hub name; the digits need none.")]
Pairs = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", show_default=False)]


@app.command("list")
def list_sources() -> None:
    """Print the data sets that can be read."""
    from ..data.download import DOWNLOADS

    table = Table(box=None, pad_edge=False)
    for title in ("name", "what it is", "get"):
        table.add_column(title)
    for name, source in SOURCES.items():
        table.add_row(name, source.about, "yes" if name in DOWNLOADS else "")
    Console(highlight=False).print(table)


@app.command()
def check(
    name: Name,
    folder: Where = "",
    settings: Pairs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Open every image and print counts per class and split, what is broken, and the zero-shot sentences."""
    config = _config(name, folder, settings)
    dataset = load_dataset(config.data)
    sentences = _sentences(dataset, config)
    with progress_bar("opening the images") as progress:
        found = survey(dataset, progress)
    if as_json:
        print(json.dumps(_as_json(found, sentences)))
    else:
        _print(found, sentences)


@app.command()
def show(
    name: Name,
    folder: Where = "",
    settings: Pairs = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("pictures"),
) -> None:
    """Write a contact sheet, and who holds how many images of each class, as pictures."""
    from ..data.overview import contact_sheet, heat_map

    config = _config(name, folder, settings)
    dataset = load_dataset(config.data)
    sheet, heat = out / f"{name}-images.png", out / f"{name}-clients.png"
    contact_sheet(dataset, sheet)
    print(sheet)
    if dataset.train.labels is None:
        Console(stderr=True).print(f"{name} has no labels, so nobody knows who holds what", highlight=False)
        return
    parts = share_out(dataset, config.data, config.seed)
    counts = counts_by_client(dataset.train.labels, parts.train, len(dataset.classes))
    heat_map(counts, dataset.classes, client_names(dataset, config.data), heat)
    print(heat)


@app.command()
def get(name: Name, folder: Annotated[Path, typer.Argument(help="Where to put it.", show_default=False)]) -> None:
    """Download a data set, where its publisher allows it; a stopped download goes on where it was."""
    from ..data.download import get as download

    with progress_bar(f"fetching {name}", DownloadColumn()) as progress:
        print(download(name, folder, progress))


def _config(name: str, folder: str, settings: list[str] | None) -> RunConfig:
    """The defaults with these on top; a DIR that is a key=value belongs to the settings."""
    pairs = [*([folder] if "=" in folder and not Path(folder).exists() else []), *(settings or [])]
    path = "" if folder in pairs else folder
    return with_typed({"data": {"source": name, "path": path}}, pairs, "settings")


def _sentences(dataset: Dataset, config: RunConfig) -> list[str]:
    from ..clip.wording import Wording  # these are the very sentences of a run

    wordings = Wording.of(dataset.wording(config.model.template)).sentences(dataset.classes)
    return [" | ".join(sentences) for sentences in wordings]


def _print(found: DatasetSurvey, sentences: list[str]) -> None:
    console, dataset = Console(highlight=False, soft_wrap=True), found.dataset
    table = Table(box=None, pad_edge=False)
    table.add_column("class", overflow="fold")
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("zero-shot sentence", overflow="fold")
    for (name, counts), sentence in zip(found.counts().items(), sentences, strict=True):
        table.add_row(_plain(name), *("?" if count is None else f"{count:,}" for count in counts), _plain(sentence))
    console.print(table)
    console.print(
        f"{dataset.name}: {len(dataset.classes)} classes, {len(dataset.train):,} train "
        f"and {len(dataset.test):,} test images" + (f", {len(dataset.clients)} clients" if dataset.clients else "")
    )
    for note in found.notes:
        console.print(f"note: {_plain(note)}")
    if dataset.skipped:
        console.print(f"{len(dataset.skipped):,} left out:")
    for name, reason in dataset.skipped[:MOST_LISTED]:
        console.print(f"  {_plain(name)}: {_plain(reason)}")
    if len(dataset.skipped) > MOST_LISTED:
        console.print(f"  and {len(dataset.skipped) - MOST_LISTED:,} more; --json names all")


def _plain(text: str) -> str:
    """Square brackets are markup to rich, and a line break in a name would look like another name."""
    return text.replace("[", r"\[").replace("\n", "\\n")


def _as_json(found: DatasetSurvey, sentences: list[str]) -> dict[str, object]:
    dataset = found.dataset
    return {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": [
            {"name": name, "train": train, "test": test, "sentence": sentence}
            for (name, (train, test)), sentence in zip(found.counts().items(), sentences, strict=True)
        ],
        "clients": list(dataset.clients),
        "notes": list(found.notes),
        "skipped": [{"image": name, "reason": reason} for name, reason in dataset.skipped],
    }


@contextmanager
def progress_bar(what: str, counter: ProgressColumn | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """A moving bar on a terminal, nothing anywhere else."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), counter or MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
