"""The results store: atomic writes, queries in plain SQL, and one-line errors for damaged files."""

import csv
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.errors import ConfigError, RunFolderError
from fedcopl_experiments.store import FILE_NAME, ResultStore
from stored_runs import failed, stored

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "results" / FILE_NAME)


def query(store, statement, *values):
    with closing(sqlite3.connect(store.path)) as database:
        return database.execute(statement, values).fetchall()


def test_stored_run_is_read_back_unchanged(store):
    run = stored(options={"mu": 0.5}, labels={"cpl_alpha": 0.25})
    store.record(run)
    assert store.find("k1") == run
    assert store.runs() == [run]
    assert store.find("k2") is None
    assert store.done() == {"k1"}


def test_reading_creates_no_file(store):
    assert store.find("k1") is None
    assert store.runs() == []
    assert store.done() == set()
    assert not store.path.parent.exists()


printable_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]))  # settings refuse control characters


@given(text=printable_text, seed=st.integers(0, 2**80), number=st.floats(allow_nan=False, allow_infinity=False))
def test_any_setting_value_is_stored(tmp_path_factory, text, seed, number):
    store = ResultStore(tmp_path_factory.mktemp("store") / FILE_NAME)
    text += "\udcff"  # as Python decodes file names that are not UTF-8
    run = stored(seed=seed, data={"path": text}, options={"number": number, "text": text})
    north, south = run.outcome.clients
    run = replace(run, outcome=replace(run.outcome, clients=(replace(north, name=text), south)))
    store.record(run)
    assert store.find("k1") == run
    assert len(query(store, "SELECT * FROM clients WHERE metric = 'final'")) == 2


def test_only_failed_runs_are_replaced(store):
    store.record(failed())
    assert store.find("k1").error == "photos: there is no such folder"
    assert store.done() == set()
    store.record(failed(error="photos: is empty"))
    assert [run.error for run in store.runs()] == ["photos: is empty"]
    store.record(stored(final=0.75))
    store.record(failed())
    store.record(stored(final=0.5))
    assert [run.outcome.final.macro for run in store.runs()] == [0.75]
    assert query(store, "SELECT count(*) FROM settings WHERE name = 'seed'") == [(1,)]


def test_the_tables_contain_every_number(store):
    store.record(stored(seed=4))
    value = "SELECT value FROM {} WHERE key = 'k1' AND {}"
    assert query(store, "SELECT status, seed, zero_shot_macro, final_macro, best_global FROM runs") == [
        ("done", 4, 0.5, 0.75, 0.75)
    ]
    assert query(store, value.format("settings", "name = 'data.beta'")) == [(0.1,)]
    assert query(store, value.format("settings", "name = 'labels.global_allocation'")) == [(1,)]
    assert query(store, value.format("rounds", "metric = 'macro' ORDER BY round")) == [(0.625,), (0.75,)]
    assert query(store, value.format("rounds", "metric = 'drift.visual.diversity' AND round = 1")) == [(1.5,)]
    assert query(store, value.format("rounds", "metric = 'loss'")) == [(0.25,)]  # the first round has no loss
    assert query(store, value.format("clients", "client = 'south' AND metric = 'train'")) == [(5,)]
    by_class = "SELECT class, value FROM classes WHERE metric = ? ORDER BY class"
    assert query(store, by_class, "train") == [("cat", 5), ("dog", 5)]
    assert query(store, by_class, "selected") == [("cat", 3), ("dog", 4)]
    assert query(store, by_class, "recall") == [("cat", 0.75)]
    assert query(store, "SELECT version FROM versions WHERE package = 'python'") == [("3.11.0",)]


def test_a_run_without_labels_is_stored(store):
    unknown = {"macro": None, "weighted": None, "everywhere": None}
    run = stored()
    outcome = replace(
        run.outcome,
        zero_shot=replace(run.outcome.zero_shot, **unknown),
        rounds=tuple(replace(record, recall=None, **unknown) for record in run.outcome.rounds),
        refreshes=tuple(replace(refresh, pseudo_label_accuracy=None) for refresh in run.outcome.refreshes),
        clients=tuple(replace(client, true_counts=None, zero_shot=None, final=None) for client in run.outcome.clients),
    )
    store.record(replace(run, outcome=outcome))
    assert store.find("k1").outcome == outcome
    assert query(store, "SELECT final_macro FROM runs") == [(None,)]
    assert query(store, "SELECT DISTINCT metric FROM clients ORDER BY 1") == [("test",), ("train",)]


# Invalid files -------------------------------------------------------------------------------------------------------


def test_a_file_of_another_format(store):
    store.path.parent.mkdir()
    store.path.write_text("text " * 200)
    for use in (store.runs, lambda: store.record(stored())):
        with pytest.raises(RunFolderError, match=r"results\.sqlite: is not a results store, or damaged.*move it away"):
            use()
    assert store.path.read_text() == "text " * 200


def test_a_damaged_store(store):
    for number in range(20):
        store.record(stored(f"k{number}"))
    content = store.path.read_bytes()
    store.path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with pytest.raises(RunFolderError, match="damaged"):
        store.runs()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:100], "run k1: Unterminated string"),
        (lambda text: text.replace("0.25", '"low"'), r"run k1: rounds\[1\].loss is 'low'"),
        (lambda text: "{}", "run k1: there are no rounds"),
        (lambda text: "7", "run k1: it is 7"),
    ],
)
def test_changed_outcome_is_refused(store, change, why):
    store.record(stored())
    with closing(sqlite3.connect(store.path)) as database, database:
        [(text,)] = database.execute("SELECT results_json FROM runs").fetchall()
        database.execute("UPDATE runs SET results_json = ?", (change(text),))
    with pytest.raises(
        RunFolderError, match=rf"results\.sqlite: is not a results store, or damaged \({why}.*move it away"
    ):
        store.runs()


def test_store_of_a_newer_version(store):
    store.record(stored())
    with closing(sqlite3.connect(store.path)) as database:
        database.execute("PRAGMA user_version = 7")
    with pytest.raises(RunFolderError, match=r"newer fedcopl \(tables of version 7, this one reads 1\); update"):
        store.runs()


def test_database_of_another_program(store):
    store.path.parent.mkdir()
    with closing(sqlite3.connect(store.path)) as database:
        database.execute("CREATE TABLE holidays (day TEXT)")
    with pytest.raises(RunFolderError, match="is a database of another program"):
        store.record(stored())
    assert query(store, "SELECT name FROM sqlite_master") == [("holidays",)]


def test_store_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"file/results: cannot be created: Not a directory"):
        ResultStore(tmp_path / "file" / "results" / FILE_NAME).record(stored())


# Several processes ----------------------------------------------------------------------------------------------------

RECORD = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from stored_runs import stored
from fedcopl_experiments.store import ResultStore
store = ResultStore(Path(sys.argv[2]))
for number in range(int(sys.argv[4])):
    store.record(stored(f"{sys.argv[3]}-{number}"))
"""


def recorder(store, name, count):
    words = [sys.executable, "-c", RECORD, str(Path(__file__).parent), str(store.path), name, str(count)]
    return subprocess.Popen(words)


def test_two_processes_record_at_once(store):
    processes = [recorder(store, name, 30) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(store.runs()) == 60


def test_kill_9_leaves_complete_runs_only(store):
    process = recorder(store, "a", 100_000)
    while len(store.done()) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert query(store, "PRAGMA integrity_check") == [("ok",)]
    [(rows,)] = query(store, "SELECT count(*) FROM rounds WHERE key = 'a-0'")
    counts = query(store, "SELECT runs.key, count(round) FROM runs LEFT JOIN rounds USING (key) GROUP BY runs.key")
    assert {count for _, count in counts} == {rows}
    store.record(stored("after"))
    assert store.find("after") is not None


# Export ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(store):
    """Three runs: one failed, and one with a number for a setting that is text in the others."""
    store.record(stored("k1", data={"path": 'a,"b"\nc'}))
    store.record(stored("k2", final=0.5, labels={"cpl_alpha": 0.25}, options={"mu": 1.0}))
    store.record(failed("k3"))
    return store


def test_csv(mixed, tmp_path):
    mixed.export(tmp_path / "out" / "all.csv")
    with (tmp_path / "out" / "all.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    assert rows["k1"]["data.path"] == 'a,"b"\nc'
    assert (rows["k1"]["zero_shot.macro"], rows["k1"]["final.macro"]) == ("0.5", "0.75")
    assert [rows[key]["labels.cpl_alpha"] for key in ("k1", "k2")] == ["auto", "0.25"]
    assert [rows[key]["options.mu"] for key in ("k1", "k2")] == ["", "1.0"]
    assert (rows["k3"]["status"], rows["k3"]["final.macro"]) == ("failed", "")
    with (tmp_path / "out" / "all-rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    assert [(row["key"], row["round"], row["macro"]) for row in rounds] == [
        ("k1", "0", "0.625"),
        ("k1", "1", "0.75"),
        ("k2", "0", "0.625"),
        ("k2", "1", "0.5"),
    ]


def test_parquet_has_the_same_table_with_types(mixed, tmp_path):
    from pyarrow.parquet import read_table

    mixed.export(tmp_path / "all.parquet")
    rows = {row["key"]: row for row in read_table(tmp_path / "all.parquet").to_pylist()}
    assert rows["k1"]["final.macro"] == 0.75
    assert rows["k1"]["rounds"] == 20
    assert rows["k1"]["labels.global_allocation"] is True
    assert [rows[key]["labels.cpl_alpha"] for key in ("k1", "k2")] == ["auto", "0.25"]
    assert rows["k3"]["final.macro"] is None
    rounds = read_table(tmp_path / "all-rounds.parquet").to_pylist()
    assert [row["macro"] for row in rounds] == [0.625, 0.75, 0.625, 0.5]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_unusual_values_and_an_empty_store_are_exported(store, tmp_path, suffix):
    store.export(tmp_path / f"none{suffix}")
    assert (tmp_path / f"none{suffix}").exists()
    store.record(stored(seed=2**70, data={"path": "\udcff"}))
    store.export(tmp_path / f"odd{suffix}")
    assert b"\\udcff" in (tmp_path / f"odd{suffix}").read_bytes()


def test_unknown_format_is_refused(mixed, tmp_path):
    with pytest.raises(ConfigError, match=r"all\.xls: should end in \.csv or \.parquet"):
        mixed.export(tmp_path / "all.xls")


def test_parquet_without_pyarrow_is_one_line(mixed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"Parquet needs pyarrow: pip install 'fedcopl\[parquet\]', or export as"):
        mixed.export(tmp_path / "all.parquet")
    assert not list(tmp_path.glob("all*"))


# The page -------------------------------------------------------------------------------------------------------------


def examples():
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def grid_of_four(store):
    """Two methods with two seeds each."""
    for method, finals in {"fedcopl": (0.75, 0.5), "promptfl": (0.5, 0.25)}.items():
        for seed, final in enumerate(finals, 1):
            run = stored(f"{method}-{seed}", final=final, method=method, seed=seed)
            store.record(replace(run, seconds=10.0))
    return store


def test_the_page_shows_three_queries():
    assert len(examples()) == 3


def test_queries_of_the_page_run(grid_of_four):
    means, curve, classes = (query(grid_of_four, example) for example in examples())
    # fedcopl: (75 + 50) / 2, promptfl: (50 + 25) / 2; both from 50
    assert means == [("fedcopl", 0.1, 2, 50.0, 62.5), ("promptfl", 0.1, 2, 50.0, 37.5)]
    assert curve == [
        ("fedcopl", 1, 62.5, 100.0),
        ("fedcopl", 2, 62.5, 200.0),
        ("promptfl", 1, 62.5, 100.0),
        ("promptfl", 2, 37.5, 200.0),
    ]
    # recall of cat in the last round: 0.25 is the lowest; dog has no test images
    assert classes[0] == ("promptfl-2", "cat", 5.0, 3.0, 25.0)
    assert {row[1] for row in classes} == {"cat"}
