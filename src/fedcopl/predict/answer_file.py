"""A file of answers that can be stopped at any moment and gone on with: no row twice, none missing, none by half.

Rows are appended to `out.csv.part`, a whole batch at a time, and the file gets its name when it is complete. Going on,
whole batches are kept and the rest is done again, so that the outcome has the same bytes as without the stop.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import RunFolderError
from ..files import write_text
from .answer_rows import AnswerRows
from .answers import Answer, NamedImages
from .predictor import BATCH


def refuse_finished(path: Path, overwrite: bool) -> None:
    """A finished file is replaced only when somebody says so."""
    if path.exists() and not overwrite:
        raise RunFolderError(f"{path}: is there already; choose another name, or add --overwrite")


@dataclass(frozen=True)
class AnswerFile:
    """Where answers go, and what they are answers to: `asked` must be the same when one goes on."""

    path: Path
    rows: AnswerRows
    asked: Mapping[str, Any]

    @property
    def part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def note(self) -> Path:
        """What the part was begun with."""
        return self.path.with_name(f"{self.path.name}.part.json")

    @contextmanager
    def held(self) -> Iterator[None]:
        """By one process at a time."""
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RunFolderError(f"{self.path}: another process is writing it") from error
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be written: {error.strerror}") from error
        try:
            yield
        finally:
            with suppress(OSError):
                Path(lock.lock_file).unlink()
            lock.release()

    def open(self, overwrite: bool) -> int:
        """Make ready to append; how many rows are there already. A finished file stays until it is replaced."""
        refuse_finished(self.path, overwrite)
        if self.part.exists():
            self._refuse_other_questions()
            return self._keep_whole_batches()
        write_text(self.note, json.dumps(self.asked))
        self._append(self.rows.header)
        return 0

    def _refuse_other_questions(self) -> None:
        try:
            begun = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            begun = {}
        other = [name for name, value in self.asked.items() if begun.get(name) != value]
        if other:
            raise RunFolderError(
                f"{self.part}: was begun with another {other[0]}; go on with the same, or remove it to begin anew"
            )

    def _keep_whole_batches(self) -> int:
        """Cut off what was written last: a row by half, and a batch by half."""
        kept, rows, end = 0, 0, 0
        with self.part.open("rb") as lines:
            for number, line in enumerate(lines, start=0 if self.rows.header else 1):
                end += len(line)
                if line.endswith(b"\n") and number % BATCH == 0:
                    kept, rows = end, number
        os.truncate(self.part, kept)
        if not kept:
            self._append(self.rows.header)
        return rows

    def skip_answered(self, pictures: Iterator[NamedImages]) -> None:
        """Pass over the images that have their row, and make sure that they are the same ones."""
        with self.part.open(encoding="utf-8", newline="") as lines:
            if self.rows.header and next(lines) != self.rows.header:
                raise self._damaged("its first line is not ours")
            for number, line in enumerate(lines, start=1):
                name, named = self._name(line), next(pictures, None)
                if named is None or name != self.rows.written_name(named.name):
                    now = "there is no such image any more" if named is None else f"now it would be {named.name!r}"
                    raise self._damaged(f"row {number} is about {name!r}, but {now}: the images have changed")

    def _name(self, line: str) -> str:
        try:
            return self.rows.name(line)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> RunFolderError:
        return RunFolderError(f"{self.part}: {why}; remove it to begin anew")

    def append(self, answers: Sequence[Answer]) -> None:
        """The rows of a batch, on disk when this returns."""
        self._append("".join(self.rows.line(answer) for answer in answers))

    def _append(self, text: str) -> None:
        try:
            with self.part.open("ab") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunFolderError(
                f"{self.part}: cannot be written: {error.strerror}; the same command goes on from there"
            ) from error

    def finish(self) -> None:
        """All rows are there: from here on the file has its name."""
        self.part.replace(self.path)
        self.note.unlink(missing_ok=True)
