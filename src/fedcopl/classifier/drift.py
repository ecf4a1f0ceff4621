"""Drift detection: a site's recent images compared with the images its classifier was trained on.

Three statistics between 0 and 1 compare a classifier's predictions of both sets:

    class_prior  1/2 sum_c |mean p~(c) - mean p~'(c)|: total variation distance of the class shares
    confidence   share of recent images with a confidence below the 5 % quantile of the earlier images
    features     sup_t |F(t) - F'(t)|: Kolmogorov-Smirnov statistic of the distances to the nearest prototype

A change is significant if its statistic is large enough to matter and a permutation test gives a p-value below 1/300.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..errors import DataError
from ..plurals import counted
from ..rng import stream
from .predict import Classifier, NamedImage

_MIN_IMAGES = 30  # in each set; with fewer, no change would be significant
_NAMED_CLASSES = 5  # classes to report
_TAIL = 0.05  # quantile of the earlier images' confidence
_PERMUTATIONS, _MAX_P_VALUE = 999, 0.01 / 3  # false-alarm rate of 1 % for three tests
_MIN_SIZE: Mapping[str, float] = {"class_prior": 0.1, "confidence": 3 * _TAIL, "features": 0.15}
_MAX_IMAGES = 4000  # in each set; more do not change the result


@dataclass(frozen=True)
class _PredictedImages:
    """Predictions of a set of images."""

    posteriors: FloatArray  # p~, (n, C)
    distances: FloatArray | None = None  # D^2 to the nearest prototype, (n,); None without prototypes

    def __len__(self) -> int:
        return len(self.posteriors)

    def rows(self, index: IntArray) -> "_PredictedImages":
        return _PredictedImages(self.posteriors[index], None if self.distances is None else self.distances[index])


@dataclass(frozen=True)
class _StreamChange:
    """The result of one test."""

    statistic: str  # "class_prior", "confidence" or "features"
    size: float  # value of the statistic
    p_value: float

    @property
    def is_change(self) -> bool:
        return self.p_value <= _MAX_P_VALUE and self.size >= _MIN_SIZE[self.statistic]


@dataclass(frozen=True)
class _DriftReport:
    """Changes between two sets of images, and a recommendation."""

    before: int  # number of images
    recent: int
    changes: Sequence[_StreamChange]
    class_changes: Sequence[tuple[str, float]]  # largest changes of a class's share of the images

    @property
    def advice(self) -> str:
        """The recommended action, in one line.

        >>> _DriftReport(99, 99, [_StreamChange("class_prior", 0.3, 0.001)], []).advice
        'the class prior has changed: label with --prior images; no new run is needed for that'
        """
        changed = {change.statistic for change in self.changes if change.is_change}
        if changed & {"confidence", "features"}:
            return "the images have changed: continue this run with the recent images"
        if changed:
            return "the class prior has changed: label with --prior images; no new run is needed for that"
        return "no significant change: no new run is needed"

    @property
    def has_changed(self) -> bool:
        """True if at least one change is significant."""
        return any(change.is_change for change in self.changes)


def compare_streams(classifier: Classifier, before: Iterable[NamedImage], recent: Iterable[NamedImage]) -> _DriftReport:
    """Compare two sets of images by the classifier's predictions; unreadable images are skipped.

    Raises:
        DataError: A set has fewer than 30 images.
    """
    earlier = _predict(classifier, before, are_training_images=True)
    later = _predict(classifier, recent, are_training_images=False)
    for name, images in (("before", earlier), ("recent", later)):
        if len(images) < _MIN_IMAGES:
            raise DataError(
                f"{name}: {counted(len(images), 'image is', 'images are')} too few for a significant change; "
                f"{_MIN_IMAGES} are needed"
            )
    changes = _stream_changes(earlier, later, stream(0, "drift"))
    share_changes = _class_share_changes(earlier, later)
    largest = np.argsort(-np.abs(share_changes), kind="stable")[:_NAMED_CLASSES]
    class_changes = [(classifier.recipe.classes[number], float(share_changes[number])) for number in largest]
    return _DriftReport(len(earlier), len(later), changes, class_changes)


def _predict(classifier: Classifier, images: Iterable[NamedImage], *, are_training_images: bool) -> _PredictedImages:
    """Predict images; unreadable ones are skipped."""
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
    # Training images contributed to the prototypes; their contributions are removed, as they shorten the distances.
    contributions = posteriors if are_training_images else None
    return _PredictedImages(posteriors, prototypes.distances(features, contributions).min(axis=1))


def _stream_changes(
    before: _PredictedImages, recent: _PredictedImages, random: np.random.Generator
) -> list[_StreamChange]:
    """Return the results of the tests; the one of features requires prototypes."""
    before, recent = _subsample(before, random), _subsample(recent, random)
    pooled = _PredictedImages(np.concatenate([before.posteriors, recent.posteriors]))
    if before.distances is not None and recent.distances is not None:
        pooled = replace(pooled, distances=np.concatenate([before.distances, recent.distances]))
    permutations = [random.permutation(len(pooled)) for _ in range(_PERMUTATIONS)]
    statistics: dict[str, Callable[[_PredictedImages, _PredictedImages], float]] = {
        "class_prior": _class_prior_shift,
        "confidence": _low_confidence_share,
    }
    if pooled.distances is not None:
        statistics["features"] = _ks_statistic
    changes = []
    for name, statistic in statistics.items():
        size = statistic(before, recent)
        splits = ((pooled.rows(order[: len(before)]), pooled.rows(order[len(before) :])) for order in permutations)
        exceeded = sum(statistic(*split) >= size for split in splits)
        changes.append(_StreamChange(name, size, (1 + exceeded) / (1 + _PERMUTATIONS)))
    return changes


def _class_prior_shift(before: _PredictedImages, recent: _PredictedImages) -> float:
    return float(np.abs(_class_share_changes(before, recent)).sum() / 2)


def _low_confidence_share(before: _PredictedImages, recent: _PredictedImages) -> float:
    """Return the share of recent images with a confidence in the lowest tail of the earlier images."""
    threshold = np.quantile(before.posteriors.max(axis=1), _TAIL)
    return float((recent.posteriors.max(axis=1) < threshold).mean())


def _ks_statistic(before: _PredictedImages, recent: _PredictedImages) -> float:
    """Return the Kolmogorov-Smirnov statistic of the distances."""
    assert before.distances is not None and recent.distances is not None
    earlier, later = np.sort(before.distances), np.sort(recent.distances)
    thresholds = np.concatenate([earlier, later])
    earlier_cdf, later_cdf = (np.searchsorted(d, thresholds, "right") / len(d) for d in (earlier, later))
    return float(np.abs(earlier_cdf - later_cdf).max())


def _class_share_changes(before: _PredictedImages, recent: _PredictedImages) -> FloatArray:
    """Return the change of each class's share of the images, (C,)."""
    change: FloatArray = recent.posteriors.mean(axis=0) - before.posteriors.mean(axis=0)
    return change


def _subsample(images: _PredictedImages, random: np.random.Generator) -> _PredictedImages:
    if len(images) <= _MAX_IMAGES:
        return images
    return images.rows(np.sort(random.choice(len(images), _MAX_IMAGES, replace=False)))
