"""Drift detection: a site's recent images compared with those its classifier was trained on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..algorithm import FloatArray
from ..algorithm.stream_change import PredictedImages, StreamChange, classes_moved, stream_changes
from ..errors import DataError
from ..plurals import counted
from ..rng import stream
from .predict import Classifier, NamedImage

_MIN_IMAGES = 30  # in each set: with fewer no change is significant
_MOVED = 5  # classes to name


@dataclass(frozen=True)
class DriftReport:
    """Changes between two sets of images, and what to do about them."""

    before: int  # number of images
    recent: int
    changes: Sequence[StreamChange]
    moved: Sequence[tuple[str, float]]  # the classes whose shares changed most

    @property
    def advice(self) -> str:
        """The recommended action, in one line.

        >>> DriftReport(99, 99, [StreamChange("class_prior", 0.3, 0.001)], []).advice
        'the class prior has changed: label with --prior images; no new run is needed for that'
        """
        changed = {one.aspect for one in self.changes if one.is_change}
        if changed & {"confidence", "features"}:
            return "the images have changed: continue this run with the recent images"
        if changed:
            return "the class prior has changed: label with --prior images; no new run is needed for that"
        return "no significant change: no new run is needed"

    @property
    def has_changed(self) -> bool:
        """True if at least one change is significant."""
        return any(one.is_change for one in self.changes)


def compare_streams(classifier: Classifier, before: Iterable[NamedImage], recent: Iterable[NamedImage]) -> DriftReport:
    """Compare two sets of images by the classifier's predictions; unreadable images are skipped.

    Raises:
        DataError: A set has fewer than 30 images.
    """
    earlier, later = _scores(classifier, before, trained_on=True), _scores(classifier, recent, trained_on=False)
    for name, images in (("before", earlier), ("recent", later)):
        if len(images) < _MIN_IMAGES:
            raise DataError(
                f"{name}: {counted(len(images), 'image is', 'images are')} too few for a significant change; "
                f"{_MIN_IMAGES} are needed"
            )
    changes = stream_changes(earlier, later, stream(0, "drift"))
    change = classes_moved(earlier, later)
    largest = np.argsort(-np.abs(change), kind="stable")[:_MOVED]
    return DriftReport(
        len(earlier), len(later), changes, [(classifier.recipe.classes[c], float(change[c])) for c in largest]
    )


def _scores(classifier: Classifier, pictures: Iterable[NamedImage], *, trained_on: bool) -> PredictedImages:
    batches = (batch for batch in classifier.batches(pictures) if len(batch.pixels))
    outputs = [classifier.predictor.model_outputs(batch.pixels) for batch in batches]
    if not outputs:
        return PredictedImages(np.zeros((0, len(classifier.recipe.classes))))
    log_probs, features = (np.concatenate(column) for column in zip(*outputs, strict=True))
    if classifier.prior is None:
        return PredictedImages(np.exp(log_probs))
    posteriors: FloatArray = np.exp(classifier.prior.log_posteriors(log_probs, features))
    prototypes = classifier.prior.model.prototypes
    if prototypes is None:
        return PredictedImages(posteriors)
    # An image that contributed to a prototype is near to it: its own share is removed.
    own = posteriors if trained_on else None
    return PredictedImages(posteriors, prototypes.distances(features, own).min(axis=1))
