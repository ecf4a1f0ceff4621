"""Runs as they lie on the disk: which folders hold one, and what is in it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunFolderError
from .gallery import Example, examples_from
from .narrative import Results
from .shape import completed

DEPTH = 3  # levels of folders that are searched for runs
RESULTS, PROGRESS, SETTINGS, EXAMPLES = "results.json", "progress.json", "settings.toml", "examples.json"


class NothingYet(RunFolderError):
    """A run that was begun and has no finished round."""


@dataclass(frozen=True)
class Run:
    """A run's folder, its outcome (so far) and its example images."""

    folder: Path
    results: Results
    examples: list[Example]


def find_runs(folder: Path) -> list[Path]:
    """The folder itself if it is a run's, else all runs in it, by name."""
    if not folder.exists():
        raise RunFolderError(f"{folder}: there is no such folder")
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: is a file; name the folder of a run")
    found = sorted(_runs_in(folder, DEPTH))
    if not found:
        raise RunFolderError(f"{folder}: holds no run: there is no {RESULTS} or {SETTINGS} in it or below")
    return found


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).is_file() for name in (RESULTS, PROGRESS, SETTINGS)):
        yield folder
    elif depth:
        for below in _folders_in(folder):
            yield from _runs_in(below, depth - 1)


def _folders_in(folder: Path) -> list[Path]:
    """Without hidden ones, and without what may not be read."""
    try:
        return [below for below in folder.iterdir() if not below.name.startswith(".") and below.is_dir()]
    except OSError:
        return []


def read_run(folder: Path) -> Run:
    """The outcome of a run, or of one that goes on or was stopped: the rounds so far."""
    found = next((path for name in (RESULTS, PROGRESS) if (path := folder / name).is_file()), None)
    if found is None:
        raise NothingYet(f"{folder}: no round of this run is finished, so there is nothing to report yet")
    try:
        results = completed(_read(found))
    except ValueError as error:
        raise RunFolderError(
            f"{found}: is damaged: {error}; `fedcopl run --out {folder} --resume` writes it anew"
        ) from error
    return Run(folder, results, _read_examples(folder / EXAMPLES, results))


def _read_examples(path: Path, results: Results) -> list[Example]:
    if not path.is_file():
        return []
    try:
        return examples_from(_read(path), len(results["classes"]))
    except ValueError as error:
        raise RunFolderError(
            f"{path}: is damaged: {error}; without this file there is no gallery, but the rest"
        ) from error


def _read(path: Path) -> Any:
    try:
        # What is no number (NaN) is shown as not measured.
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
