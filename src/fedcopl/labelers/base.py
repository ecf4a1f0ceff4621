"""The base classes of pseudo labelers, which select a client's training images by their class probabilities."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..algorithm.estimate import estimate
from ..algorithm.select import Selection
from ..config import NoOptions, RunConfig, Section, read_options
from ..messages import Select

_USUAL_SHARE = 0.5  # of a client's images, that CoPL selects: its filters are medians


class Labeler(ABC):
    """Selects the images that a client trains on, with their pseudo labels.

    A refresh has three steps: `count` at each client; if the labeler is `cooperative`, the sum of the counts over all
    clients; `quota` and `select` at each client. A new labeler is a subclass, registered under its name in the registry
    of this package, in a dictionary LABELERS of a plug-in file, or as an entry point of the group fedcopl.labelers.
    Labelers receive log-probabilities, and neither images nor true labels.
    """

    title: ClassVar[str]  # the name in tables and reports
    summary: ClassVar[str] = "each client trains on the images that its labeler selects"  # a sentence for reports
    refreshes: ClassVar[bool] = True  # False: the first pseudo labels are kept for the whole run
    Options: ClassVar[type[Section]] = NoOptions  # the labeler's own settings, from the section [labeler_options]

    def __init__(self, config: RunConfig):
        self.config = config
        self.options: Any = read_options(config, self.Options, "labeler")

    @property
    def cooperative(self) -> bool:
        """Whether clients send their class counts to the server and receive the sums over all clients."""
        return False

    @property
    def loss(self) -> str:
        """The name of the loss on candidate sets or soft targets (`methods/losses.py`); hard labels: cross-entropy."""
        return "cc"

    def count(self, log_probs: FloatArray) -> IntArray:
        """Return u_k, the client's number of images of each class, (C,); by default of all images by prediction."""
        return estimate(log_probs, confidence_quantile=None, entropy_quantile=None)

    def quota(self, counts: IntArray, images: int, request: Select) -> IntArray:
        """Return the maximum number of images of each class that this client selects, (C,); by default its counts.

        Args:
            counts: u_k, the client's counts, (C,).
            images: n_k, the client's number of images.
            request: The server's request, with the sums of the counts if the labeler is cooperative.
        """
        return counts

    @abstractmethod
    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return the images to train on with their pseudo labels.

        Args:
            log_probs: log p_c(x) in float64, (n, C), which still ranks images whose probabilities round to 1.
            quota: The result of `quota`, (C,).
        """

    def expected_images(self, images: float, classes: int) -> float:
        """Return the approximate number of a client's images that are selected, for time estimates."""
        return _USUAL_SHARE * images

    def labels_per_image(self, classes: int) -> int:
        """Return the maximum number of labels of an image; servers reject replies with more."""
        return 1


def confident_images(log_probs: FloatArray, level: float) -> IntArray:
    """Return the indices of the images whose confidence reaches the quantile `level` over all images of the client.

    If a client has few classes, images predicted as any other class are wrong, and a rule that selects the most
    confident images of *each* class selects them all. Most of them have a low confidence and are left out here.
    """
    highest = log_probs.max(axis=1, initial=-np.inf)
    return np.flatnonzero(highest >= exact_quantile(highest, level)) if len(highest) else np.zeros(0, np.int64)


def exact_quantile(values: FloatArray, level: float) -> FloatArray:
    """Return the quantile along axis 0 with linear interpolation, exact if it is one of the values.

    The position level * (n - 1) may miss its integer by rounding (0.07 * 100 = 7.000000000000001), and `np.quantile`
    then returns slightly more than the value at that position.
    """
    position = level * (len(values) - 1)
    position = round(position) if math.isclose(position, round(position), rel_tol=1e-12) else position
    low, high = math.floor(position), math.ceil(position)
    ordered = np.sort(values, axis=0)
    quantile: FloatArray = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return quantile


class PerClassLabeler(Labeler):
    """A labeler with the same quota for every class."""

    def quota(self, counts: IntArray, images: int, request: Select) -> IntArray:
        """Return the same quota for every class: `labels.per_class`, or one that grows at each refresh."""
        labels = self.config.labels
        if labels.capacity != "grow":
            return np.full_like(counts, labels.per_class)
        refreshes = -(-self.config.rounds // labels.refresh_every)
        return np.full_like(counts, _growing_quota(request.refresh, images, len(counts), refreshes))

    def expected_images(self, images: float, classes: int) -> float:
        """Return `labels.per_class` images for each class, but not more than the client has."""
        return min(self.config.labels.per_class * classes, images)

    def eligible_images(self, log_probs: FloatArray) -> IntArray | None:
        """Return the indices of the images that may be labelled (`labels.among`); None: all."""
        labels = self.config.labels
        return confident_images(log_probs, labels.confidence_quantile) if labels.among == "confident" else None


def _growing_quota(refresh_index: int, images: int, classes: int, refreshes: int) -> int:
    """Return GRIP's quota at refresh q: K_q = max(1, floor((q + 1) floor(n / refreshes) / C)), finally about n / C."""
    return max(1, (refresh_index + 1) * (images // refreshes) // classes)
