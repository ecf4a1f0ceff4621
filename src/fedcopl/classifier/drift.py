"""`fedcopl drift`: a site's recent images against those its classifier was made with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..algorithm import FloatArray
from ..algorithm.stream_change import SeenImages, StreamChange, classes_moved, stream_changes
from ..errors import DataError
from ..plurals import counted
from ..rng import stream
from .predict import Classifier
from .predictions import NamedImages

FEWEST = 30  # images on each side: with fewer nothing can be told from chance
MOVED = 5  # classes to name


@dataclass(frozen=True)
class DriftReport:
    """What has changed, and what to do about it."""

    before: int  # images
    recent: int
    changes: Sequence[StreamChange]
    moved: Sequence[tuple[str, float]]  # the classes that have become more or less common most

    @property
    def advice(self) -> str:
        """
        >>> DriftReport(99, 99, [StreamChange("mix", 0.3, 0.001)], []).advice
        'the mix of classes has changed: label with --prior images; a new run is not needed for that'
        """
        changed = {one.what for one in self.changes if one.is_change}
        if changed & {"doubt", "looks"}:
            return "the images have changed: a new run is worth it, which labels them by the classifier of now"
        if changed:
            return "the mix of classes has changed: label with --prior images; a new run is not needed for that"
        return "nothing has changed that could be told from chance: no new run is needed"

    @property
    def has_changed(self) -> bool:
        return any(one.is_change for one in self.changes)


def compare_streams(
    classifier: Classifier, before: Iterable[NamedImages], recent: Iterable[NamedImages]
) -> DriftReport:
    """Look at both sets with the classifier; images that cannot be read are passed over."""
    earlier, later = _seen(classifier, before, took_part=True), _seen(classifier, recent, took_part=False)
    for name, seen in (("before", earlier), ("recent", later)):
        if len(seen) < FEWEST:
            raise DataError(
                f"{name}: {counted(len(seen), 'image is', 'images are')} too few to tell a change from chance; "
                f"{FEWEST} are needed"
            )
    changes = stream_changes(earlier, later, stream(0, "drift"))
    moved = classes_moved(earlier, later)
    most = np.argsort(-np.abs(moved), kind="stable")[:MOVED]
    return DriftReport(
        len(earlier), len(later), changes, [(classifier.recipe.classes[c], float(moved[c])) for c in most]
    )


def _seen(classifier: Classifier, pictures: Iterable[NamedImages], *, took_part: bool) -> SeenImages:
    found = [classifier.predictor.seen(batch.pixels) for batch in classifier.batches(pictures) if len(batch.pixels)]
    if not found:
        return SeenImages(np.zeros((0, len(classifier.recipe.classes))))
    log_probs, features = (np.concatenate(column) for column in zip(*found, strict=True))
    if classifier.prior is None:
        return SeenImages(np.exp(log_probs))
    posteriors: FloatArray = np.exp(classifier.prior.answers(log_probs, features))
    prototypes = classifier.prior.model.prototypes
    if prototypes is None:
        return SeenImages(posteriors)
    # Who helped to make a prototype is near to it; its own share is taken out again.
    own = posteriors if took_part else None
    return SeenImages(posteriors, prototypes.distances(features, own).min(axis=1))
