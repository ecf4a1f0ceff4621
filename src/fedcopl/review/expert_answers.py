"""The expert's answers: one SQLite file per client in the run's folder, which never leaves the site.

Nothing is overwritten: a changed or undone answer stays in the file. Each answer is one transaction, so several tabs or
processes can write at the same time, and a crash loses no confirmed answer.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..errors import RunFolderError
from ..files import make_folders, only_for_owner
from ..run.folder import file_name

_VERSION = 1  # of the tables; SQLite's user_version
_LOCK_TIMEOUT = 30  # seconds to wait for another process that is writing
_SCHEMA = """
CREATE TABLE answer (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    image TEXT NOT NULL,
    digest TEXT NOT NULL,
    pseudo TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('class', 'none', 'unclear')),
    label TEXT CHECK ((label IS NULL) = (kind <> 'class')),
    sampled INTEGER NOT NULL,
    tab TEXT NOT NULL,
    place TEXT NOT NULL,
    answered TEXT NOT NULL,
    undone TEXT
) STRICT;
CREATE INDEX answer_image ON answer (image);
CREATE INDEX answer_tab ON answer (tab);
CREATE TABLE plan (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), round INTEGER NOT NULL) STRICT;
"""
_CURRENT = """
SELECT answer.id, image, digest, pseudo, kind, label, ever_sampled, answered
FROM answer JOIN (
    SELECT MAX(id) AS id, MAX(sampled) AS ever_sampled FROM answer WHERE undone IS NULL GROUP BY image
) USING (id) ORDER BY answer.id
"""
AnswerKind = Literal["class", "none", "unclear"]


@dataclass(frozen=True)
class NewAnswer:
    """An expert's answer about an image that is not stored yet."""

    image: str
    digest: str  # of the image's content
    pseudo: str  # the pseudo label
    kind: AnswerKind  # a class, none of the classes, or unclear to the expert
    label: str | None = None  # the class
    plan_round: int | None = None  # for an answer in the random order: the refresh that determines the order
    tab: str = ""
    page: str = ""  # query of the page's address, for undo


@dataclass(frozen=True)
class ExpertAnswer:
    """The current answer about an image."""

    id: int
    image: str
    digest: str
    pseudo: str
    kind: AnswerKind
    label: str | None
    sampled: bool  # given in the random order, so that the estimate can use it
    answered: str  # UTC, ISO 8601

    @property
    def text(self) -> str:
        return {"none": "none of the classes", "unclear": "cannot tell"}.get(self.kind) or self.label or ""


class Answers:
    """Store of the answers about one client's images."""

    def __init__(self, folder: Path, client: str):
        self.folder = folder
        self.path = folder / "review" / f"{file_name(client)}.sqlite"

    def add(self, answer: NewAnswer) -> int:
        """Store an answer and return its number."""
        sampled = int(answer.plan_round is not None)
        content = (answer.image, answer.digest, answer.pseudo, answer.kind, answer.label)
        row = (*content, sampled, answer.tab, answer.page, _now())
        with self._open(create=True) as database, database:
            if sampled:
                database.execute("INSERT OR IGNORE INTO plan VALUES (1, ?)", (answer.plan_round,))
            inserted = database.execute(
                "INSERT INTO answer (image, digest, pseudo, kind, label, sampled, tab, place, answered) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            return int(inserted.lastrowid or 0)

    def undo(self, tab: str) -> tuple[str, str] | None:
        """Mark the last answer of this browser tab as undone and return its image and page; None without an answer."""
        with self._open(create=True) as database, database:
            undone = database.execute(
                "UPDATE answer SET undone = ? WHERE id = (SELECT MAX(id) FROM answer WHERE tab = ? AND undone IS NULL) "
                "RETURNING image, place",
                (_now(), tab),
            ).fetchall()
        return (str(undone[0][0]), str(undone[0][1])) if undone else None

    def can_undo(self, tab: str) -> bool:
        return bool(self._rows("SELECT 1 FROM answer WHERE tab = ? AND undone IS NULL LIMIT 1", tab))

    def current(self) -> dict[str, ExpertAnswer]:
        """Return the current answer about each image by its name, oldest first."""
        rows = self._rows(_CURRENT)
        return {
            image: ExpertAnswer(id, image, digest, pseudo, kind, label, bool(sampled), answered)
            for id, image, digest, pseudo, kind, label, sampled, answered in rows
        }

    def plan_round(self) -> int | None:
        """Return the refresh that determines the random order; None before the first answer in that order."""
        rows = self._rows("SELECT round FROM plan")
        return int(rows[0][0]) if rows else None

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with self._open() as database:
            return database.execute(query, values).fetchall()

    @contextmanager
    def _open(self, create: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            if create:
                make_folders(self.path.parent)
                os.close(only_for_owner(str(self.path), os.O_CREAT | os.O_RDWR))  # also the rights of SQLite's journal
            with closing(sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT)) as database:
                self._prepare(database)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise RunFolderError(f"{self.path}: the answers cannot be read or stored: {error}") from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Create the tables of a new file, and check the version of an existing one."""
        if _version(database) == 0:
            with database:
                database.execute("BEGIN IMMEDIATE")  # only one of two concurrent processes creates the tables
                if _version(database) == 0:
                    for statement in _SCHEMA.split(";\n"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {_VERSION}")
        if _version(database) != _VERSION:
            raise RunFolderError(f"{self.path}: is no database of this version of fedcopl; use the one that wrote it")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
