"""Answers as lines of text, one each, whatever the names: CSV for people and spreadsheets, JSON for programs."""

import csv
import io
import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ConfigError
from .answers import Answer

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
        best = [title for place in range(1, top + 1) for title in (f"top_{place}", f"probability_{place}")]
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
        told = {
            "image": answer.image,
            "label": answer.label,
            "probability": _rounded(answer.probability),
            "abstain": answer.abstains,
            "problem": answer.problem,
            "top": [{"label": label, "probability": _rounded(share)} for label, share in answer.top[: self.top]],
        }
        return json.dumps(told) + "\n"

    def name(self, line: str) -> str:
        told = json.loads(line)
        if not isinstance(told, dict) or not isinstance(told.get("image"), str):
            raise ValueError("it names no image")
        return str(told["image"])

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
