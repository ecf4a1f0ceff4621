"""The protocol of pseudo labelers: from a client's class probabilities to the images it trains on."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..algorithm.estimate import estimate
from ..algorithm.select import Selection
from ..config import NoOptions, RunConfig, Section, read_options
from ..messages import Select

_USUALLY_SELECTED = 0.5  # share of the images that CoPL labels: it filters by medians


class Labeler(ABC):
    """Selects the images that a client trains on, with their pseudo labels.

    A refresh has three steps: `count` at every client, a sum of the counts over all clients if the labeler is
    `cooperative`, then `quota` and `select` at every client. To add a labeler, subclass this, and register the class
    under its name: in the registry of this package, in a dictionary LABELERS of a plug-in file, or as an entry point of
    the group fedcopl.labelers. Labelers see log-probabilities only, never images or labels.
    """

    title: ClassVar[str]  # as it is called in tables and reports
    summary: ClassVar[str] = "each client trains on the images that its labeler selects"  # a sentence of reports
    refreshes: ClassVar[bool] = True  # False: the first labels are kept for the whole run
    Options: ClassVar[type[Section]] = NoOptions  # the labeler's own settings, from the section [labeler_options]

    def __init__(self, config: RunConfig):
        self.config = config
        self.options: Any = read_options(config, self.Options, "labeler")

    @property
    def cooperative(self) -> bool:
        """Whether the clients' class counts are summed by the server and the sums sent back."""
        return False

    @property
    def loss(self) -> str:
        """Name of the loss on selections with candidates (`methods/losses.py`); hard labels have cross-entropy."""
        return "cc"

    def count(self, log_probs: FloatArray) -> IntArray:
        """Return u_k, (C,): how many of the client's images count for each class; here by the most probable class."""
        return estimate(log_probs, confidence_quantile=None, entropy_quantile=None)

    @abstractmethod
    def quota(self, counts: IntArray, images: int, request: Select) -> IntArray:
        """Return how many images of each class this client may select, (C,).

        Args:
            counts: The client's own counts, u_k.
            images: The number of images the client holds.
            request: The server's request, with the sums of the counts if the labeler is cooperative.
        """

    @abstractmethod
    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return the images to train on with their pseudo labels.

        Args:
            log_probs: log p_c(x), (n, C), in float64, so that saturated probabilities still rank.
            quota: What `quota` returned.
        """

    def expected_images(self, images: float, classes: int) -> float:
        """Return about how many of a client's images are selected, for time estimates."""
        return _USUALLY_SELECTED * images

    def labels_per_image(self, classes: int) -> int:
        """Return how many labels one image can get; servers reject replies that claim more."""
        return 1


def confident_images(log_probs: FloatArray, level: float) -> IntArray:
    """Return the images whose confidence reaches the quantile `level` of the client's, by index.

    Where a client has few classes, images predicted as another class are wrong, and a rule that takes the most
    confident images of *each* class takes them all. Most of them have low confidence, and this removes them.
    """
    highest = log_probs.max(axis=1, initial=-np.inf)
    return np.flatnonzero(highest >= exact_quantile(highest, level)) if len(highest) else np.zeros(0, np.int64)


def exact_quantile(values: FloatArray, level: float) -> FloatArray:
    """Return the quantile along axis 0 with linear interpolation, exactly equal to a value where it falls on one.

    The position level * (n - 1) of a decimal level may miss its integer (0.07 * 100 = 7.000000000000001), and
    `np.quantile` would then return slightly more than the value at that position.
    """
    position = level * (len(values) - 1)
    position = round(position) if math.isclose(position, round(position), rel_tol=1e-12) else position
    low, high = math.floor(position), math.ceil(position)
    ordered = np.sort(values, axis=0)
    between: FloatArray = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return between


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
        """Return K for every class, or all images."""
        return min(self.config.labels.per_class * classes, images)

    def eligible_images(self, log_probs: FloatArray) -> IntArray | None:
        """Return the images that may be labelled, by index (`labels.among`); None: all."""
        labels = self.config.labels
        return confident_images(log_probs, labels.confidence_quantile) if labels.among == "sure" else None


def _growing_quota(refresh_index: int, images: int, classes: int, refreshes: int = 4) -> int:
    """Return GRIP's growing K at refresh q: an even share of the first q + 1 parts of the images, at least 1.

    K_q = max(1, floor((q + 1) floor(n / refreshes) / C)), about n / C at the last refresh.
    """
    return max(1, (refresh_index + 1) * (images // refreshes) // classes)
