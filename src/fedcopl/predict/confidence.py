"""When to give no answer, decided without a single label.

A classifier is compared with itself: how sure is it of its own site's images? An image of which it is less sure than of
all but a small share of those is unlike what it knows, and better looked at by a person. The share is the choice; the
threshold follows from the images. It bounds how often the classifier is silent on images like its own, and says
nothing about how often it is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

SHARE = 0.05  # of a site's own images that get no answer, unless somebody chooses otherwise
LEVELS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Confidence:
    """How sure a classifier is of its own site's images."""

    percentiles: tuple[float, ...]  # of the highest probability: the least, 1 %, ..., 99 %, the most
    images: int

    @classmethod
    def of(cls, log_probabilities: NDArray[np.float64]) -> "Confidence":
        """From log p (n, C) of the site's unlabelled images."""
        if not len(log_probabilities):
            raise DataError("there are no images to measure confidence on")
        highest = np.exp(log_probabilities.max(axis=1))
        # Each the confidence of a real image, and never the next higher one: no more than the share lies below.
        return cls(tuple(np.quantile(highest, LEVELS, method="lower").tolist()), len(highest))

    def threshold(self, share: float = SHARE) -> float:
        """The probability below which this share of the site's own images lies, in whole percents, or a little less."""
        if not 0 <= share <= 1:
            raise DataError(f"the share of images without an answer must be between 0 and 1, not {share}")
        return self.percentiles[int(share * 100 + 1e-9)]


def read_confidence(told: object) -> Confidence | None:
    """From a classifier's config.json; ValueError when it cannot be."""
    match told:
        case None:
            return None
        case {"percentiles": [*percentiles], "images": int(images)}:
            if _are_percentiles(percentiles) and images > 0:
                return Confidence(tuple(map(float, percentiles)), images)
    raise ValueError("confidence must be 101 growing probabilities and a number of images")


def _are_percentiles(values: Sequence[object]) -> bool:
    numbers = [value for value in values if isinstance(value, int | float) and 0 <= value <= 1]
    return len(numbers) == len(values) == len(LEVELS) and numbers == sorted(numbers)
