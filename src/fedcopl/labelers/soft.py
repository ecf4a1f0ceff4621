"""Soft labels: every image is trained on, with its class probabilities as the target.

The target is q_c proportional to p_c(x)^(1/T), where p is the posterior at the refresh; with priors, it includes
prototypes, logit bias and the site's class prior. The loss is the cross-entropy -sum_c q_c log p_c. No image is left
out and classes are not balanced; uncertain images have flat targets instead.

Choices: T = 1 trains towards the posterior itself; T < 1 sharpens it, as MixMatch does. Not built: targets that follow
the model while it trains (FST-CBDG); here they change at each refresh.
"""

from pydantic import Field

from ..algorithm import FloatArray, IntArray, softmax
from ..algorithm.select import Selection, select
from ..config import Section
from .base import Labeler


class _SoftOptions(Section):
    """Settings of soft labels."""

    temperature: float = Field(1.0, gt=0)
    """T: below 1 sharpens the targets, above 1 flattens them"""


class Soft(Labeler):
    """Selects all images, with their class probabilities as soft targets."""

    title = "soft labels"
    summary = "each client trains on all its images with the probability of each class as the target"
    Options = _SoftOptions

    @property
    def loss(self) -> str:
        return "soft"

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return all images with their soft targets, by predicted class and then by confidence."""
        chosen = select(log_probs, quota)
        return chosen._replace(candidates=softmax(log_probs[chosen.index] / self.options.temperature))

    def expected_images(self, images: float, classes: int) -> float:
        return images
