"""The results store: one SQLite file, one transaction for each run."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedcopl.errors import RunFolderError
from fedcopl.files import parse_json
from fedcopl.run.record import Outcome, read_outcome, to_plain

from ..flat_settings import flat
from .csv_parquet import export_runs
from .stored_run import (
    ACCURACIES,
    HEADLINES,
    StoredRun,
    class_rows,
    client_rows,
    headline,
    is_huge,
    readable,
    round_rows,
)

FILE_NAME = "results.sqlite"
VERSION = 1  # of the tables; stored as user_version of the file
BUSY_TIMEOUT = 60  # seconds to wait while another process writes
SCHEMA = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY, status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    name TEXT, seed ANY, method TEXT, labeler TEXT,
    zero_shot_macro REAL, zero_shot_weighted REAL, zero_shot_global REAL,
    final_macro REAL, final_weighted REAL, final_global REAL,
    best_macro REAL, best_weighted REAL, best_global REAL,
    error TEXT, seconds REAL NOT NULL, host TEXT NOT NULL, code TEXT NOT NULL,
    started TEXT NOT NULL, finished TEXT NOT NULL, folder TEXT NOT NULL,
    settings_json TEXT NOT NULL, results_json TEXT, versions_json TEXT NOT NULL
) STRICT;
CREATE TABLE settings (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, value ANY, PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE versions (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, package TEXT NOT NULL, version TEXT NOT NULL,
    PRIMARY KEY (key, package)
) STRICT, WITHOUT ROWID;
CREATE TABLE rounds (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (key, round, metric)
) STRICT, WITHOUT ROWID;
CREATE TABLE clients (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, client TEXT NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (key, client, metric)
) STRICT, WITHOUT ROWID;
CREATE TABLE classes (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, class TEXT NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (key, class, metric)
) STRICT, WITHOUT ROWID;
"""
FIELDS = (
    "key, status, settings_json, results_json, error, seconds, host, code, versions_json, started, finished, folder"
)


class ResultStore:
    """The runs of one folder. The file is created when the first run is recorded."""

    def __init__(self, path: Path):
        self.path = path

    def record(self, run: StoredRun) -> None:
        """Store a run in one transaction. It replaces a failed run of the same key, never a finished one."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{self.path.parent}: cannot be created: {error.strerror}") from error
        with self._connected() as database, database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM runs WHERE key = ? AND status = 'failed'", (run.key,))
            if not database.execute("SELECT 1 FROM runs WHERE key = ?", (run.key,)).fetchone():
                _insert(database, run)

    def find(self, key: str) -> StoredRun | None:
        return next(iter(self._select("WHERE key = ?", key)), None)

    def runs(self) -> list[StoredRun]:
        """Return all runs, in the order in which they finished."""
        return self._select("ORDER BY finished, key")

    def done(self) -> set[str]:
        """Return the keys of the finished runs."""
        if not self.path.exists():
            return set()
        with self._connected() as database:
            return {key for (key,) in database.execute("SELECT key FROM runs WHERE status = 'done'")}

    def export(self, path: Path) -> None:
        """Write a table of the runs, and `-rounds` with one row per run and round; CSV or Parquet by suffix."""
        export_runs(self.runs(), path)

    def _select(self, clause: str, *values: str) -> list[StoredRun]:
        if not self.path.exists():
            return []
        with self._connected() as database:
            return [_stored(row) for row in database.execute(f"SELECT {FIELDS} FROM runs {clause}", values)]

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one operation; none stays open during a run, so that other processes do not wait."""
        try:
            with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None)) as database:
                self._prepare(database)
                yield database
        except sqlite3.OperationalError as error:
            raise RunFolderError(f"{self.path}: the store cannot be used: {error}") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise RunFolderError(
                f"{self.path}: is not a results store, or damaged ({error}); move it away: "
                "the next grid rebuilds it from the run folders"
            ) from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        [version] = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            version = self._create(database)
        if version != VERSION:
            raise RunFolderError(
                f"{self.path}: was written by a newer fedcopl (tables of version {version}, this one reads {VERSION}); "
                "update fedcopl"
            )
        database.execute("PRAGMA foreign_keys = ON")
        with suppress(sqlite3.OperationalError):  # busy: the next connection switches
            database.execute("PRAGMA journal_mode = WAL")

    def _create(self, database: sqlite3.Connection) -> int:
        """Create the tables, unless another process has done so."""
        with database:
            database.execute("BEGIN IMMEDIATE")
            [version] = database.execute("PRAGMA user_version").fetchone()
            if version:
                return int(version)
            if database.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise RunFolderError(f"{self.path}: is a database of another program")
            for statement in filter(str.strip, SCHEMA.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {VERSION}")
        return VERSION


def _insert(database: sqlite3.Connection, run: StoredRun) -> None:
    columns = _columns(run)
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    database.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", _plain(columns.values()))
    for table, rows in _details(run).items():
        marks = ", ".join("?" * (1 + len(rows[0]))) if rows else ""
        database.executemany(
            f"INSERT OR REPLACE INTO {table} VALUES ({marks})", [_plain((run.key, *row)) for row in rows]
        )


def _plain(values: Iterable[Any]) -> tuple[Any, ...]:
    """Convert values that SQLite does not accept: invalid bytes in file names, integers beyond 64 bits."""
    return tuple(
        readable(value) if isinstance(value, str) else str(value) if is_huge(value) else value for value in values
    )


def _columns(run: StoredRun) -> dict[str, Any]:
    plain = ("key", "status", "error", "seconds", "host", "code", "started", "finished", "folder")
    columns = {name: getattr(run, name) for name in plain}
    columns |= {name: run.settings.get(name) for name in ("name", "seed", "method", "labeler")}
    if run.outcome is not None:
        numbers = headline(run.outcome)
        columns |= {f"{when}_{kind}": numbers[f"{when}.{kind}"] for when in HEADLINES for kind in ACCURACIES}
    columns["settings_json"] = json.dumps(dict(run.settings))
    columns["results_json"] = None if run.outcome is None else json.dumps(to_plain(run.outcome))
    columns["versions_json"] = json.dumps(dict(run.versions))
    return columns


def _details(run: StoredRun) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the tables other than `runs`."""
    rows: dict[str, list[tuple[Any, ...]]] = {
        "settings": list(flat(run.settings).items()),
        "versions": list(run.versions.items()),
    }
    if run.outcome is not None:
        rows |= {
            "rounds": list(round_rows(run.outcome)),
            "clients": list(client_rows(run.outcome)),
            "classes": list(class_rows(run.outcome)),
        }
    return rows


def _stored(row: tuple[Any, ...]) -> StoredRun:
    key, status, settings, results, error, seconds, host, code, versions, started, finished, folder = row
    return StoredRun(
        key,
        status,
        json.loads(settings),
        None if results is None else _outcome(key, results),
        error,
        seconds,
        host,
        code,
        json.loads(versions),
        started,
        finished,
        folder,
    )


def _outcome(key: str, text: str) -> Outcome:
    """Parse an outcome of any version; raises ValueError with the reason."""
    try:
        outcome = read_outcome(parse_json(text))
    except ValueError as error:
        raise ValueError(f"run {key}: {error}") from error
    if not outcome.rounds:
        raise ValueError(f"run {key}: there are no rounds")
    return outcome
