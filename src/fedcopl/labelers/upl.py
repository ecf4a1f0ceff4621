"""UPL, the K most confident images of each class, labelled once (Huang et al., 2022).

For each class c the K images with the highest p_c(x) are selected among those with argmax_j p_j(x) = c, where p is
zero-shot CLIP. A threshold would select many images of the classes that CLIP prefers and few of the others; a fixed K
balances the classes as far as there are images. The labels are made once and kept during training.

Choices: K is `labels.per_class` (16, as in UPL) at each client, not over all clients; p is the posterior with priors if
they are on. Not built: the paper's averages over several CLIP models and over several trained prompts.
"""

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..algorithm.select import Selection, select
from ..messages import Select
from .base import PerClassLabeler


class UPL(PerClassLabeler):
    """Selects the same number of most confident images of every class, once, by zero-shot CLIP."""

    title = "UPL"
    summary = "each client trains on the images of each class that zero-shot CLIP is most confident of"
    refreshes = False

    def quota(self, counts: IntArray, images: int, request: Select) -> IntArray:
        return np.full_like(counts, self.config.labels.per_class)

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return the most confident of the images predicted as each class."""
        return select(log_probs, quota)
