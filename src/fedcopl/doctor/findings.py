"""Findings of the checks."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """Result of one check."""

    level: Literal["ok", "note", "problem"]  # a problem stops a run
    subject: str
    detail: str
    advice: str = ""  # what to do about it


def ok(subject: str, detail: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding("ok", subject, detail)


def note(subject: str, detail: str, advice: str) -> Finding:
    """Return a finding that a run survives."""
    return Finding("note", subject, detail, advice)


def problem(subject: str, detail: str, advice: str) -> Finding:
    """Return a finding that stops a run."""
    return Finding("problem", subject, detail, advice)
