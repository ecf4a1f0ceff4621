"""What a data set is to the rest of the program."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .images import StoredImages

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
            object.__setattr__(self, "names", [str(place) for place in range(len(self.images))])

    def __len__(self) -> int:
        return len(self.images)

    def without(self, places: Iterable[int]) -> "ImageSet":
        """The same set with some images left out."""
        dropped = set(places)
        if not dropped:
            return self
        kept = [place for place in range(len(self)) if place not in dropped]
        stored = self.images
        return ImageSet(
            stored.take(kept) if isinstance(stored, StoredImages) else [stored[place] for place in kept],
            None if self.labels is None else self.labels[kept],
            [self.names[place] for place in kept],
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

    def without(self, train: Iterable[int], test: Iterable[int], skipped: Iterable[Skipped]) -> "Dataset":
        """The same data set with some images left out, and why."""
        return replace(
            self,
            train=self.train.without(train),
            test=self.test.without(test),
            skipped=[*self.skipped, *skipped],
        )
