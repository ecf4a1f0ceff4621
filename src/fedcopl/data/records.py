"""From a list of what is where to a data set. Every reader of files ends here."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..plurals import counted
from .dataset import Dataset, ImageSet, ListedClasses, Skipped, clean, clean_all
from .images import ImageFiles

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
