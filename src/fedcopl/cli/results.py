"""`fedcopl results`: what a place's store holds, and how to take it elsewhere."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import RunFolderError
from ..store import FILE_NAME, ResultStore, StoredRun, run_row
from .show import percent


def results(
    place: Annotated[Path, typer.Option(help="Folder of the store, as given to the command that made it.")] = Path(
        "results"
    ),
    export: Annotated[
        Path | None,
        typer.Option(help="Write FILE.csv or FILE.parquet, and FILE-rounds beside it.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write a folder that TensorBoard shows.", show_default=False)
    ] = None,
    mlflow: Annotated[
        Path | None, typer.Option(help="Write a folder with a database that MLflow shows.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of the table.")] = False,
) -> None:
    """List the runs of a results store, or export them."""
    store = ResultStore(place / FILE_NAME)
    if not store.path.exists():
        raise RunFolderError(f"{store.path}: there are no results; name the folder that has some with --place")
    runs = store.runs()
    written = [*_export(store, export), *_write(runs, tensorboard, mlflow)]
    if as_json:
        print(json.dumps([run_row(run) for run in runs]))
    elif written:
        print("\n".join(written))
    else:
        print_runs(runs, store.path)


def _export(store: ResultStore, file: Path | None) -> list[str]:
    if file is None:
        return []
    store.export(file)
    return [f"{file} and {file.stem}-rounds{file.suffix} beside it"]


def _write(runs: list[StoredRun], tensorboard: Path | None, mlflow: Path | None) -> list[str]:
    from ..experiments.writers import DATABASE, write_mlflow, write_tensorboard

    told = []
    if tensorboard is not None:
        count = write_tensorboard(runs, tensorboard)
        told.append(f"{tensorboard}: {count} runs; look at them with: tensorboard --logdir {tensorboard}")
    if mlflow is not None:
        count = write_mlflow(runs, mlflow)
        look = f"mlflow ui --backend-store-uri sqlite:///{mlflow / DATABASE}"
        told.append(f"{mlflow}: {count} new runs; look at them with: {look}")
    return told


def print_runs(runs: list[StoredRun], path: Path) -> None:
    """A row for each run, then what went wrong."""
    console = Console(highlight=False, markup=False)
    if runs:
        console.print(runs_table(runs))
    failed = [run for run in runs if not run.is_done]
    for run in failed:
        console.print(f"{run.key} failed: {printable((run.error or '').splitlines()[0])}", soft_wrap=True)
    seconds = sum(run.seconds for run in runs)
    console.print(
        f"{path}: {len(runs) - len(failed)} done, {len(failed)} failed, {seconds:.0f} s in all", soft_wrap=True
    )


def runs_table(runs: list[StoredRun]) -> Table:
    table = Table(title="accuracy in %, mean over clients", box=None, pad_edge=False)
    table.add_column("key", no_wrap=True)
    for name in ("name", "method", "labeler", "data"):
        table.add_column(name)
    for name in ("seed", "zero-shot", "final", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        settings, outcome = run.settings, run.results
        names = (run.key, *(settings.get(name) for name in ("name", "method", "labeler")))
        about = (*names, settings.get("data", {}).get("source"), settings.get("seed"))
        accuracies = (
            ("failed", "")
            if outcome is None
            else (percent(outcome[when]["macro"], "") for when in ("zero_shot", "final"))
        )
        table.add_row(*(Text(printable(str(cell))) for cell in (*about, *accuracies, f"{run.seconds:.0f}")))
    return table


def printable(text: str) -> str:
    """Without the codes that would move a terminal's cursor: names come from elsewhere."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
