"""`fedcopl data` and `fedcopl cache`: data sets, and the cache of decoded images."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

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
from typer import Argument, Option

from ..algorithm.partition import counts_by_client
from ..config import Data, RunConfig, load, with_overrides
from ..data.cache import PixelCache
from ..data.catalog import DOWNLOADS, SOURCES, download_dataset, load_dataset
from ..data.dataset import CLASSES_FILE, Dataset
from ..data.overview import DatasetSurvey, survey
from ..data.partitioning import client_names, partition_dataset
from ..errors import ConfigError, DataError
from ..files import check_output_folder
from ..plurals import counted
from .command import CommandLine
from .show import print_next, size

_MAX_LISTED = 20  # skipped files that are printed without --all
_TABLES = (".csv", ".parquet", ".pq")

app = CommandLine("List, check, show and download data sets.")
cache_app = CommandLine("Show or clear the cache of decoded images.")

_NameOrPath = Annotated[
    str, Argument(help="A folder of images, a CSV or Parquet table, a settings file, or the name of a data set.")
]
_Location = Annotated[str, Argument(help="Folder, manifest or hub name, if NAME is the name of a data set.")]
_SettingPairs = Annotated[
    list[str] | None, Argument(metavar="[key=value ...]", help="Settings, such as data.clients=5.")
]


@app.command("list")
def _list_sources() -> None:
    """Print the supported data sets."""
    table = Table(box=None, pad_edge=False)
    for title in ("name", "description", "download"):
        table.add_column(title)
    for name, source in SOURCES.items():
        table.add_row(name, source.description, "yes" if name in DOWNLOADS else "")
    Console(highlight=False).print(table)
    print_next(("fedcopl", "data", "check", "NAME", "PATH"), ("fedcopl", "data", "get", "NAME", "FOLDER"))


@app.command("check")
def _check(
    name: _NameOrPath,
    folder: _Location = "",
    settings: _SettingPairs = None,
    list_all: Annotated[
        bool, Option("--all", help=f"List every skipped file, not only the first {_MAX_LISTED}.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Open every image and print counts per class and split, skipped files, and the zero-shot sentences."""
    config = _config(name, folder, settings)
    dataset = _list_dataset(config.data, name)
    from ..clip.wording import Wording

    wordings = Wording.of(dataset.wording(config.model.template)).sentences(dataset.classes)
    sentences = [" | ".join(one) for one in wordings]
    with progress_bar("opening the images") as progress:
        dataset_survey = survey(dataset, progress)
    if as_json:
        print(json.dumps(_as_json(dataset_survey, sentences)))
    else:
        _print_survey(dataset_survey, sentences, None if list_all else _MAX_LISTED)
        print_next(_after_check(name))


def _after_check(name: str) -> tuple[str, ...]:
    """Return the command to suggest after `data check` and `data show`."""
    return ("fedcopl", "run", name, "method=priors") if name.endswith(".toml") else ("fedcopl", "new", "STUDY")


@app.command("show")
def _show(
    name: _NameOrPath,
    folder: _Location = "",
    settings: _SettingPairs = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for the pictures.")] = Path("pictures"),
) -> None:
    """Write two pictures: a contact sheet, and a heat map of images per client and class."""
    from ..data.overview import contact_sheet, heat_map

    check_output_folder(out)
    config = _config(name, folder, settings)
    dataset = _list_dataset(config.data, name)
    sheet, heat = out / f"{dataset.name}-images.png", out / f"{dataset.name}-clients.png"
    contact_sheet(dataset, sheet)
    print(sheet)
    if dataset.train.labels is None:
        Console(stderr=True).print(
            f"note: {name} has no labels, so there is no heat map of clients and classes", highlight=False
        )
    else:
        parts = partition_dataset(dataset, config.data, config.seed)
        counts = counts_by_client(dataset.train.labels, parts.train, len(dataset.classes))
        heat_map(counts, dataset.classes, client_names(dataset, config.data), heat)
        print(heat)
    print_next(_after_check(name))


@app.command("get")
def _get(
    name: Annotated[str, Argument(help="Name of the data set, see `fedcopl data list`.")],
    folder: Annotated[Path, Argument(help="Folder to download to.")],
) -> None:
    """Download a data set, if its publisher allows it; the same command continues an interrupted download."""
    check_output_folder(folder)
    with progress_bar(f"downloading {name}", DownloadColumn()) as progress:
        print(download_dataset(name, folder, progress))
    print_next(("fedcopl", "data", "check", name, folder))


def _config(name: str, folder: str, settings: list[str] | None) -> RunConfig:
    """Return settings that read a data set given by name, a settings file, a table, or a folder of images."""
    pairs = [*([folder] if "=" in folder and not Path(folder).exists() else []), *(settings or [])]
    path = "" if folder in pairs else folder  # without FOLDER its place is taken by the first setting
    file = Path(name).expanduser()
    if name not in SOURCES and not file.exists() and (file.suffix or {"/", os.sep} & set(name)):
        raise DataError(f"{name}: there is no such folder, table or settings file")
    if name in SOURCES or not file.exists():
        return with_overrides({"data": {"source": name, "path": path}}, pairs, "settings")
    if path:
        raise ConfigError(f"{name}: is a path, not the name of a data set; leave out {path}")
    if file.is_dir() or file.suffix.lower() in _TABLES:
        source = "folder" if file.is_dir() else "manifest"
        return with_overrides({"data": {"source": source, "path": name}}, pairs, "settings")
    if file.suffix.lower() != ".toml":
        raise ConfigError(f"{name}: is no folder, no table ({', '.join(_TABLES)}) and no settings file (.toml)")
    config = load(file, pairs)
    if not Path(config.data.path).expanduser().exists() and (file.parent / config.data.path).exists():
        raise DataError(
            f"{config.data.path}: there is no such path; paths are relative to the current folder: cd {file.parent}"
        )
    return config


def _list_dataset(data: Data, name: str) -> Dataset:
    """List the data set; a folder of images without class names uses the classes.txt next to it."""
    try:
        return load_dataset(data)
    except DataError:
        classes = Path(name).expanduser().resolve().parent / CLASSES_FILE
        if data.path != name or data.source != "folder" or data.classes_file or not classes.is_file():
            raise
        print(f"classes: {classes}", file=sys.stderr)
        return load_dataset(data.model_copy(update={"classes_file": str(classes)}))


def _print_survey(dataset_survey: DatasetSurvey, sentences: list[str], limit: int | None) -> None:
    console, dataset = Console(highlight=False, soft_wrap=True), dataset_survey.dataset
    table = Table(box=None, pad_edge=False)
    table.add_column("class", overflow="fold")
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("zero-shot sentence", overflow="fold")
    for (name, counts), sentence in zip(dataset_survey.counts().items(), sentences, strict=True):
        table.add_row(_escaped(name), *("?" if count is None else f"{count:,}" for count in counts), _escaped(sentence))
    console.print(table)
    console.print(
        f"{dataset.name}: {counted(len(dataset.classes), 'class')}, {len(dataset.train):,} train "
        f"and {counted(len(dataset.test), 'test image')}"
        + (f", {counted(len(dataset.clients), 'client')}" if dataset.clients else "")
    )
    for note in dataset_survey.notes:
        console.print(f"note: {_escaped(note)}")
    if dataset.skipped:
        console.print(f"{len(dataset.skipped):,} skipped:")
    for name, reason in dataset.skipped[:limit]:
        console.print(f"  {_escaped(name)}: {_escaped(reason)}")
    if limit is not None and len(dataset.skipped) > limit:
        console.print(f"  and {len(dataset.skipped) - limit:,} more; --all lists every one")


def _escaped(text: str) -> str:
    """Escape line breaks, and opening square brackets, which are markup for rich."""
    return text.replace("[", r"\[").replace("\n", "\\n")


def _as_json(dataset_survey: DatasetSurvey, sentences: list[str]) -> dict[str, object]:
    dataset = dataset_survey.dataset
    return {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": [
            {"name": name, "train": train, "test": test, "sentence": sentence}
            for (name, (train, test)), sentence in zip(dataset_survey.counts().items(), sentences, strict=True)
        ],
        "clients": list(dataset.clients),
        "notes": list(dataset_survey.notes),
        "skipped": [{"image": name, "reason": reason} for name, reason in dataset.skipped],
    }


@contextmanager
def progress_bar(
    description: str, counter: ProgressColumn | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on a terminal; print nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), counter or MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@cache_app.command("info")
def _info() -> None:
    """Print the folder and the entries of the cache, the most recently used first."""
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
    print_next("fedcopl cache clear  # a run fills it again" if entries else "fedcopl run  # fills the cache")


@cache_app.command("clear")
def _clear() -> None:
    """Delete the cache; running programs that use it are not affected."""
    cache = PixelCache()
    freed = sum(entry.size for entry in cache.entries())
    cache.clear()
    print(f"{cache.folder}: {size(freed)} freed")
    print_next("fedcopl run  # fills the cache again")
