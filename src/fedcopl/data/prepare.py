"""From a data set to pixels, once per run: what is broken is left out, before anybody is given images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..plurals import counted
from .cache import Bad, Cut, PixelCache, Progress
from .dataset import Dataset
from .digests import UNREADABLE


@dataclass(frozen=True)
class Prepared:
    """A data set without its broken images, and the pixels of the others."""

    dataset: Dataset  # `skipped` tells of everything that was left out
    train: NDArray[np.uint8]  # (n, 3, side, side), perhaps mapped from disk
    test: NDArray[np.uint8]
    notes: tuple[str, ...]  # what the user should know, in whole sentences


def prepare(
    dataset: Dataset, cut: Cut, key: str, cache: PixelCache, progress: Progress = lambda done, total: None
) -> Prepared:
    """Decode and cut all images; `cut` and `key` are those of an ImageTransform."""
    first, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train = cache.pixels(dataset.train, cut, key, lambda done, _: progress(done, total))
    test = cache.pixels(dataset.test, cut, key, lambda done, _: progress(first + done, total))
    if len(train.array) == 0:
        raise DataError(f"{dataset.name}: of {counted(first, 'training image')} none can be used{_first(train.bad)}")
    usable = dataset.without(
        (bad.number for bad in train.bad),
        (bad.number for bad in test.bad),
        ((bad.name, bad.reason) for bad in (*train.bad, *test.bad)),
    )
    return Prepared(usable, train.array, test.array, tuple(repeats(train.digests, test.digests)))


def repeats(train: Sequence[str], test: Sequence[str]) -> list[str]:
    """Sentences about images that are there more than once. They are kept: leaving them out is the owner's choice."""
    seen = Counter(content for content in train if not content.startswith(UNREADABLE))
    again = sum(seen.values()) - len(seen)
    shared = sum(content in seen for content in test)
    copies = ("training image is an exact copy of another", "training images are exact copies of others")
    in_both = ("test image is also a training image", "test images are also training images")
    return [counted(count, *words) for count, words in ((again, copies), (shared, in_both)) if count]


def _first(bad: Sequence[Bad]) -> str:
    return f", the first, {bad[0].name}: {bad[0].reason}" if bad else ""
