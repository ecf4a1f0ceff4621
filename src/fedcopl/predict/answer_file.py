"""A file of answers that can be stopped at any moment and gone on with: no row twice, none missing, none by half.

Rows are appended to `out.csv.part`, a whole batch at a time, and the file gets its name when it is complete. Going on,
whole batches are kept and the rest is done again, so that the outcome has the same bytes as without the stop.
"""

import csv
import io
import json
import os
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..clip.encoder import ENCODE_BATCH as BATCH  # as in an exam: the same images have the same bits
from ..errors import ConfigError, RunFolderError
from ..files import check_output_file, write_text
from .answers import Answer, NamedImages

DIGITS = 6  # of a probability; the last bits may differ between machines
FORMULA = frozenset("=+-@＝＋－＠")  # what a spreadsheet may take for the beginning of a formula
CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})  # characters that steer a terminal, break a line, or are no text
TURNING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})  # that turn the reading direction


class AnswerRows(ABC):
    """One way to write answers."""

    header = ""  # the first line, if there is one

    def __init__(self, top: int):
        self.top = top

    @abstractmethod
    def line(self, answer: Answer) -> str:
        """An answer as one line."""

    @abstractmethod
    def name(self, line: str) -> str:
        """The image that a line is about, as it is written there; ValueError if it is no line of ours."""

    @abstractmethod
    def written_name(self, name: str) -> str:
        """How a name is written in this form."""


class CsvRows(AnswerRows):
    """image, label, probability, abstain, problem, and the most probable classes with their probabilities."""

    def __init__(self, top: int):
        super().__init__(top)
        best = [title for rank in range(1, top + 1) for title in (f"top_{rank}", f"probability_{rank}")]
        self.columns = ["image", "label", "probability", "abstain", "problem", *best]
        self.header = _csv_line(self.columns)

    def line(self, answer: Answer) -> str:
        abstain = {None: "", True: "yes", False: "no"}[answer.abstains]
        cells = [self.written_name(answer.image), safe_cell(answer.label or ""), _digits(answer.probability), abstain]
        best = [cell for label, share in answer.top[: self.top] for cell in (safe_cell(label), _digits(share))]
        cells += [safe_cell(answer.problem or ""), *best]
        return _csv_line([*cells, *[""] * (len(self.columns) - len(cells))])

    def name(self, line: str) -> str:
        cells = next(csv.reader([line], strict=True), [])
        if len(cells) != len(self.columns):
            raise ValueError("it has another number of columns")
        return cells[0]

    def written_name(self, name: str) -> str:
        """A path that looks like a formula is the same path with ./ before it."""
        plain = one_line(name)
        return f"./{plain}" if plain[:1] in FORMULA else plain


class JsonRows(AnswerRows):
    """The same by name, exactly as it is: JSON needs no precautions."""

    def line(self, answer: Answer) -> str:
        plain = {
            "image": answer.image,
            "label": answer.label,
            "probability": _rounded(answer.probability),
            "abstain": answer.abstains,
            "problem": answer.problem,
            "top": [{"label": label, "probability": _rounded(share)} for label, share in answer.top[: self.top]],
        }
        return json.dumps(plain) + "\n"

    def name(self, line: str) -> str:
        plain = json.loads(line)
        if not isinstance(plain, dict) or not isinstance(plain.get("image"), str):
            raise ValueError("it names no image")
        return str(plain["image"])

    def written_name(self, name: str) -> str:
        return name


FORMS: Mapping[str, Callable[[int], AnswerRows]] = {"csv": CsvRows, "jsonl": JsonRows}


def choose_rows(out: str, form: str | None, top: int) -> AnswerRows:
    """By name, else by the ending of the file; to standard output, CSV."""
    by_ending = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
    chosen = form or ("csv" if out == "-" else by_ending.get(Path(out).suffix.lower()))
    if chosen is None or chosen not in FORMS:
        raise ConfigError(f"{out}: should end in .csv or .jsonl, or say --format csv or --format jsonl")
    return FORMS[chosen](top)


def safe_cell(text: str) -> str:
    """One line that no spreadsheet takes for a formula."""
    plain = one_line(text)
    return f"'{plain}" if plain[:1] in FORMULA else plain


def one_line(text: str) -> str:
    """As it is, with what could mislead a reader spelled out: a line break is \\n."""
    return "".join(sign.encode("unicode_escape").decode() if _is_odd(sign) else sign for sign in text)


def _is_odd(sign: str) -> bool:
    return unicodedata.category(sign) in CONTROL or unicodedata.bidirectional(sign) in TURNING


def _csv_line(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _digits(share: float | None) -> str:
    return "" if share is None else f"{share:.{DIGITS}f}"


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, DIGITS)


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
        check_output_file(self.path, overwrite=overwrite)
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
