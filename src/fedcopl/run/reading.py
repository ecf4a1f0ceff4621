"""Finding the folders of runs, and reading their outcomes."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import RunFolderError
from .folder import PROGRESS, RESULTS, SETTINGS
from .record import Outcome
from .record_reader import parse_json, read_outcome

DEPTH = 3  # levels of folders that are searched for runs


class NothingYet(RunFolderError):
    """A run has started and has no finished round."""


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run's, else all runs below it, sorted by name.

    Raises:
        RunFolderError: There is no run.
    """
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
        below: list[Path] = []
        with suppress(OSError):  # folders without read permission
            below = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
        for inner in below:
            yield from _runs_in(inner, depth - 1)


def read_finished(folder: Path) -> Outcome:
    """Return the outcome of a finished run.

    Raises:
        RunFolderError: The run is not finished, or its outcome is damaged.
    """
    if not (folder / RESULTS).exists():
        raise RunFolderError(f"{folder}: the run is not finished; resume it with: fedcopl run --out {folder} --resume")
    return _read_file(folder / RESULTS)


def read_so_far(folder: Path) -> Outcome:
    """Return the outcome of a run with the rounds that are finished.

    Raises:
        NothingYet: No round is finished.
        RunFolderError: The outcome is damaged.
    """
    found = next((path for name in (RESULTS, PROGRESS) if (path := folder / name).is_file()), None)
    if found is None:
        raise NothingYet(f"{folder}: no round of this run is finished, so there is nothing to report yet")
    return _read_file(found)


def _read_file(file: Path) -> Outcome:
    try:
        plain = parse_json(file.read_text(encoding="utf-8"))
        reading = read_outcome(plain)
        required = ("name", "classes", "rounds", "settings") if isinstance(plain, dict) else ()
        missing = [f"{key} is missing or empty" for key in required if not getattr(reading.outcome, key)]
        errors = [*missing, *reading.errors]
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        errors = [str(error)]
    if errors:
        raise RunFolderError(
            f"{file}: is damaged: {errors[0]}; `fedcopl run --out {file.parent} --resume` writes it again"
        )
    return reading.outcome
