"""BCA (Zhou et al., CVPR 2025) at each site alone: class embeddings and their priors follow the site's images.

Each of the C class embeddings mu_m (d,) has a likelihood and a prior P(Y | mu_m) over the classes, (C,). For an image x
with the feature f (d,), of length one,

    P(mu_m | x) = softmax_m(s <f, mu_m>),    P(Y | x) = sum_m P(mu_m | x) P(Y | mu_m).

Initially mu_m are the text features and P(Y | mu_m) is one-hot, which is zero-shot CLIP. Images are processed one by
one. With k the most probable class of P(Y | x), its probability p, and counts a_k and b_k,

    p > tau_1:  mu_k = (a_k mu_k + f) / (a_k + 1), normalised, and a_k grows by 1;
    p > tau_2:  P(Y | mu_k) = (b_k P(Y | mu_k) + P(Y | x)) / (b_k + 1), and b_k grows by 1.

Choices: the stream is the site's images in their order, once; test images are predicted with the final state and do not
change it, while the authors predict each image of the stream as it comes. The rule is from two summaries of the
paper and a public benchmark's version that names the authors' repository, which we could not read. The summaries take
k = argmax_m P(mu_m | x) and compare P(mu_k | x) with a threshold, that version does as above; the two differ only after
the priors have moved. tau_1 = 0.05, tau_2 = 0.65, a = 20000 and b = 1 are that version's, so at a site with a few
hundred images mu hardly moves. A small a is dangerous: features of a real CLIP resemble each other more than their
texts, so an embedding that has moved towards one image attracts the images of all classes. Not built: the average over
augmented views.
"""

import numpy as np
from pydantic import Field

from ..algorithm import FloatArray, softmax
from ..config import Section
from .site_fit import Scores, SiteFit

_MIN_PROBABILITY = 1e-300  # to which probabilities are raised, so that their logarithms are finite


class _BCAOptions(Section):
    """Settings of BCA."""

    likelihood_threshold: float = Field(0.05, ge=0, le=1)
    """tau_1: probability above which an image moves its class embedding"""
    prior_threshold: float = Field(0.65, ge=0, le=1)
    """tau_2: probability above which an image moves the prior of its class embedding"""
    text_count: float = Field(20_000, gt=0)
    """a: weight of the text feature in a class embedding, in images; small values collapse a real CLIP's predictions"""
    prior_count: float = Field(1, gt=0)
    """b: weight of the one-hot prior, in images"""


class BCA(SiteFit):
    """Class embeddings and class priors updated image by image, nothing trained (BCA)."""

    title = "BCA"
    Options = _BCAOptions

    def fit(self, features: FloatArray, log_probs: FloatArray, texts: FloatArray, scale: float) -> Scores:
        options = self.options
        embeddings, priors = texts.copy(), np.eye(len(texts))
        text_counts, prior_counts = (np.full(len(texts), n) for n in (options.text_count, options.prior_count))
        for feature in features:
            posterior = _posteriors(feature[None], embeddings, priors, scale)[0]
            k = posterior.argmax()
            if posterior[k] > options.likelihood_threshold:
                moved = text_counts[k] * embeddings[k] + feature
                embeddings[k] = moved / np.linalg.norm(moved)  # the direction of (a mu + f) / (a + 1)
                text_counts[k] += 1
            if posterior[k] > options.prior_threshold:
                priors[k] = (prior_counts[k] * priors[k] + posterior) / (prior_counts[k] + 1)
                prior_counts[k] += 1
        return lambda images, image_log_probs: np.log(
            np.maximum(_posteriors(images, embeddings, priors, scale), _MIN_PROBABILITY)
        )


def _posteriors(features: FloatArray, embeddings: FloatArray, priors: FloatArray, scale: float) -> FloatArray:
    """Return P(Y | x), (m, C), of features, (m, d), from embeddings mu, (C, d), and P(Y | mu), (C, C)."""
    shares: FloatArray = softmax(scale * features @ embeddings.T) @ priors
    return shares
