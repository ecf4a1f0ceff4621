"""Drift detection: a site's recent images compared with those its classifier was trained on.

One model sees both sets, of n and m images. Three statistics between 0 and 1:

    class_prior  1/2 sum_c |mean p~(c) - mean p~'(c)|: total variation between the class shares
    confidence   share of recent images with a confidence in the lowest twentieth of the earlier ones
    features     sup_t |F(t) - F'(t)|: Kolmogorov-Smirnov statistic of the distances to the nearest prototype

A permutation test gives the p-value of each: a change has a p-value below 1/300, and is large enough to matter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..errors import DataError
from ..plurals import counted
from ..rng import stream
from .predict import Classifier, NamedImage

_MIN_IMAGES = 30  # in each set: with fewer no change is significant
_NAMED_CLASSES = 5  # classes to name
_TAIL = 0.05  # of the earlier images: the least confident ones
_PERMUTATIONS, _MAX_P_VALUE = 999, 0.01 / 3  # three tests, one false alarm in a hundred checks
_MIN_SIZE: Mapping[str, float] = {"class_prior": 0.1, "confidence": 3 * _TAIL, "features": 0.15}
_MAX_IMAGES = 4000  # images of a set: more do not change the result


@dataclass(frozen=True)
class _PredictedImages:
    """Predictions of a set of images."""

    posteriors: FloatArray  # p~, (n, C)
    distances: FloatArray | None = None  # D^2 to the nearest prototype, (n,); None where there are none

    def __len__(self) -> int:
        return len(self.posteriors)

    def rows(self, index: IntArray) -> "_PredictedImages":
        return _PredictedImages(self.posteriors[index], None if self.distances is None else self.distances[index])


@dataclass(frozen=True)
class _StreamChange:
    """The result of one of the tests."""

    statistic: str  # "class_prior", "confidence" or "features"
    size: float  # value of the statistic
    p_value: float  # of the permutation test

    @property
    def is_change(self) -> bool:
        return self.p_value <= _MAX_P_VALUE and self.size >= _MIN_SIZE[self.statistic]


@dataclass(frozen=True)
class _DriftReport:
    """Changes between two sets of images, and what to do about them."""

    before: int  # number of images
    recent: int
    changes: Sequence[_StreamChange]
    class_changes: Sequence[tuple[str, float]]  # the classes whose shares of the images changed most, with the change

    @property
    def advice(self) -> str:
        """The recommended action, in one line.

        >>> _DriftReport(99, 99, [_StreamChange("class_prior", 0.3, 0.001)], []).advice
        'the class prior has changed: label with --prior images; no new run is needed for that'
        """
        changed = {one.statistic for one in self.changes if one.is_change}
        if changed & {"confidence", "features"}:
            return "the images have changed: continue this run with the recent images"
        if changed:
            return "the class prior has changed: label with --prior images; no new run is needed for that"
        return "no significant change: no new run is needed"

    @property
    def has_changed(self) -> bool:
        """True if at least one change is significant."""
        return any(one.is_change for one in self.changes)


def compare_streams(classifier: Classifier, before: Iterable[NamedImage], recent: Iterable[NamedImage]) -> _DriftReport:
    """Compare two sets of images by the classifier's predictions; unreadable images are skipped.

    Raises:
        DataError: A set has fewer than 30 images.
    """
    earlier, later = _predict(classifier, before, trained_on=True), _predict(classifier, recent, trained_on=False)
    for name, images in (("before", earlier), ("recent", later)):
        if len(images) < _MIN_IMAGES:
            raise DataError(
                f"{name}: {counted(len(images), 'image is', 'images are')} too few for a significant change; "
                f"{_MIN_IMAGES} are needed"
            )
    changes = _stream_changes(earlier, later, stream(0, "drift"))
    change = _class_share_changes(earlier, later)
    largest = np.argsort(-np.abs(change), kind="stable")[:_NAMED_CLASSES]
    return _DriftReport(
        len(earlier), len(later), changes, [(classifier.recipe.classes[c], float(change[c])) for c in largest]
    )


def _predict(classifier: Classifier, images: Iterable[NamedImage], *, trained_on: bool) -> _PredictedImages:
    """Return the posteriors of images and, if the classifier has prototypes, the distance to the nearest one."""
    batches = (batch for batch in classifier.batches(images) if len(batch.pixels))
    outputs = [classifier.predictor.model_outputs(batch.pixels) for batch in batches]
    if not outputs:
        return _PredictedImages(np.zeros((0, len(classifier.recipe.classes))))
    log_probs, features = (np.concatenate(column) for column in zip(*outputs, strict=True))
    if classifier.prior is None:
        return _PredictedImages(np.exp(log_probs))
    posteriors: FloatArray = np.exp(classifier.prior.log_posteriors(log_probs, features))
    prototypes = classifier.prior.model.prototypes
    if prototypes is None:
        return _PredictedImages(posteriors)
    # An image that contributed to a prototype is near to it: its own share is removed.
    own = posteriors if trained_on else None
    return _PredictedImages(posteriors, prototypes.distances(features, own).min(axis=1))


def _stream_changes(
    before: _PredictedImages, recent: _PredictedImages, random: np.random.Generator
) -> list[_StreamChange]:
    """Return the results of the three tests; of two without prototypes."""
    before, recent = (_subsample(images, random) for images in (before, recent))
    pooled = _concatenate(before, recent)
    permutations = [random.permutation(len(pooled)) for _ in range(_PERMUTATIONS)]
    statistics: dict[str, Callable[[_PredictedImages, _PredictedImages], float]] = {
        "class_prior": _class_prior_shift,
        "confidence": _low_confidence_share,
    }
    if pooled.distances is not None:
        statistics["features"] = _ks_statistic
    return [
        _StreamChange(
            name, size := statistic(before, recent), _p_value(statistic, pooled, len(before), size, permutations)
        )
        for name, statistic in statistics.items()
    ]


def _class_prior_shift(before: _PredictedImages, recent: _PredictedImages) -> float:
    return float(np.abs(_class_share_changes(before, recent)).sum() / 2)


def _low_confidence_share(before: _PredictedImages, recent: _PredictedImages) -> float:
    """Return the share of recent images whose confidence is in the lowest tail of the earlier ones."""
    threshold = np.quantile(before.posteriors.max(axis=1), _TAIL)
    return float((recent.posteriors.max(axis=1) < threshold).mean())


def _ks_statistic(before: _PredictedImages, recent: _PredictedImages) -> float:
    """Return the Kolmogorov-Smirnov statistic of the distances."""
    assert before.distances is not None and recent.distances is not None
    earlier, later = np.sort(before.distances), np.sort(recent.distances)
    thresholds = np.concatenate([earlier, later])
    difference = np.searchsorted(earlier, thresholds, "right") / len(earlier) - np.searchsorted(
        later, thresholds, "right"
    ) / len(later)
    return float(np.abs(difference).max())


def _class_share_changes(before: _PredictedImages, recent: _PredictedImages) -> FloatArray:
    """Return the change of each class's share of the images, (C,)."""
    change: FloatArray = recent.posteriors.mean(axis=0) - before.posteriors.mean(axis=0)
    return change


def _p_value(
    statistic: Callable[[_PredictedImages, _PredictedImages], float],
    pooled: _PredictedImages,
    split: int,
    size: float,
    permutations: list[IntArray],
) -> float:
    exceeded = sum(statistic(pooled.rows(order[:split]), pooled.rows(order[split:])) >= size for order in permutations)
    return (1 + exceeded) / (1 + len(permutations))


def _concatenate(before: _PredictedImages, recent: _PredictedImages) -> _PredictedImages:
    posteriors = np.concatenate([before.posteriors, recent.posteriors])
    if before.distances is None or recent.distances is None:
        return _PredictedImages(posteriors)
    return _PredictedImages(posteriors, np.concatenate([before.distances, recent.distances]))


def _subsample(images: _PredictedImages, random: np.random.Generator) -> _PredictedImages:
    if len(images) <= _MAX_IMAGES:
        return images
    return images.rows(np.sort(random.choice(len(images), _MAX_IMAGES, replace=False)))
