"""What a data set is to the rest of the program."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from ..plurals import counted
from .images import ImageFiles, StoredImages

Skipped = tuple[str, str]
"""An image that is left out: its name, and why."""


@dataclass(frozen=True)
class ImageSet:
    """Images, and the truth about them where somebody knows it. Only evaluation may look at `labels`."""

    images: Sequence[Image.Image]  # opened when asked for, unless the set is small and embedded
    labels: NDArray[np.int64] | None = None
    names: Sequence[str] = ()  # fit to be printed: the path below the root, or a number
    clients: NDArray[np.int64] | None = None  # who holds each image, where the data set says so

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", [str(index) for index in range(len(self.images))])

    def __len__(self) -> int:
        return len(self.images)

    def without(self, indices: Iterable[int]) -> "ImageSet":
        """The same set with some images left out."""
        dropped = set(indices)
        if not dropped:
            return self
        kept = [index for index in range(len(self)) if index not in dropped]
        stored = self.images
        return ImageSet(
            stored.take(kept) if isinstance(stored, StoredImages) else [stored[index] for index in kept],
            None if self.labels is None else self.labels[kept],
            [self.names[index] for index in kept],
            None if self.clients is None else self.clients[kept],
        )


@dataclass(frozen=True)
class Dataset:
    name: str
    classes: tuple[str, ...]  # cleaned: as they stand in a sentence
    template: str  # the zero-shot sentence, {} for the class name
    train: ImageSet
    test: ImageSet
    clients: tuple[str, ...] = ()  # of the natural partition, in the order of the numbers in ImageSet.clients
    skipped: Sequence[Skipped] = ()
    other_names: str = ""  # of the classes, as `model.template` has them; see `clip.wording`

    def wording(self, template: str) -> str:
        """What the classes are called in sentences: the template given or one's own, and the other names."""
        return (template or self.template) + self.other_names

    def without(self, train: Iterable[int], test: Iterable[int], skipped: Iterable[Skipped]) -> "Dataset":
        """The same data set with some images left out, and why."""
        return replace(
            self,
            train=self.train.without(train),
            test=self.test.without(test),
            skipped=[*self.skipped, *skipped],
        )


CLASSES_FILE = "classes.txt"


def clean(name: str) -> str:
    """`tennis_court` -> `tennis court`; the same letters are the same characters on every system."""
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def clean_all(names: Sequence[str], origin: object) -> tuple[str, ...]:
    """All names cleaned; two that become one, or a name of nothing, is an error."""
    cleaned = [clean(name) for name in names]
    twice = [name for name, count in Counter(cleaned).items() if count > 1]
    if twice:
        same = ", ".join(repr(name) for name, result in zip(names, cleaned, strict=True) if result == twice[0])
        raise DataError(f"{origin}: the classes {same} are all called {twice[0]!r}; give each a name of its own")
    if "" in cleaned:
        raise DataError(f"{origin}: a class has an empty name ({names[cleaned.index('')]!r})")
    return tuple(cleaned)


def read_classes(file: Path) -> list[str]:
    """One class a line; empty lines do not count. What follows a `|` are other names, see `read_other_names`."""
    return [names[0] for names in _names_by_line(file)]


def read_other_names(file: Path) -> str:
    """Of lines such as `cat | kitten | feline` all but the first names, as they are put behind a template."""
    lines = [[clean(name) for name in names] for names in _names_by_line(file)]
    return "".join(f" | {names[0]} = {other}" for names in lines for other in names[1:])


def _names_by_line(file: Path) -> list[list[str]]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such list of classes") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as a list of class names: {error}") from error
    named = [[name.strip() for name in line.split("|")] for line in lines if line.strip()]
    if not named:
        raise DataError(f"{file}: names no class; write one name a line")
    empty = next((names for names in named if "" in names), None)
    if empty is not None:
        raise DataError(f"{file}: the line {' | '.join(empty)!r} has an empty name; write name | other name")
    return named


@dataclass(frozen=True)
class ListedClasses:
    """Classes in their order, where they were found, and what else they are called."""

    names: Sequence[str]
    origin: object
    other_names: str = ""


def find_classes(classes_file: str, root: Path) -> ListedClasses | None:
    """The list of classes the settings name, else the one beside the images, if there is one."""
    file = Path(classes_file).expanduser() if classes_file else root / CLASSES_FILE
    if not classes_file and not file.is_file():
        return None
    return ListedClasses(read_classes(file), file, read_other_names(file))


Split = Literal["train", "test"]
TEMPLATE = "a photo of a {}"


@dataclass(frozen=True)
class FileRecord:
    """One image, as a reader found it."""

    name: str  # below the root, with /
    path: Path
    split: Split
    label: str | None = None
    client: str | None = None


def by_name(name: str) -> tuple[str, str]:
    """Sorts alike on every machine: macOS spells accents in two characters, Linux mostly in one."""
    return unicodedata.normalize("NFC", name), name


def printable(name: str) -> str:
    """File names may hold bytes that are no text."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def build(
    name: str,
    origin: Path,
    records: Iterable[FileRecord],
    *,
    listed: ListedClasses | None = None,
    template: str = TEMPLATE,
    skipped: Iterable[Skipped] = (),
) -> Dataset:
    """A data set of these images, in the order of their names.

    `listed` are the classes in their order and where they were found; without, they are the labels, sorted.
    """
    ordered = sorted(records, key=lambda record: by_name(record.name))
    if not any(record.split == "train" for record in ordered):
        raise DataError(f"{origin}: holds no training images{_first_reason(skipped)}")
    classes = _classes(ordered, origin, listed)
    clients = _clients(ordered, origin)
    return Dataset(
        name,
        classes,
        template,
        _image_set([record for record in ordered if record.split == "train"], origin, classes, clients),
        _image_set([record for record in ordered if record.split == "test"], origin, classes, clients),
        clients,
        sorted((printable(image), reason) for image, reason in skipped),
        "" if listed is None else listed.other_names,
    )


def _first_reason(skipped: Iterable[Skipped]) -> str:
    left_out = sorted(skipped)
    if not left_out:
        return ""
    name, reason = left_out[0]
    return f"; {len(left_out)} left out, the first: {printable(name)}: {reason}"


def _classes(records: Sequence[FileRecord], origin: Path, listed: ListedClasses | None) -> tuple[str, ...]:
    labels = sorted({record.label for record in records if record.label is not None}, key=by_name)
    if listed is None:
        if not labels:
            raise DataError(
                f"{origin}: has neither labels nor a list of classes; write classes.txt, one name a line, "
                "or name another list with data.classes_file"
            )
        return clean_all(labels, origin)
    classes = clean_all(listed.names, listed.origin)
    unknown = [label for label in labels if clean(label) not in classes]
    if unknown:
        raise DataError(f"{origin}: the class {unknown[0]!r} is not in the list of classes, {listed.origin}")
    return classes


def _clients(records: Sequence[FileRecord], origin: Path) -> tuple[str, ...]:
    """All clients, sorted; either every image names its client or none does."""
    homeless = [record.name for record in records if record.client is None]
    clients = {record.client for record in records if record.client is not None}
    if clients and homeless:
        raise DataError(
            f"{origin}: {counted(len(homeless), 'image has', 'images have')} no client, "
            f"the first: {printable(homeless[0])}"
        )
    return tuple(sorted(clients, key=by_name))


def _image_set(records: Sequence[FileRecord], origin: Path, classes: Sequence[str], clients: Sequence[str]) -> ImageSet:
    number = {client: position for position, client in enumerate(clients)}
    return ImageSet(
        ImageFiles([record.path for record in records]),
        _labels(records, origin, classes),
        [printable(record.name) for record in records],
        np.array([number[record.client or ""] for record in records], np.int64) if clients else None,
    )


def _labels(records: Sequence[FileRecord], origin: Path, classes: Sequence[str]) -> NDArray[np.int64] | None:
    number = {name: position for position, name in enumerate(classes)}
    known = [number[clean(record.label)] for record in records if record.label is not None]
    if not known:
        return None
    if len(known) < len(records):
        nameless = next(record for record in records if record.label is None)
        raise DataError(
            f"{origin}: {len(records) - len(known)} of {len(records)} {nameless.split} images have no label, "
            f"the first: {printable(nameless.name)}; label all of them or none"
        )
    return np.array(known, np.int64)
