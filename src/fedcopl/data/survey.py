"""A look at a whole data set before anybody works with it: how many of what, and which images are broken."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cache import Progress
from .dataset import Dataset, ImageSet, Skipped
from .digests import UNREADABLE, digest
from .images import BadImage, StoredImages, quiet
from .parallel import in_order
from .prepare import repeats


@dataclass(frozen=True)
class DatasetSurvey:
    """What was found. Broken images are counted in no class."""

    dataset: Dataset  # without the broken ones, which are in its `skipped`
    notes: tuple[str, ...]

    def counts(self) -> dict[str, tuple[int | None, int | None]]:
        """Of each class: its train and test images; None where nobody knows."""
        classes = self.dataset.classes
        train, test = (_by_class(images, len(classes)) for images in (self.dataset.train, self.dataset.test))
        return {
            name: (
                None if train is None else int(train[place]),
                None if test is None else int(test[place]),
            )
            for place, name in enumerate(classes)
        }


def survey(dataset: Dataset, progress: Progress = lambda done, total: None) -> DatasetSurvey:
    """Open every image once. Nothing is written anywhere."""
    first, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train, broken_train = _open_all(dataset.train, lambda done: progress(done, total))
    test, broken_test = _open_all(dataset.test, lambda done: progress(first + done, total))
    skipped: list[Skipped] = [
        *((dataset.train.names[place], reason) for place, reason in broken_train.items()),
        *((dataset.test.names[place], reason) for place, reason in broken_test.items()),
    ]
    usable = dataset.without(broken_train, broken_test, skipped)
    notes = [*repeats(train, test), *_small_clients(usable), *_empty_classes(usable)]
    return DatasetSurvey(usable, tuple(notes))


def _open_all(images: ImageSet, progress: Callable[[int], None]) -> tuple[list[str], dict[int, str]]:
    """The digest of each image, and why the broken ones are."""
    stored = images.images
    if not isinstance(stored, StoredImages):
        return [digest(image.mode, image.tobytes()) for image in stored], {}
    contents, broken = [], {}
    with quiet():
        for place, (content, reason) in enumerate(in_order(lambda place: _open(stored, place), len(stored))):
            contents.append(content)
            if reason:
                broken[place] = reason
            progress(place + 1)
    return contents, broken


def _open(stored: StoredImages, place: int) -> tuple[str, str]:
    try:
        content = stored.content(place)
    except OSError as error:
        reason = f"{UNREADABLE}{error.strerror or error}"
        return reason, reason
    try:
        stored.decode(content)
    except BadImage as reason:
        return digest(stored.kind, content), str(reason)
    return digest(stored.kind, content), ""


def _by_class(images: ImageSet, classes: int) -> NDArray[np.int64] | None:
    return None if images.labels is None else np.bincount(images.labels, minlength=classes)


def _empty_classes(dataset: Dataset) -> list[str]:
    counts = _by_class(dataset.train, len(dataset.classes))
    empty = [] if counts is None else [dataset.classes[place] for place in np.flatnonzero(counts == 0)]
    return [f"no training image of {', '.join(empty)}"] if empty else []


def _small_clients(dataset: Dataset) -> list[str]:
    if dataset.train.clients is None:
        return []
    held = np.bincount(dataset.train.clients, minlength=len(dataset.clients))
    return [
        f"the client {dataset.clients[place]} has {held[place] or 'no'} training image"
        for place in np.flatnonzero(held <= 1)
    ]
