"""Checks of a study's folders: images of each site, and misspelt names."""

import difflib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from ..config import Data
from ..data.dataset import Dataset, clean, find_classes
from ..data.folder import CLIENTS, SPLITS, folders_in, images_below, is_folder, looks_like_split
from ..errors import FedCoPLError, printable
from ..plurals import counted
from .findings import Finding, note, ok, problem

MOST_NAMED = 5  # misspelt names that are listed


def check_folders(data: Data) -> Iterator[Finding]:
    """Check the names of folders, without decoding images."""
    root = Path(data.path).expanduser()
    if data.source != "folder" or not root.is_dir():
        return
    for folder in homes(root):
        yield from _misspelt(folder, root)
    yield from _empty_sites(root)
    yield from _class_folders(data, root)


def homes(root: Path) -> list[Path]:
    """Return the folder of each site, or the only folder."""
    clients = root / CLIENTS
    return sorted(folders_in(clients)) if is_folder(clients) else [root]


def misspelt(home: Path) -> list[tuple[Path, str]]:
    """Return folders that were probably meant as train/ or test/, and which split."""
    folders = [(folder, looks_like_split(folder.name)) for folder in sorted(folders_in(home))]
    return [(folder, split) for folder, split in folders if split is not None]


def _misspelt(home: Path, root: Path) -> Iterator[Finding]:
    for folder, split in misspelt(home):
        free = not (home / split).exists()
        do = f"rename it to {split}, or run: fedcopl doctor --fix" if free else f"move its images into {split}/"
        name = printable(folder.relative_to(root).as_posix())
        yield note("folders", f"{name}/ was probably meant as {split}/, and is not read as such", do)


def _empty_sites(root: Path) -> Iterator[Finding]:
    if not is_folder(root / CLIENTS):
        return
    for home in homes(root):
        if not any(images_below(home, home, [])):
            name = printable(home.name)
            yield note("site", f"{name!r} holds no image", f"put its images into {home / SPLITS[0]}, or remove it")


def _class_folders(data: Data, root: Path) -> Iterator[Finding]:
    """Compare the folder names with the list of classes, if there is one."""
    try:
        listed = find_classes(data.classes_file, root)
    except FedCoPLError:
        return  # reported by the reader of the images
    if listed is None:
        return
    classes = [clean(name) for name in listed.names]
    named = {name for home in homes(root) for name in _named_after_classes(home, classes)}
    for name in sorted(named - set(classes))[:MOST_NAMED]:
        near = difflib.get_close_matches(name, classes, n=1)
        do = f"rename it to {near[0]!r}" if near else f"add it to {listed.origin}, or move its images elsewhere"
        yield problem("classes", f"there is a folder {name!r}, and no such class in {listed.origin}", do)
    without = [name for name in classes if name not in named]
    if without and set(classes) & named:
        more = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        named_few = ", ".join(without[:MOST_NAMED]) + more
        yield note("classes", f"no folder for {named_few}", "nothing, if no image shows them")


def _named_after_classes(home: Path, classes: Collection[str]) -> Iterator[str]:
    """Yield the names of class folders in train/ and test/, or in the folder itself, except strays."""
    for parent in [home / split for split in SPLITS if is_folder(home / split)] or [home]:
        names = {clean(folder.name) for folder in folders_in(parent)}
        if names & set(classes) or not any(images_below(parent, parent, [], deep=False)):
            yield from names


def list_sites(dataset: Dataset) -> Iterator[Finding]:
    """Report the number of images of each site."""
    if dataset.train.clients is None:
        return
    sites = len(dataset.clients)
    train = np.bincount(dataset.train.clients, minlength=sites)
    test = np.zeros(sites, int) if dataset.test.clients is None else np.bincount(dataset.test.clients, minlength=sites)
    for name, images, tested in zip(dataset.clients, train, test, strict=True):
        held = f"{printable(name)!r}: {images:,} training and {counted(tested, 'test image')}"
        yield ok("site", held) if images else problem("site", held, "give it training images, or remove its folder")


def fix_folders(data: Data) -> Iterator[str]:
    """Rename misspelt folders where the right name is free; yields what was done."""
    root = Path(data.path).expanduser()
    for home in homes(root) if data.source == "folder" and root.is_dir() else []:
        for folder, split in misspelt(home):
            if not (home / split).exists():
                folder.rename(home / split)
                yield f"{folder} is now called {split}"
