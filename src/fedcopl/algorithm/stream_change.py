"""Drift detection: whether recent images are distributed as earlier ones, without labels.

One model sees both sets, of n and m images. Three statistics between 0 and 1:

    mix      1/2 sum_c |mean p~(c) - mean p~'(c)|: total variation between the class shares
    doubt    share of recent images with a confidence in the lowest twentieth of the earlier ones
    looks    sup_t |F(t) - F'(t)|: Kolmogorov-Smirnov statistic of the distances to the nearest prototype

A permutation test gives the p-value of each: a change has a p-value below 1/300, and is large enough to matter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import FloatArray, IntArray

_TAIL = 0.05  # of the earlier images: the least confident ones
_PERMUTATIONS, _MAX_P_VALUE = 999, 0.01 / 3  # three tests, one false alarm in a hundred checks
_MIN_SIZE: Mapping[str, float] = {"class_prior": 0.1, "confidence": 3 * _TAIL, "features": 0.15}
_MAX_IMAGES = 4000  # images of a set: more do not change the result


@dataclass(frozen=True)
class PredictedImages:
    """Predictions of a set of images."""

    posteriors: FloatArray  # p~, (n, C)
    distances: FloatArray | None = None  # D^2 to the nearest prototype, (n,); None where there are none

    def __len__(self) -> int:
        return len(self.posteriors)

    def rows(self, index: IntArray) -> "PredictedImages":
        return PredictedImages(self.posteriors[index], None if self.distances is None else self.distances[index])


@dataclass(frozen=True)
class StreamChange:
    """The result of one of the tests."""

    aspect: str  # class_prior, confidence or features
    size: float
    p_value: float  # of the permutation test

    @property
    def is_change(self) -> bool:
        return self.p_value <= _MAX_P_VALUE and self.size >= _MIN_SIZE[self.aspect]


def stream_changes(before: PredictedImages, recent: PredictedImages, random: np.random.Generator) -> list[StreamChange]:
    """Return the results of the three tests; of two without prototypes."""
    before, recent = (_subsample(images, random) for images in (before, recent))
    pooled = _concatenate(before, recent)
    permutations = [random.permutation(len(pooled)) for _ in range(_PERMUTATIONS)]
    statistics: dict[str, Callable[[PredictedImages, PredictedImages], float]] = {
        "class_prior": _class_prior_shift,
        "confidence": _low_confidence_share,
    }
    if pooled.distances is not None:
        statistics["features"] = _ks_statistic
    return [
        StreamChange(
            aspect, size := statistic(before, recent), _p_value(statistic, pooled, len(before), size, permutations)
        )
        for aspect, statistic in statistics.items()
    ]


def _class_prior_shift(before: PredictedImages, recent: PredictedImages) -> float:
    return float(np.abs(classes_moved(before, recent)).sum() / 2)


def _low_confidence_share(before: PredictedImages, recent: PredictedImages) -> float:
    """Return the share of recent images whose confidence is in the lowest tail of the earlier ones."""
    threshold = np.quantile(before.posteriors.max(axis=1), _TAIL)
    return float((recent.posteriors.max(axis=1) < threshold).mean())


def _ks_statistic(before: PredictedImages, recent: PredictedImages) -> float:
    """Return the Kolmogorov-Smirnov statistic of the distances."""
    assert before.distances is not None and recent.distances is not None
    earlier, later = np.sort(before.distances), np.sort(recent.distances)
    thresholds = np.concatenate([earlier, later])
    difference = np.searchsorted(earlier, thresholds, "right") / len(earlier) - np.searchsorted(
        later, thresholds, "right"
    ) / len(later)
    return float(np.abs(difference).max())


def classes_moved(before: PredictedImages, recent: PredictedImages) -> FloatArray:
    """Return the change of each class's share of the images, (C,)."""
    change: FloatArray = recent.posteriors.mean(axis=0) - before.posteriors.mean(axis=0)
    return change


def _p_value(
    statistic: Callable[[PredictedImages, PredictedImages], float],
    pooled: PredictedImages,
    split: int,
    size: float,
    permutations: list[IntArray],
) -> float:
    exceeded = sum(statistic(pooled.rows(order[:split]), pooled.rows(order[split:])) >= size for order in permutations)
    return (1 + exceeded) / (1 + len(permutations))


def _concatenate(before: PredictedImages, recent: PredictedImages) -> PredictedImages:
    posteriors = np.concatenate([before.posteriors, recent.posteriors])
    if before.distances is None or recent.distances is None:
        return PredictedImages(posteriors)
    return PredictedImages(posteriors, np.concatenate([before.distances, recent.distances]))


def _subsample(images: PredictedImages, random: np.random.Generator) -> PredictedImages:
    if len(images) <= _MAX_IMAGES:
        return images
    return images.rows(np.sort(random.choice(len(images), _MAX_IMAGES, replace=False)))
