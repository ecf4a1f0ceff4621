"""A fixed confidence threshold, as in FixMatch (Sohn et al., NeurIPS 2020).

An image is selected with the label argmax_c p_c(x) if max_c p_c(x) >= tau. No class is limited, so most images belong
to the classes that the model prefers: the imbalance that CoPL, UPL and FPL avoid.

Choices: tau is FixMatch's 0.95; log p is compared with log tau, which is exact. Not built: FixMatch's consistency
between a weakly and a strongly augmented image (training here has no augmentation), and new labels at every step (here
at every refresh).
"""

import math

import numpy as np
from pydantic import Field

from ..algorithm import FloatArray, IntArray
from ..algorithm.select import Selection, select
from ..config import Section
from .base import Labeler


class _ThresholdOptions(Section):
    """Settings of the fixed threshold."""

    confidence: float = Field(0.95, gt=0, le=1)
    """tau: minimum probability of the predicted class, as in FixMatch"""


class Threshold(Labeler):
    """Selects every image whose predicted class reaches a fixed probability."""

    title = "threshold"
    summary = "each client trains on its images that reach a fixed confidence"
    Options = _ThresholdOptions

    def count(self, log_probs: FloatArray) -> IntArray:
        """Return the number of images of each predicted class that reach tau, (C,)."""
        return super().count(log_probs[self._confident_images(log_probs)])

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        among = self._confident_images(log_probs)
        chosen = select(log_probs[among], quota)
        return chosen._replace(index=among[chosen.index])

    def _confident_images(self, log_probs: FloatArray) -> IntArray:
        """Return the indices of the images that reach tau."""
        return np.flatnonzero(log_probs.max(axis=1, initial=-np.inf) >= math.log(self.options.confidence))
