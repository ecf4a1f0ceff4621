"""Runs as they lie on the disk: which folders hold one, and what is in it."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import RunFolderError
from .folder import PROGRESS, RESULTS, SETTINGS
from .record import Outcome
from .record_reader import parse_json, read_outcome

DEPTH = 3  # levels of folders that are searched for runs


class NothingYet(RunFolderError):
    """A run that was begun and has no finished round."""


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


def read_finished(folder: Path) -> Outcome:
    """The outcome of a run that is over."""
    if not (folder / RESULTS).exists():
        raise RunFolderError(f"{folder}: the run is not finished; go on with: fedcopl run --out {folder} --resume")
    return read_file(folder / RESULTS)


def read_so_far(folder: Path) -> Outcome:
    """The outcome of a run, or of one that goes on or was stopped: the rounds so far."""
    found = next((path for name in (RESULTS, PROGRESS) if (path := folder / name).is_file()), None)
    if found is None:
        raise NothingYet(f"{folder}: no round of this run is finished, so there is nothing to report yet")
    return read_file(found)


def read_file(file: Path) -> Outcome:
    """An outcome that is whole; RunFolderError says what is wrong with it."""
    try:
        plain = parse_json(file.read_text(encoding="utf-8"))
        reading = read_outcome(plain)
        complaints = [*(_gaps(reading.outcome) if isinstance(plain, dict) else ()), *reading.complaints]
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        complaints = [str(error)]
    if complaints:
        raise RunFolderError(
            f"{file}: is damaged: {complaints[0]}; `fedcopl run --out {file.parent} --resume` writes it anew"
        )
    return reading.outcome


def _gaps(outcome: Outcome) -> Iterator[str]:
    """What no run can be without."""
    for key in ("name", "classes", "rounds", "settings"):
        if not getattr(outcome, key):
            yield f"{key} is missing or empty"
