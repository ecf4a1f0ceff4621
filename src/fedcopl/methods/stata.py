"""StatA (Zanella et al., CVPR 2025) at each site alone: TransCLIP's mixture, anchored at Gaussians around the texts.

Image features f_i (n, d) have assignments z_i (C,) to classes with a mean mu_k (d,) and a diagonal covariance
Sigma_k (d,) each. With y_i the text's probabilities and w_ij the affinity of neighbours, it lowers

    sum_i z_i . (log z_i - lambda log y_i - kappa log p_i)  -  1/2 sum_ij w_ij z_i . z_j
        + kappa alpha sum_k KL(N(mu'_k, Sigma'_k) || N(mu_k, Sigma_k)),

log p_ik = -1/2 sum_d ((f_id - mu_kd)^2 / Sigma_kd + log Sigma_kd). The last term is the statistical anchor: mu' are the
text features and Sigma', the same for all classes, is sum_ik y_ik (f_i - mu'_k)^2 / n. Alternating updates:

    z_i proportional to y_i^lambda exp(kappa log p_i + sum_j w_ij z_j),
    mu_k = beta_k E_k f + (1 - beta_k) mu'_k,                                      beta_k = n_k / (n_k + alpha),
    Sigma_k = beta_k E_k (f - mu_k)^2 + (1 - beta_k) (Sigma'_k + (mu'_k - mu_k)^2),

where E_k is the mean over the images weighted by z_ik. They are exact minimisers if n_k = sum_i z_ik. A class that the
site lacks has n_k near 0 and stays at its anchor, where TransCLIP's centre would move to the images of other classes.

Choices: as the authors' code, n_k is the number of images assigned to k (`soft_counts=true`: sum_i z_ik, as in the
paper), alpha = 1, and lambda, kappa, neighbours, iterations and passes are TransCLIP's. log Sigma is part of log p, as
in the paper and one of the two public versions of their code. From the paper and not their code: means are not
normalised, so that each update lowers the objective. Test images are predicted by the same formula with neighbours
among the site's images. Not built: the stream of batches that their online experiments fit one after another.
"""

from typing import NamedTuple

import numpy as np
from pydantic import Field

from ..algorithm import FloatArray, softmax
from ..algorithm.transduction import nearest, neighbour_terms
from .site_fit import Scores, SiteFit
from .transclip import TransCLIPOptions

_LEAST_VARIANCE = 1e-8  # of a coordinate


class _Gaussians(NamedTuple):
    """A Gaussian with a diagonal covariance for each class."""

    means: FloatArray  # mu (C, d)
    variances: FloatArray  # Sigma (C, d)

    def log_likelihood(self, features: FloatArray) -> FloatArray:
        """Return log p, (m, C), up to a constant, of features, (m, d)."""
        precisions = 1 / self.variances
        squares = features**2 @ precisions.T - 2 * features @ (self.means * precisions).T
        constant = (self.means**2 * precisions + np.log(self.variances)).sum(axis=1)
        log_p: FloatArray = -0.5 * (squares + constant)
        return log_p


class _StatAOptions(TransCLIPOptions):
    """Settings of StatA, as in its authors' code: those of TransCLIP and of the anchor."""

    anchor: float = Field(1.0, ge=0)
    """alpha: weight of the anchor, in images of each class; 0: none"""
    soft_counts: bool = False
    """count a class's images by their probabilities instead of by their most probable class"""


class StatA(SiteFit):
    """TransCLIP with Gaussians anchored at the texts, for sites that lack classes (StatA)."""

    title = "StatA"
    Options = _StatAOptions

    def fit(self, features: FloatArray, log_probs: FloatArray, texts: FloatArray, scale: float) -> Scores:
        options = self.options
        text, kappa, count = options.text_weight, options.mixture_weight, options.neighbours
        z = np.exp(log_probs)
        anchor = _text_anchor(features, z, texts)
        model = anchor
        neighbour_index, affinity = nearest(features, features, count, skip_itself=True)
        for iteration in range(options.iterations + 1):  # the last one only updates z, for the final Gaussians
            logits = text * log_probs + kappa * model.log_likelihood(features)
            for _ in range(options.passes):
                z = softmax(logits + neighbour_terms(neighbour_index, affinity, z))
            if iteration < options.iterations:
                model = _anchored(features, z, anchor, options.anchor, soft_counts=options.soft_counts)

        def scores(images: FloatArray, image_log_probs: FloatArray) -> FloatArray:
            nearest_index, weights = nearest(images, features, count)
            neighbours = np.einsum("ik,ikc->ic", weights, z[nearest_index])
            total: FloatArray = text * image_log_probs + kappa * model.log_likelihood(images) + neighbours
            return total

        return scores


def _text_anchor(features: FloatArray, probabilities: FloatArray, texts: FloatArray) -> _Gaussians:
    """Return mu' and Sigma': the text features, and the variance of the images around them, equal for all classes."""
    shared = np.einsum("ic,icd->d", probabilities, (features[:, None] - texts) ** 2) / len(features)
    return _Gaussians(texts, np.tile(np.maximum(shared, _LEAST_VARIANCE), (len(texts), 1)))


def _anchored(
    features: FloatArray, z: FloatArray, anchor: _Gaussians, alpha: float, *, soft_counts: bool
) -> _Gaussians:
    """Return mu and Sigma for assignments z, (n, C); those of a class without images are the anchor's."""
    mass = z.sum(axis=0)
    counts = mass if soft_counts else np.bincount(z.argmax(axis=1), minlength=z.shape[1])
    beta = np.divide(counts, counts + alpha, where=counts + alpha > 0, out=np.zeros(len(mass)))[:, None]
    shares = np.divide(z, mass, where=mass > 0, out=np.zeros_like(z))
    first, second = shares.T @ features, shares.T @ features**2  # E f and E f^2, (C, d)
    means = beta * first + (1 - beta) * anchor.means
    squares = second - 2 * means * first + means**2  # E (f - mu)^2
    variances = beta * squares + (1 - beta) * (anchor.variances + (anchor.means - means) ** 2)
    return _Gaussians(means, np.maximum(variances, _LEAST_VARIANCE))
