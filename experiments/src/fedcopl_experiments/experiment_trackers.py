"""Export of stored runs for TensorBoard, MLflow and Weights & Biases, to local files only.

Step 0 is zero-shot, step 1 the first round.
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.parse import quote

from fedcopl.errors import ConfigError, FedCoPLError, RunFolderError

from .flat_settings import flat
from .store import StoredRun, accuracies, round_rows

EXPERIMENT = "fedcopl"
KEY_TAG = "fedcopl.key"
DATABASE = "mlflow.db"
OFFLINE = "offline-run-*-"  # followed by the key: the folder name that `wandb sync` expects
BATCH = 1000  # metrics in one call of MLflow
MAX_SETTING_LENGTH = 6000  # characters, in MLflow
EVENTS = "events.out.tfevents.*"
TENSORBOARD = (
    "tensorboard.summary.writer.event_file_writer",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.plugins.hparams.summary_v2",
)


def write_tensorboard(runs: Iterable[StoredRun], folder: Path) -> int:
    """Write a folder of events for each finished run, with its settings as hyperparameters; return their number."""
    files, protos, hyper = _import("tensorboard", TENSORBOARD)
    done = [run for run in runs if run.is_done]
    for run in done:
        settings = hyper.hparams_pb(_plain_settings(run), trial_id=run.key, start_time_secs=_time(run.started))
        events = [protos.Event(wall_time=_time(run.started), summary=settings), *_events(run, protos)]
        _write_events(_folder_of(run, folder), events, files.EventFileWriter)
    return len(done)


def _folder_of(run: StoredRun, folder: Path) -> Path:
    return folder / f"{quote(str(run.settings.get('name', 'run')), safe='')}-{quote(run.key, safe='')}"


def _write_events(folder: Path, events: Iterable[Any], make_writer: Callable[[str], Any]) -> None:
    old = list(folder.glob(EVENTS))
    try:
        writer = make_writer(str(folder))
        for event in events:
            writer.add_event(event)
        writer.close()
        for file in old:  # otherwise TensorBoard shows the run twice
            file.unlink()
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _events(run: StoredRun, protos: Any) -> Iterator[Any]:
    for step, metric, value, when in _metrics(run):
        event = protos.Event(wall_time=when, step=step)
        event.summary.value.add(tag=metric, simple_value=value)
        yield event


def write_mlflow(runs: Iterable[StoredRun], folder: Path) -> int:
    """Add all finished runs that are missing to the database `mlflow.db`; return their number."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import, which would send telemetry
    database = folder / DATABASE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tracking, entities = _import("mlflow", ["mlflow.tracking", "mlflow.entities"])
        with _quiet():
            client = tracking.MlflowClient(tracking_uri=f"sqlite:///{database.absolute()}")
            return _add(client, entities, [run for run in runs if run.is_done], folder)
    except FedCoPLError:
        raise
    except Exception as error:  # of MLflow, its database or the system: no common base class
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunFolderError(f"{database}: cannot be written for MLflow: {why}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence MLflow's log of its database and its warnings."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _add(client: Any, entities: Any, runs: Sequence[StoredRun], folder: Path) -> int:
    experiment = _experiment(client, folder)
    new = [run for run in runs if not _is_stored(client, experiment, run)]
    for run in new:
        _log(client, entities, experiment, run)
    return len(new)


def _import(extra: str, modules: Sequence[str]) -> list[Any]:
    try:
        return [import_module(module) for module in modules]
    except ImportError as error:
        raise ConfigError(
            f"writing for {extra} needs its package: pip install 'fedcopl-experiments[{extra}]' ({error})"
        ) from error


def write_wandb(runs: Iterable[StoredRun], folder: Path) -> int:
    """Add a run folder to `folder/wandb` for each finished run that is missing; return their number.

    Always offline: only `wandb sync` uploads them. Each is written to a temporary folder first and renamed.
    """
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # before the import, which would send telemetry
    temporary, complete = folder / ".unfinished", folder / "wandb"
    try:
        new = [run for run in runs if run.is_done and not any(complete.glob(OFFLINE + _tag(run.key)))]
        complete.mkdir(parents=True, exist_ok=True)
        [wandb] = _import("wandb", ["wandb"])
        for run in new:
            rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            _log_offline(wandb, run, temporary)
            [written] = temporary.glob(f"wandb/{OFFLINE}{_tag(run.key)}")
            written.rename(complete / written.name)
        rmtree(temporary, ignore_errors=True)
        return len(new)
    except FedCoPLError:
        raise
    except Exception as error:  # of wandb and of its process: no common base class
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunFolderError(f"{complete}: cannot be written for Weights & Biases: {why}") from error


def _log_offline(wandb: Any, run: StoredRun, folder: Path) -> None:
    """Log one run with its original times."""
    steps: dict[int, dict[str, float]] = {}
    for step, metric, value, when in _metrics(run):
        steps.setdefault(step, {})[metric] = value
        steps[step]["_timestamp"] = when
    quiet = wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        host=run.host,
        x_start_time=_time(run.started),
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    with wandb.init(
        project=EXPERIMENT,
        id=_tag(run.key),
        name=run.settings.get("name"),
        dir=str(folder),
        config={"title": run.title, **flat(run.settings), "fedcopl.code": run.code, "fedcopl.folder": run.folder},
        settings=quiet,
        reinit="create_new",
    ) as logger:
        for step, values in sorted(steps.items()):
            logger.log(values, step=step)


def _experiment(client: Any, folder: Path) -> str:
    existing = client.get_experiment_by_name(EXPERIMENT)
    artifacts = (folder / "artifacts").absolute().as_uri()
    return str(
        existing.experiment_id if existing else client.create_experiment(EXPERIMENT, artifact_location=artifacts)
    )


def _is_stored(client: Any, experiment: str, run: StoredRun) -> bool:
    """Return whether the run was written completely; an incomplete one is removed."""
    stored = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{_tag(run.key)}'")
    for incomplete in (old for old in stored if old.info.status != "FINISHED"):
        client.delete_run(incomplete.info.run_id)
    return any(old.info.status == "FINISHED" for old in stored)


def _tag(key: str) -> str:
    """Quote a key for use in a filter."""
    return quote(key, safe="")


def _log(client: Any, entities: Any, experiment: str, run: StoredRun) -> None:
    start = round(1000 * _time(run.started))
    facts = {"title": run.title, "code": run.code, "host": run.host, "folder": run.folder}
    tags = {KEY_TAG: _tag(run.key), **{f"fedcopl.{name}": value for name, value in facts.items()}}
    run_id = client.create_run(experiment, start, tags, run.settings.get("name")).info.run_id
    params = [entities.Param(name, str(value)[:MAX_SETTING_LENGTH]) for name, value in flat(run.settings).items()]
    metrics = [entities.Metric(metric, value, round(1000 * when), step) for step, metric, value, when in _metrics(run)]
    client.log_batch(run_id, params=params)
    for first in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[first : first + BATCH])
    client.set_terminated(run_id, "FINISHED", round(1000 * _time(run.finished)))


def _metrics(run: StoredRun) -> Iterator[tuple[int, str, float, float]]:
    """Yield (step, metric, value, time) of all measurements."""
    assert run.outcome is not None
    start = _time(run.started)
    elapsed = {record.round: record.seconds for record in run.outcome.rounds}
    for kind, share in accuracies(run.outcome.zero_shot).items():
        if share is not None:
            yield 0, kind, share, start
    for number, metric, value in round_rows(run.outcome):
        yield number + 1, metric, float(value), start + elapsed[number]


def _plain_settings(run: StoredRun) -> dict[str, bool | int | float | str]:
    settings = {"title": run.title, **flat(run.settings)}
    return {name: value for name, value in settings.items() if isinstance(value, bool | int | float | str)}


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
