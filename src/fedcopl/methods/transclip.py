"""TransCLIP (Zanella et al., NeurIPS 2024) at each site alone: transductive prediction, nothing is trained.

A Gaussian mixture is fitted to the site's own images and never sent; test images are predicted by it. The mathematics
is in `algorithm/transduction.py`.
"""

from pydantic import Field

from ..algorithm import FloatArray
from ..algorithm.transduction import MixtureWeights, scores_of, transduce
from ..config import Section
from .site_fit import Scores, SiteFit


class TransCLIPOptions(Section):
    """Settings of TransCLIP, as its authors' for zero-shot."""

    text_weight: float = Field(1.0, ge=0)
    """lambda: weight of the text probabilities"""
    mixture_weight: float = Field(0.02, ge=0)
    """kappa: weight of the mixture, as in its authors' code"""
    neighbours: int = Field(3, ge=0)
    """neighbours of an image in the Laplacian term"""
    iterations: int = Field(10, ge=1)
    """outer iterations over assignments and mixture"""
    passes: int = Field(5, ge=1)
    """inner iterations over the assignments"""


class TransCLIP(SiteFit):
    """Transductive prediction at each site by a mixture, nothing trained or shared (TransCLIP)."""

    title = "TransCLIP"
    Options = TransCLIPOptions

    def fit(self, features: FloatArray, log_probs: FloatArray, texts: FloatArray, scale: float) -> Scores:
        options = self.options
        weights = MixtureWeights(options.text_weight, options.mixture_weight, options.neighbours)
        mixture = transduce(features, log_probs, weights, iterations=options.iterations, passes=options.passes)
        return lambda images, image_log_probs: scores_of(images, image_log_probs, mixture, weights)
