"""The source `folder`: images in folders, one layout for research and one for a real site.

    train/<class>/*, test/<class>/*     two splits; either may also hold its images flat, without labels
    <class>/*                           all of them training images
    *                                   training images without labels; classes.txt names the classes
    clients/<client>/<any of these>     a natural partition

The order of the classes is that of classes.txt, or else of the alphabet.
"""

from collections.abc import Iterator
from pathlib import Path

from ..config import Data
from .classes import find_classes
from .dataset import Dataset, Skipped
from .records import FileRecord, Split, build
from .walk import folders_in, images_below, is_folder, require_folder

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
