"""The numbers printed in the paper, with notes on doubtful ones."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

CellKey = tuple[str, tuple[str, ...], tuple[str, ...]]  # block, row, column
MARKS = {"b": "best", "u": "second", ".": ""}


@dataclass(frozen=True)
class PaperNumber:
    """One printed number."""

    value: float
    mark: str = ""  # "best" (bold), "second" (underlined)
    gain: float | None = None  # printed in brackets
    doubt: str = ""  # reason why the number may be wrong


@dataclass(frozen=True)
class PaperTable:
    """The numbers of one printed table."""

    caption: str
    numbers: Mapping[CellKey, PaperNumber]

    def find(self, row: Sequence[str], column: Sequence[str], block: str = "") -> PaperNumber | None:
        return self.numbers.get((block, tuple(row), tuple(column)))


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    text = (files(__package__) / "paper_numbers.toml").read_text(encoding="utf-8")
    return {name: _table(content) for name, content in tomllib.loads(text).items()}


def _table(content: Mapping[str, Any]) -> PaperTable:
    return PaperTable(content["caption"], dict(pair for row in content["rows"] for pair in _row(content, row)))


def _row(content: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[CellKey, PaperNumber]]:
    values = row["values"]
    marks = row.get("marks", "." * len(values))
    gains = row.get("gains", [None] * len(values))
    doubt = row.get("doubt") or content.get("doubt", "")
    for column, value, mark, gain in zip(content["columns"], values, marks, gains, strict=True):
        doubtful = next((reason for name, reason in row.get("doubts", {}).items() if name in column), doubt)
        yield (
            (row.get("block", ""), tuple(row["name"]), tuple(column)),
            PaperNumber(float(value), MARKS[mark], gain, doubtful),
        )
