"""The source `folder`: images in folders.

    train/<class>/*, test/<class>/*     two splits; train/* and test/* are images without labels
    <class>/*                           training images only
    *                                   training images without labels; classes.txt lists the classes
    clients/<client>/<any of these>     a natural partition

Classes are ordered as in classes.txt, otherwise alphabetically.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from ..config import Data
from ..errors import DataError
from ..files import no_folder
from .dataset import ClassList, Dataset, FileRecord, Skipped, Split, build, clean_class_name, find_classes
from .dicom import is_dicom

_SUFFIXES = frozenset(".bmp .dcm .dicom .gif .heic .heif .hif .ima .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini", "dicomdir"})  # of file managers and scanners
_IGNORED_SUFFIXES = frozenset(".csv .json .md .parquet .pdf .txt".split())


def require_folder(path: str, source: str) -> Path:
    """Return `data.path` as a folder with links resolved; raises DataError if it is none."""
    if not path:
        raise DataError(f"data.path: data.source={source} needs the folder of the images, as in data.path=/data/images")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        is_table = folder.suffix.lower() in (".csv", ".parquet", ".pq") and folder.is_file()
        hint = "; a table of images is read by data.source=manifest" if is_table else ""
        raise DataError(f"{folder}: {no_folder(folder)}; data.path should be the folder of the images{hint}")
    return folder.resolve()


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder and not a link."""
    return path.is_dir() and not path.is_symlink()


def folders_in(folder: Path) -> list[Path]:
    """Return the subfolders that are neither links nor hidden."""
    try:
        return [
            Path(entry.path)
            for entry in os.scandir(folder)
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error


def images_below(folder: Path, root: Path, skipped: list[Skipped], *, recursive: bool = True) -> Iterator[Path]:
    """Yield the image files in a folder and, if `recursive`, in its subfolders; other files are added to `skipped`."""
    unvisited = [folder]
    while unvisited:
        current = unvisited.pop()
        try:
            entries = list(os.scandir(current))
        except OSError as error:
            skipped.append((_relative_name(current, root), f"cannot be read: {error.strerror}"))
            continue
        for entry in entries:
            path = Path(entry.path)
            name, suffix = path.name.lower(), path.suffix.lower()
            if name.startswith(".") or name in _IGNORED_NAMES or suffix in _IGNORED_SUFFIXES:
                continue
            if entry.is_dir(follow_symlinks=False):
                unvisited += [path] if recursive else []
                continue
            if reason := _skip_reason(path, root, entry.is_symlink()):
                skipped.append((_relative_name(path, root), reason))
            else:
                yield path


def _skip_reason(path: Path, root: Path, is_link: bool) -> str | None:
    """Return the reason why a file is not read as an image, or None."""
    if is_link:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):  # Python before 3.13 raises RuntimeError for a loop
            return "a broken link"
        if target.is_dir():
            return "a link to a folder, which is not followed"
        if not target.is_relative_to(root):
            return "a link to a file outside the folder"
    if not path.is_file():
        return "not a file"
    if path.suffix.lower() in _SUFFIXES:
        return None
    with suppress(OSError), path.open("rb") as file:  # the names of DICOM files are often numbers
        if is_dicom(file.read(132)):
            return None
    return "its extension is not that of an image format"


def _relative_name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


CLIENTS = "clients"
SPLITS: tuple[Split, ...] = ("train", "test")
_MISSPELT = {"train": ("trains", "training", "trainset"), "test": ("tests", "testing", "testset")}


def misspelt_split(name: str) -> Split | None:
    """Return the split that a misspelt folder name such as Tests probably means, or None.

    >>> misspelt_split("Tests"), misspelt_split("train"), misspelt_split("cat")
    ('test', None, None)
    """
    for split in SPLITS:
        if name != split and name.lower() in (split, *_MISSPELT[split]):
            return split
    return None


def read_folder(data: Data) -> Dataset:
    """Read a data set from folders of images."""
    root = require_folder(data.path, "folder")
    class_list = find_classes(data.classes_file, root)
    listed_names = set(class_list.names) if class_list else set()
    clients_folder = root / CLIENTS
    client_folders: list[tuple[str | None, Path]] = [(None, root)]
    if is_folder(clients_folder):
        client_folders = [(folder.name, folder) for folder in folders_in(clients_folder)]
    records: list[FileRecord] = []
    skipped: list[Skipped] = []
    class_names: set[str] = set()
    for client, client_folder in client_folders:
        splits = [(split, client_folder / split) for split in SPLITS if is_folder(client_folder / split)]
        for other in folders_in(client_folder) if splits else ():
            if other.name not in (*SPLITS, CLIENTS):
                split_name = misspelt_split(other.name)
                hint = f"; was it meant as {split_name}/?" if split_name else ""
                reason = f"a folder next to train/ and test/, which is not read{hint}"
                skipped.append((f"{_relative_name(other, root)}/", reason))
        for split, folder in splits or [("train", client_folder)]:
            class_names |= {class_folder.name for class_folder in folders_in(folder)}
            records += _split_records(root, split, folder, client, listed_names, skipped)
    if class_list is None and class_names:  # includes classes without images
        class_list = ClassList(sorted(class_names), root)
    return build("folder", root, records, class_list=class_list, skipped=skipped)


def _split_records(
    root: Path, split: Split, folder: Path, client: str | None, classes: Collection[str], skipped: list[Skipped]
) -> Iterator[FileRecord]:
    """Yield the images in the class folders of a split, or its images without labels if there are no class folders.

    If there are images next to folders and no folder has the name of a listed class, the folders are skipped.
    """
    flat_images = list(images_below(folder, root, skipped, recursive=False))
    class_folders = folders_in(folder)
    if flat_images and classes and not any(clean_class_name(subfolder.name) in classes for subfolder in class_folders):
        for subfolder in class_folders:
            reason = f"in a subfolder not named after a class; the images next to {subfolder.name}/ are used"
            skipped += ((_relative_name(path, root), reason) for path in images_below(subfolder, root, skipped))
        class_folders = []
    for path in flat_images:
        if class_folders:
            skipped.append((_relative_name(path, root), "is next to the class folders, so its class is unknown"))
        else:
            yield FileRecord(_relative_name(path, root), path, split, None, client)
    for class_folder in class_folders:
        for path in images_below(class_folder, root, skipped):
            yield FileRecord(_relative_name(path, root), path, split, class_folder.name, client)
