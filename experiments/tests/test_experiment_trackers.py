"""Exports are read back by TensorBoard, MLflow and Weights & Biases."""

import json
import os
import struct
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from fedcopl.errors import ConfigError, RunFolderError
from fedcopl_experiments.experiment_trackers import write_mlflow, write_tensorboard, write_wandb
from stored_runs import failed, stored

RUNS = [stored("k1", name="first"), stored("k2", final=0.5, seed=2), failed("k3")]
MACRO = [(0, 0.5), (1, 0.625), (2, 0.75)]  # zero-shot, first and second round


def board(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return reader


def points(events):
    return [(event.step, round(event.value, 6)) for event in events]


def test_tensorboard_has_all_measurements(tmp_path):
    assert write_tensorboard(RUNS, tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first-k1", "run-k2"]
    first = board(tmp_path / "first-k1")
    assert points(first.Scalars("macro")) == MACRO
    assert points(first.Scalars("loss")) == [(2, 0.25)]
    assert points(first.Scalars("drift.visual.cosine")) == [(1, 0.5), (2, 0.5)]
    # The rounds ended 1 and 3 seconds after the start of the run.
    assert [event.wall_time - first.Scalars("macro")[0].wall_time for event in first.Scalars("macro")] == [0, 1, 3]


def test_tensorboard_has_the_settings(tmp_path):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    write_tensorboard(RUNS, tmp_path)
    metadata = board(tmp_path / "run-k2").SummaryMetadata("_hparams_/session_start_info")
    settings = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info.hparams
    assert settings["seed"].number_value == 2
    assert settings["title"].string_value == "FedCoPL"
    assert settings["data.partition"].string_value == "dirichlet"
    assert settings["labels.global_allocation"].bool_value is True


def test_tensorboard_shows_a_run_written_twice_once(tmp_path):
    for _ in range(2):
        write_tensorboard(RUNS, tmp_path)
    assert len(list((tmp_path / "first-k1").iterdir())) == 1
    assert points(board(tmp_path / "first-k1").Scalars("macro")) == MACRO


def test_hostile_name_stays_in_the_folder(tmp_path):
    run = stored("../../k")
    write_tensorboard([replace(run, settings=dict(run.settings) | {"name": "../../../evil"})], tmp_path / "board")
    assert [path.name for path in tmp_path.iterdir()] == ["board"]
    assert len(list((tmp_path / "board").iterdir())) == 1


def test_tensorboard_needs_no_torch(tmp_path):
    script = (
        "import sys; sys.path.append(sys.argv[1]); from pathlib import Path\n"
        "from stored_runs import stored\n"
        "from fedcopl_experiments.experiment_trackers import write_tensorboard\n"
        "write_tensorboard([stored()], Path(sys.argv[2]))\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / "board")]
    subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def mlflow_folder(tmp_path_factory):
    """A database to which runs were added twice."""
    folder = tmp_path_factory.mktemp("mlflow") / "it's here"
    assert write_mlflow(RUNS[:1], folder) == 1
    assert write_mlflow(RUNS, folder) == 1
    return folder


@pytest.fixture
def client(mlflow_folder):
    from mlflow.tracking import MlflowClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield MlflowClient(tracking_uri=f"sqlite:///{mlflow_folder / 'mlflow.db'}")


@pytest.mark.slow
def test_mlflow_has_all_measurements(client):
    experiment = client.get_experiment_by_name("fedcopl")
    runs = {run.data.tags["fedcopl.key"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"k1", "k2"}
    first = runs["k1"]
    assert first.info.run_name == "first"
    assert first.info.status == "FINISHED"
    assert first.info.end_time - first.info.start_time == 55_000  # 03:04:05 to 03:05:00
    assert first.data.params["data.beta"] == "0.1"
    assert first.data.tags["fedcopl.title"] == "FedCoPL"
    assert first.data.metrics["macro"] == 0.75
    history = client.get_metric_history(first.info.run_id, "macro")
    assert [(point.step, point.value) for point in history] == MACRO


@pytest.mark.slow
def test_incomplete_mlflow_run_is_written_again(client, mlflow_folder):
    experiment = client.get_experiment_by_name("fedcopl").experiment_id
    half = client.create_run(experiment, tags={"fedcopl.key": "k9"}).info.run_id
    assert write_mlflow([stored("k9")], mlflow_folder) == 1
    [run] = client.search_runs([experiment], "tags.`fedcopl.key` = 'k9'")
    assert run.info.run_id != half
    assert run.info.status == "FINISHED"


def test_mlflow_telemetry_is_off(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        write_mlflow([], tmp_path / "file")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.slow
def test_invalid_mlflow_database(tmp_path):
    (tmp_path / "mlflow.db").write_text("no database " * 100)
    with pytest.raises(RunFolderError, match=r"mlflow\.db: cannot be written for MLflow: .*not a database"):
        write_mlflow(RUNS, tmp_path)


def offline_records(file):
    """Yield the records of a .wandb file: a header of 7 bytes, then LevelDB's log format in blocks of 32 kB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, message = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block that is too small for a header is empty
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        message += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # a complete record, or the last part of one
            yield Record.FromString(message)
            message = b""


@pytest.mark.slow
def test_wandb_has_all_measurements_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")  # is ignored: nothing is sent
    assert write_wandb(RUNS[:1], tmp_path) == 1
    assert write_wandb(RUNS, tmp_path) == 1  # neither runs that exist nor failed runs are written
    assert sorted(path.name.split("-")[-1] for path in (tmp_path / "wandb").iterdir()) == ["k1", "k2"]
    assert [path.name for path in tmp_path.iterdir()] == ["wandb"]
    [file] = tmp_path.glob("wandb/offline-run-*-k1/*.wandb")
    records = list(offline_records(file))
    [run] = [record.run for record in records if record.HasField("run")]
    settings = {setting.key: json.loads(setting.value_json) for setting in run.config.update}
    assert (run.run_id, run.display_name, run.project) == ("k1", "first", "fedcopl")
    assert (
        settings["title"] == "FedCoPL" and settings["data.beta"] == 0.1 and settings["labels.global_allocation"] is True
    )
    rows = [
        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(row["_step"], row["macro"]) for row in rows] == MACRO
    assert [row["_timestamp"] - rows[0]["_timestamp"] for row in rows] == [0, 1, 3]
    assert "exit" in {record.WhichOneof("record_type") for record in records}  # the file is complete


WRITERS = {"tensorboard": write_tensorboard, "mlflow": write_mlflow, "wandb": write_wandb}


@pytest.mark.parametrize(("extra", "write"), WRITERS.items(), ids=WRITERS)
def test_missing_extra_is_one_line(tmp_path, monkeypatch, write, extra):
    for module in [name for name in sys.modules if name.split(".")[0] == extra]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(
        ConfigError, match=rf"writing for {extra} needs its package: pip install 'fedcopl-experiments\[{extra}\]'"
    ):
        write(RUNS, tmp_path / "out")


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_folder_that_cannot_be_created(tmp_path, write):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write(RUNS, tmp_path / "file" / "out")
