"""The command `fedcopl results` from its arguments to its output."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedcopl.cli import app, main
from fedcopl_experiments.store import FILE_NAME, ResultStore
from stored_runs import failed, stored


@pytest.fixture
def folder(tmp_path):
    store = ResultStore(tmp_path / "results" / FILE_NAME)
    run = stored("k1", name="first", method="promptfl")
    store.record(replace(run, outcome=replace(run.outcome, method="PromptFL + CoPL + priors")))
    store.record(failed("k2", error="photos: there is no such folder\nTraceback: a long story"))
    return store.path.parent


def results(*words):
    return CliRunner().invoke(app, ["results", *map(str, words)])


def test_the_table(folder):
    result = results("--place", folder)
    assert result.exit_code == 0
    [first] = [line for line in result.stdout.splitlines() if line.startswith("k1")]
    assert re.split(" {2,}", first) == ["k1", "PromptFL + CoPL + priors", "1", "50.0", "75.0", "3"]
    assert "fedcopl, copl" in result.stdout  # a failed run has only its settings
    assert "k2 failed: photos: there is no such folder\n" in result.stdout
    assert "long story" not in result.stdout
    assert "1 done, 1 failed, 4 s in total" in result.stdout


def test_runs_are_grouped_by_differing_settings(tmp_path):
    store = ResultStore(tmp_path / FILE_NAME)
    store.record(stored("k1", data={"beta": 0.05}, model={"threads": 1}))
    store.record(stored("k2", data={"clients": 5}, name="second", options={"mu": 0.5}))
    store.record(stored("k3", data={"beta": 0.05}, seed=2))
    lines = results("--place", tmp_path).stdout.splitlines()
    assert [line.split()[0] if line.startswith("k") else line for line in lines[:-1] if line] == [
        "clients=10, beta=0.05",
        "key",
        "k1",
        "k3",
        "clients=5, beta=0.1, mu=0.5",
        "key",
        "k2",
    ]


def test_json_is_one_list(folder):
    rows = {row["key"]: row for row in json.loads(results("--place", folder, "--json").stdout)}
    assert rows["k1"]["final.macro"] == 0.75
    assert rows["k1"]["title"] == "PromptFL + CoPL + priors"
    assert rows["k1"]["data.clients"] == 10
    assert rows["k2"]["status"] == "failed"


def test_the_exports(folder, tmp_path):
    result = results("--place", folder, "--export", tmp_path / "all.csv", "--tensorboard", tmp_path / "b")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{tmp_path / 'all.csv'} and all-rounds.csv in the same folder",
        f"{tmp_path / 'b'}: 1 run; view: tensorboard --logdir {tmp_path / 'b'}",
    ]
    assert (tmp_path / "all-rounds.csv").exists()
    assert (tmp_path / "b" / "first-k1").is_dir()


@pytest.mark.slow
def test_the_export_for_mlflow(folder, tmp_path):
    result = results("--place", folder, "--mlflow", tmp_path / "m")
    assert result.stdout == (
        f"{tmp_path / 'm'}: 1 new run; view: mlflow ui --backend-store-uri sqlite:///{tmp_path / 'm' / 'mlflow.db'}\n"
    )
    assert (tmp_path / "m" / "mlflow.db").exists()


@pytest.mark.slow
def test_the_export_for_wandb(folder, tmp_path):
    result = results("--place", folder, "--wandb", tmp_path / "w")
    assert result.stdout.startswith(f"{tmp_path / 'w'}: 1 new run, on this machine only; upload: wandb sync ")
    assert len(list((tmp_path / "w" / "wandb").glob("offline-run-*-k1/*.wandb"))) == 1


def test_control_characters_in_names_are_replaced(tmp_path):
    run = stored("k1")
    store = ResultStore(tmp_path / FILE_NAME)
    store.record(replace(run, settings=dict(run.settings) | {"data": {"path": "\x1b[2Jgone[red]"}}))
    store.record(failed("k2", error="\x1b[31mred\x1b[0m [/b]"))
    result = results("--place", tmp_path)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "?[2Jgone[red]" in result.stdout.replace("\n", "")


USER_ERRORS = {
    "no results": (
        ["--place", "nowhere"],
        7,
        "fedcopl: nowhere/results.sqlite: there are no results; give their folder",
    ),
    "an unknown format": (["--export", "all.xls"], 2, "fedcopl: all.xls: should end in .csv or .parquet"),
    "not a store": (["--place", "other"], 7, "fedcopl: other/results.sqlite: is not a results store, or damaged"),
}


@pytest.mark.parametrize(("words", "code", "message"), USER_ERRORS.values(), ids=USER_ERRORS)
def test_user_error_is_one_line_and_exit_code(folder, monkeypatch, capsys, words, code, message):
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / FILE_NAME).write_text("no database " * 100)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sys, "argv", ["fedcopl", "results", *words])
    with pytest.raises(SystemExit) as end:
        main()
    result = capsys.readouterr()
    assert end.value.code == code
    assert result.err.startswith(message)
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_listing_needs_no_torch(folder):
    script = "import sys; from fedcopl.cli import app\ntry: app(['results', '--place', sys.argv[1]])\n"
    script += "finally: assert not {'torch', 'flwr', 'mlflow', 'tensorboard', 'wandb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True)
