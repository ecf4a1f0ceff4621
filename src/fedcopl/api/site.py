"""One site of a federation: its images, which nobody else sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.handed_over import Images, LabelsOfImages, SiteHolding, gather, gather_labelled
from ..errors import DataError


@dataclass(frozen=True, repr=False)
class Site:
    """A name, unlabelled images, and test images with labels where there are any.

    Images are a folder, a list of paths, Pillow images or arrays, or a uint8 array (n, height, width, 3). `test` is
    `(images, labels)`, or a folder with a sub-folder for each class: to measure accuracy, and for nothing else.
    """

    name: str
    images: Images
    test: Images | tuple[Images, LabelsOfImages] | None = None

    def holding(self, classes: Sequence[str]) -> SiteHolding:
        """All of it, listed and checked."""
        what = f"site {self.name}"
        train = gather(self.images, what)
        if not len(train):
            why = f"; {train.skipped[0][0]}: {train.skipped[0][1]}" if train.skipped else ""
            raise DataError(f"{what}: has no images{why}")
        if self.test is None:
            return SiteHolding(self.name, train)
        images, labels = self.test if isinstance(self.test, tuple) else (self.test, None)
        return SiteHolding(self.name, train, *gather_labelled(images, labels, classes, f"{what}, test"))

    def __repr__(self) -> str:
        measured = "" if self.test is None else ", with test images"
        return f"<Site {self.name}: {_short(self.images)}{measured}>"


def _short(images: Images) -> str:
    if isinstance(images, np.ndarray):
        return f"{len(images)} images in memory"
    return str(images) if isinstance(images, str) or not isinstance(images, Sequence) else f"{len(images)} images"
