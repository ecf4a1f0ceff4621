"""The source `folder`: images in folders, one layout for research and one for a real site.

    train/<class>/*, test/<class>/*     two splits; either may also hold its images flat, without labels
    <class>/*                           all of them training images
    *                                   training images without labels; classes.txt names the classes
    clients/<client>/<any of these>     a natural partition

The order of the classes is that of classes.txt, or else of the alphabet.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from ..config import Data
from ..errors import DataError
from .dataset import Dataset, Skipped, find_classes
from .images import SUFFIXES
from .records import FileRecord, Split, build

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


CLIENTS = "clients"
SPLITS: tuple[Split, ...] = ("train", "test")


def read_folder(data: Data) -> Dataset:
    root = require_folder(data.path, "folder")
    skipped: list[Skipped] = []
    listed = find_classes(data.classes_file, root)
    if listed is None:  # a class without images is still a class
        named = sorted({folder.name for folder in _class_folders(root)})
        listed = (named, root) if named else None
    return build("folder", root, list(_records(root, skipped)), listed=listed, skipped=skipped)


def _class_folders(root: Path) -> Iterator[Path]:
    for _, home in _homes(root):
        for _, folder in _splits(home):
            yield from folders_in(folder)


def _records(root: Path, skipped: list[Skipped]) -> Iterator[FileRecord]:
    for client, home in _homes(root):
        for split, folder in _splits(home):
            yield from _split_records(root, split, folder, client, skipped)


def _homes(root: Path) -> list[tuple[str | None, Path]]:
    """The folder of each client, or the root, which is then nobody's."""
    clients = root / CLIENTS
    return [(folder.name, folder) for folder in folders_in(clients)] if is_folder(clients) else [(None, root)]


def _splits(home: Path) -> list[tuple[Split, Path]]:
    found = [(split, home / split) for split in SPLITS if is_folder(home / split)]
    return found or [("train", home)]


def _split_records(
    root: Path, split: Split, folder: Path, client: str | None, skipped: list[Skipped]
) -> Iterator[FileRecord]:
    """The images of each class folder, or those that lie flat, where there are no class folders."""
    flat = list(images_below(folder, root, skipped, deep=False))
    class_folders = folders_in(folder)
    for path in flat:
        name = path.relative_to(root).as_posix()
        if class_folders:
            skipped.append((name, "lies beside the class folders, so its class is not known"))
        else:
            yield FileRecord(name, path, split, None, client)
    for class_folder in class_folders:
        for path in images_below(class_folder, root, skipped):
            yield FileRecord(path.relative_to(root).as_posix(), path, split, class_folder.name, client)
