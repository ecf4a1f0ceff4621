"""Findings of the checks."""

from typing import Literal, NamedTuple

FindingLevel = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """Result of one check."""

    level: FindingLevel  # a problem stops a run
    what: str
    detail: str
    do: str = ""


def ok(what: str, detail: str) -> Finding:
    return Finding("ok", what, detail)


def note(what: str, detail: str, do: str) -> Finding:
    return Finding("note", what, detail, do)


def problem(what: str, detail: str, do: str) -> Finding:
    return Finding("problem", what, detail, do)
