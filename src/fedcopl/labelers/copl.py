"""CoPL, cooperative pseudo labeling, as in the paper (Eq. 2 and 3)."""

from ..algorithm import FloatArray, IntArray
from ..algorithm.allocate import quota
from ..algorithm.estimate import estimate
from ..algorithm.select import Selection, select
from ..messages import Select
from .base import Labeler


class CoPL(Labeler):
    """Counts confident images per class; the sums over all clients balance the classes of each client's selection."""

    title = "CoPL"
    summary = "each client pseudo-labels its own images"

    @property
    def cooperative(self) -> bool:
        """True unless global allocation is switched off."""
        return self.config.labels.global_allocation

    def count(self, log_probs: FloatArray) -> IntArray:
        """Return u_k, (C,): the number of images of each class that pass both filters (Eq. 2)."""
        labels = self.config.labels
        return estimate(
            log_probs,
            confidence_quantile=labels.confidence_quantile if labels.confidence_filter else None,
            entropy_quantile=labels.entropy_quantile if labels.entropy_filter else None,
        )

    def quota(self, counts: IntArray, images: int, request: Select) -> IntArray:
        """Return this client's quota of each class (Eq. 3), (C,); without global allocation, its counts."""
        if request.totals is None:
            return counts
        labels = self.config.labels
        return quota(
            counts,
            request.totals,
            request.clients,
            refresh_index=request.refresh,
            budget=labels.budget,
            unseen=labels.unseen,
        )

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        return select(log_probs, quota, self.config.labels.candidates)
