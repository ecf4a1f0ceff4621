"""What a check comes to."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

FindingLevel = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: FindingLevel  # a problem stops a run, a note may matter
    what: str
    detail: str
    do: str = ""  # what to do about it


Check = Callable[[], Iterator[Finding]]


def ok(what: str, detail: str) -> Finding:
    return Finding("ok", what, detail)


def note(what: str, detail: str, do: str) -> Finding:
    return Finding("note", what, detail, do)


def problem(what: str, detail: str, do: str) -> Finding:
    return Finding("problem", what, detail, do)
