"""Which images lie below a folder. Links are followed only to files inside it."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from .dataset import Skipped
from .images import SUFFIXES

NOT_MEANT = frozenset({"thumbs.db", "desktop.ini"})  # what file managers leave behind
NOTES = frozenset(".csv .json .md .parquet .pdf .txt".split())  # lies beside images, and is none


def require_folder(path: str, source: str) -> Path:
    """The folder of the settings, with links resolved."""
    if not path:
        raise DataError(f"data.path: {source} needs the folder of its images, for example: data.path=/data/{source}")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; data.path should be the folder of {source}")
    return folder.resolve()


def is_folder(path: Path) -> bool:
    """A link to a folder is not followed, so it is none."""
    return path.is_dir() and not path.is_symlink()


def folders_in(folder: Path) -> list[Path]:
    """Sub-folders that are no links and not hidden."""
    try:
        return [
            Path(entry.path)
            for entry in os.scandir(folder)
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error


def images_below(folder: Path, root: Path, skipped: list[Skipped], *, deep: bool = True) -> Iterator[Path]:
    """All image files in a folder, and with `deep` below it. What is left out goes on the list, with a reason."""
    unvisited = [folder]
    while unvisited:
        for entry in _entries(unvisited.pop(), root, skipped):
            path = Path(entry.path)
            if _is_passed_over(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                unvisited += [path] if deep else []
                continue
            reason = _why_not(path, root, entry.is_symlink())
            if reason is None:
                yield path
            else:
                skipped.append((_below(path, root), reason))


def _entries(folder: Path, root: Path, skipped: list[Skipped]) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        skipped.append((_below(folder, root), f"cannot be read: {error.strerror}"))
        return []


def _is_passed_over(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in NOT_MEANT or path.suffix.lower() in NOTES


def _why_not(path: Path, root: Path, is_link: bool) -> str | None:
    if is_link:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):  # Python before 3.13 raises RuntimeError for a loop
            return "a link that leads nowhere"
        if target.is_dir():
            return "a link to a folder, which is not followed"
        if not target.is_relative_to(root):
            return "a link out of the folder"
    if path.suffix.lower() not in SUFFIXES:
        return "its name does not end like an image's"
    if not path.is_file():
        return "not a file"
    return None


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
