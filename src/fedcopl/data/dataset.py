"""Data sets: images with class names, and optional labels and clients; readers build them from lists of files."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, has_control_characters, printable
from ..files import read_limited
from ..plurals import counted
from .images import FilePage, ImageList, StoredImages

Skipped = tuple[str, str]
"""Name of an excluded image, and the reason."""


@dataclass(frozen=True)
class ImageSet:
    """Images with optional true labels, which only evaluation and simulated partitions may use."""

    images: StoredImages  # decoded on access
    labels: NDArray[np.int64] | None = None
    names: Sequence[str] = ()  # printable: the path below the data set's folder, or a number
    clients: NDArray[np.int64] | None = None  # number of the client of each image

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", [str(index) for index in range(len(self.images))])

    def __len__(self) -> int:
        return len(self.images)

    def without(self, indices: Iterable[int]) -> "ImageSet":
        """Return the set without the images at these positions."""
        dropped = set(indices)
        kept = [index for index in range(len(self)) if index not in dropped]
        labels, clients = (None if numbers is None else numbers[kept] for numbers in (self.labels, self.clients))
        return ImageSet(self.images.take(kept), labels, [self.names[index] for index in kept], clients)


@dataclass(frozen=True)
class Dataset:
    """A data set with its splits, class names and zero-shot template."""

    name: str
    classes: tuple[str, ...]  # as in a sentence: `clean_class_name`
    template: str  # the zero-shot sentence, {} for the class name
    train: ImageSet
    test: ImageSet
    clients: tuple[str, ...] = ()  # names of the clients that `ImageSet.clients` numbers
    skipped: Sequence[Skipped] = ()
    synonyms: str = ""  # synonyms of classes in the syntax of `model.template`: `clip.wording`

    def wording(self, template: str) -> str:
        """Return a template, by default that of the data set, with the synonyms of the classes."""
        return (template or self.template) + self.synonyms

    def without(self, train: Mapping[int, str], test: Mapping[int, str]) -> "Dataset":
        """Return the data set without the images at these positions, which are added with a reason to `skipped`."""
        parts = ((self.train, train), (self.test, test))
        skipped = [(images.names[index], reason) for images, bad in parts for index, reason in bad.items()]
        return replace(
            self, train=self.train.without(train), test=self.test.without(test), skipped=[*self.skipped, *skipped]
        )


CLASSES_FILE = "classes.txt"
_MAX_CLASSES, _MAX_CLASSES_FILE = 50_000, 10_000_000  # twice as many as in ImageNet-21k; bytes


def clean_class_name(name: str) -> str:
    """Return a class name as in a sentence and in Unicode's NFC form: `tennis_court` becomes `tennis court`."""
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def clean_class_names(names: Sequence[str], origin: object) -> tuple[str, ...]:
    """Clean all class names; raises DataError for duplicate, empty or unprintable names."""
    if len(names) > _MAX_CLASSES:
        raise DataError(f"{origin}: has {len(names):,} classes, more than {_MAX_CLASSES:,}")
    cleaned = [clean_class_name(name) for name in names]
    if unprintable := next((name for name in cleaned if printable(name) != name), None):
        raise DataError(f"{origin}: the class name {unprintable!r} has a control character; remove that character")
    duplicates = [name for name, count in Counter(cleaned).items() if count > 1]
    if duplicates:
        originals = [name for name, result in zip(names, cleaned, strict=True) if result == duplicates[0]]
        if len(set(originals)) == 1:
            raise DataError(f"{origin}: lists the class {originals[0]!r} {len(originals)} times; keep one of them")
        listed = ", ".join(map(repr, originals))
        raise DataError(f"{origin}: the classes {listed} all become {duplicates[0]!r}; give each a unique name")
    if "" in cleaned:
        raise DataError(f"{origin}: a class has an empty name ({names[cleaned.index('')]!r}); name it or remove it")
    return tuple(cleaned)


@dataclass(frozen=True)
class ClassList:
    """Class names in order, and their synonyms."""

    names: Sequence[str]
    origin: object  # the file or folder with the names, for error messages
    synonyms: str = ""  # in the syntax of `model.template`


def read_classes(file: Path) -> ClassList:
    """Read class names, one per line; synonyms may follow a name, as in `cat | kitten | feline`."""
    try:
        lines = read_limited(file, _MAX_CLASSES_FILE).decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such list of classes; write one class name per line into it") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as a list of class names: {error}") from error
    rows = [[clean_class_name(name) for name in line.split("|")] for line in lines if line.strip()]
    if not rows:
        raise DataError(f"{file}: contains no class names; write one name per line")
    if empty := next((names for names in rows if "" in names), None):
        raise DataError(f"{file}: the line {' | '.join(empty)!r} has an empty name; write name | other name")
    synonyms = "".join(f" | {name} = {synonym}" for name, *others in rows for synonym in others)
    return ClassList(clean_class_names([names[0] for names in rows], file), file, synonyms)


def find_classes(classes_file: str, root: Path) -> ClassList | None:
    """Read `classes_file`, or if it is empty classes.txt in `root`; return None if there is no classes.txt."""
    file = Path(classes_file).expanduser() if classes_file else root / CLASSES_FILE
    return read_classes(file) if classes_file or file.is_file() else None


Split = Literal["train", "test"]
TEMPLATE = "a photo of a {}"


@dataclass(frozen=True)
class FileRecord:
    """An image file found by a reader."""

    name: str  # below the root, with /
    path: Path
    split: Split
    label: str | None = None
    client: str | None = None


def by_name(name: str) -> tuple[str, str]:
    """Return a sort key that is equal on all machines: macOS stores accents as two characters, Linux mostly as one."""
    return unicodedata.normalize("NFC", name), name


def build(
    name: str,
    origin: Path,
    records: Iterable[FileRecord],
    *,
    class_list: ClassList | None = None,
    skipped: Iterable[Skipped] = (),
) -> Dataset:
    """Build a data set of image files, sorted by name; if `class_list` is None, the classes are the sorted labels."""
    ordered = sorted(records, key=lambda record: by_name(record.name))
    if not any(record.split == "train" for record in ordered):
        excluded = sorted(skipped)
        example = f"; {len(excluded)} skipped, the first: {excluded[0][0]}: {excluded[0][1]}" if excluded else ""
        raise DataError(f"{origin}: contains no training images{example}; docs/data.md shows the layouts")
    classes = _classes(ordered, origin, class_list)
    without_client = [record.name for record in ordered if record.client is None]
    clients = tuple(sorted({record.client for record in ordered if record.client is not None}, key=by_name))
    if clients and without_client:
        raise DataError(
            f"{origin}: {counted(len(without_client), 'image has', 'images have')} no client, the first: "
            f"{without_client[0]}; name the client of every image or of none"
        )
    if unprintable := next((name for name in clients if has_control_characters(name)), None):
        raise DataError(f"{origin}: the client name {unprintable!r} has a control character; rename the client")
    train, test = (
        _image_set([record for record in ordered if record.split == split], origin, classes, clients)
        for split in ("train", "test")
    )
    excluded = sorted((printable(image), reason) for image, reason in skipped)
    return Dataset(name, classes, TEMPLATE, train, test, clients, excluded, class_list.synonyms if class_list else "")


def _classes(records: Sequence[FileRecord], origin: Path, class_list: ClassList | None) -> tuple[str, ...]:
    labels = sorted({record.label for record in records if record.label is not None}, key=by_name)
    if class_list is None:
        if not labels:
            raise DataError(
                f"{origin}: has neither labels nor a list of classes; write classes.txt, one name per line, "
                "or name another list with data.classes_file"
            )
        return clean_class_names(labels, origin)
    classes = clean_class_names(class_list.names, class_list.origin)
    listed_names = set(classes)
    unlisted = [label for label in labels if clean_class_name(label) not in listed_names]
    if unlisted:
        raise DataError(f"{origin}: the class {unlisted[0]!r} is not in the list of classes, {class_list.origin}")
    return classes


def _image_set(records: Sequence[FileRecord], origin: Path, classes: Sequence[str], clients: Sequence[str]) -> ImageSet:
    """Build one split; raises DataError if only some of its images have a label."""
    label_of = {name: number for number, name in enumerate(classes)}
    client_of = {name: number for number, name in enumerate(clients)}
    unlabelled = [record.name for record in records if record.label is None]
    labels = None
    if len(unlabelled) < len(records):
        if unlabelled:
            raise DataError(
                f"{origin}: has no label for {len(unlabelled)} of {len(records)} {records[0].split} images, "
                f"the first: {unlabelled[0]}; label all of them or none"
            )
        labels = np.array([label_of[clean_class_name(record.label or "")] for record in records], np.int64)
    return ImageSet(
        ImageList([FilePage(record.path) for record in records]),
        labels,
        [printable(record.name) for record in records],
        np.array([client_of[record.client or ""] for record in records], np.int64) if clients else None,
    )
