"""The command `fedcopl results`: list and export the runs of a results store."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcopl.errors import RunFolderError
from fedcopl.plurals import counted

from ..flat_settings import flat
from .grid_display import print_next, share_text

if TYPE_CHECKING:
    from ..store import ResultStore, StoredRun

NOT_GROUPED = {"method", "labeler", "seed", "name", "model.threads", "model.memory"}


def results(
    folder: Annotated[
        Path, typer.Option("--place", help="Folder of the results store, as given to `fedcopl reproduce`.")
    ] = Path("results"),
    export: Annotated[
        Path | None,
        typer.Option(help="Write FILE.csv or FILE.parquet, and FILE-rounds in the same folder.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write a log folder for TensorBoard.", show_default=False)
    ] = None,
    mlflow: Annotated[
        Path | None, typer.Option(help="Write a folder with a database for MLflow.", show_default=False)
    ] = None,
    wandb: Annotated[
        Path | None,
        typer.Option(help="Write a folder of offline runs for Weights & Biases.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of the table.")] = False,
) -> None:
    """List the runs of a results store, or export them."""
    from ..store import FILE_NAME, ResultStore, run_row

    store = ResultStore(folder / FILE_NAME)
    if not store.path.exists():
        raise RunFolderError(f"{store.path}: there are no results; give their folder with --place")
    runs = store.runs()
    written = [*_export(store, export), *_write(runs, tensorboard, mlflow, wandb)]
    if as_json:
        print(json.dumps([run_row(run) for run in runs]))
    elif written:
        print("\n".join(written))
    else:
        print_runs(runs, store.path)
        print_next(shlex.join(["fedcopl", "results", "--place", str(folder), "--export", "runs.csv"]))


def _export(store: "ResultStore", file: Path | None) -> list[str]:
    if file is None:
        return []
    store.export(file)
    return [f"{file} and {file.stem}-rounds{file.suffix} in the same folder"]


def _write(runs: "list[StoredRun]", tensorboard: Path | None, mlflow: Path | None, wandb: Path | None) -> list[str]:
    from ..experiment_trackers import DATABASE, write_mlflow, write_tensorboard, write_wandb

    lines = []
    if tensorboard is not None:
        count = write_tensorboard(runs, tensorboard)
        lines.append(f"{tensorboard}: {counted(count, 'run')}; view: tensorboard --logdir {tensorboard}")
    if mlflow is not None:
        count = write_mlflow(runs, mlflow)
        view = f"mlflow ui --backend-store-uri sqlite:///{mlflow / DATABASE}"
        lines.append(f"{mlflow}: {counted(count, 'new run')}; view: {view}")
    if wandb is not None:
        count = write_wandb(runs, wandb)
        lines.append(
            f"{wandb}: {counted(count, 'new run')}, on this machine only; upload: wandb sync {wandb}/wandb/offline-*"
        )
    return lines


def print_runs(runs: "list[StoredRun]", path: Path) -> None:
    """Print the runs grouped by their settings, then the failures."""
    console = Console(highlight=False, markup=False)
    for settings, group in group_by_settings(runs).items():
        if settings:
            console.print(printable(settings), soft_wrap=True)
        console.print(runs_table(group))
        console.print()
    failed = [run for run in runs if not run.is_done]
    for run in failed:
        console.print(f"{run.key} failed: {printable(run.reason)}", soft_wrap=True)
    counts = f"{len(runs) - len(failed)} done, {len(failed)} failed"
    console.print(f"{path}: {counts}, {sum(run.seconds for run in runs):.0f} s in total", soft_wrap=True)


def runs_table(runs: "list[StoredRun]") -> Table:
    """Return a table with a row for each run; accuracy in %, mean over clients."""
    table = Table(box=None, pad_edge=False)
    for name, width in {"key": 16, "method": 24}.items():
        table.add_column(name, min_width=width)
    for name, width in {"seed": 4, "zero-shot %": 11, "final %": 7, "seconds": 7}.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for run in runs:
        cells = (run.key, run.title, run.settings.get("seed"), *_accuracies(run), f"{run.seconds:.0f}")
        table.add_row(*(Text(printable(str(cell))) for cell in cells))
    return table


def group_by_settings(runs: "list[StoredRun]") -> "dict[str, list[StoredRun]]":
    """Group the runs by the settings in which they differ, as `partition=iid, clients=5`."""
    names = differing_settings([flat(run.settings) for run in runs])
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        settings = flat(run.settings)
        description = ", ".join(f"{name.split('.')[-1]}={settings[name]}" for name in names if name in settings)
        groups.setdefault(description, []).append(run)
    return groups


def differing_settings(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that differ, except those that are columns of the table or have no effect."""
    names = dict.fromkeys(name for run_settings in settings for name in run_settings if name not in NOT_GROUPED)
    return [name for name in names if any(other.get(name) != settings[0].get(name) for other in settings)]


def _accuracies(run: "StoredRun") -> tuple[str, str]:
    if run.outcome is None:
        return "", "failed"
    return share_text(run.outcome.zero_shot.macro), share_text(run.outcome.final.macro)


def printable(text: str) -> str:
    """Replace control characters, which file names and messages may contain."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
