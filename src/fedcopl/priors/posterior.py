"""The posterior model that all clients share, and how it applies to images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray

KAPPA = 2.0  # images that the common mean is worth in a class mean
TINY = 1e-12
MIN_VARIANCE = 1e-3  # of a uniform share, in any direction: false totals must not tell images apart by a sharp cut


def log_softmax(scores: FloatArray) -> FloatArray:
    """Return scores as log-probabilities along the last axis."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    normalised: FloatArray = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    return normalised


def uniform(classes: int) -> FloatArray:
    """Return the uniform class prior, (C,)."""
    return np.full(classes, 1 / classes)


@dataclass(frozen=True)
class Prototypes:
    """Class means in whitened coordinates, with a covariance shared by all classes."""

    counts: FloatArray  # (C,) N_c + kappa: images behind each mean
    totals: FloatArray  # (C, d) S_c + kappa mean, whitened
    whiten: FloatArray  # (d, d) Sigma^-1/2
    number: int = -1  # which class sums it was made of, during estimation
    text_axes: FloatArray | None = None  # (d, r) orthonormal: span of the text embeddings, whitened

    def distances(self, features: FloatArray, own: FloatArray | None = None) -> FloatArray:
        """Return -2 log predictive density of each class up to a constant, (n, C).

        The mean of N images has a predictive covariance of Sigma (1 + 1/N), whose determinant counts too.

        Args:
            features: (n, d), of unit length.
            own: (n, C) the weights of these images in the class sums; each image's own contribution is subtracted from
                the class means (leave-one-out). None: the images are not in the sums.
        """
        return self._squared(features @ self.whiten, self.totals, own)

    def text_distances(self, features: FloatArray, own: FloatArray | None = None) -> FloatArray:
        """Return the part of `distances` within the axes that text sees, (n, C)."""
        axes = np.zeros((self.whiten.shape[1], 0)) if self.text_axes is None else self.text_axes
        return self._squared(features @ self.whiten @ axes, self.totals @ axes, own)

    def _squared(self, x: FloatArray, totals: FloatArray, own: FloatArray | None) -> FloatArray:
        share = np.zeros((1, len(self.counts))) if own is None else own
        count = np.maximum(self.counts - share, KAPPA)
        stretch = 1 + share / count
        inner = (x**2).sum(axis=1, keepdims=True) * stretch**2 - 2 * stretch / count * (x @ totals.T)
        distance = np.maximum(inner + (totals**2).sum(axis=1) / count**2, 0.0)
        squared: FloatArray = distance * count / (count + 1) + x.shape[1] * np.log1p(1 / count)
        return squared


@dataclass(frozen=True)
class LogitAdjustment:
    """Logit adjustment by the priors: log posterior = log softmax(weight z + offset)."""

    weight: float
    offset: FloatArray  # (n, C)


@dataclass(frozen=True)
class PosteriorModel:
    """One complete posterior model, but for a client's own class prior."""

    class_prior: FloatArray  # (C,) over all clients
    logit_bias: FloatArray  # (C,)
    text_scale: float = 1.0
    feature_scale: float = 0.0
    prototypes: Prototypes | None = None
    strength: float = math.inf  # of a client's class prior around the common one, in units of n_k; inf: the common one

    def scores(self, log_probs: FloatArray, distances: FloatArray | float = 0.0) -> FloatArray:
        """Return the log-likelihoods of the classes up to a number for each image, (n, C)."""
        scores: FloatArray = self.text_scale * log_probs + self.logit_bias - self.feature_scale / 2 * distances
        return scores

    def log_posteriors(self, log_probs: FloatArray, features: FloatArray, class_prior: FloatArray) -> FloatArray:
        """Return the log-posteriors of new images, (n, C).

        Args:
            log_probs: log p_c(x) by the model, (n, C).
            features: Image features of the frozen CLIP, (n, d), of unit length.
            class_prior: The class prior of the images' site, (C,).
        """
        distances = 0.0 if self.prototypes is None else self.prototypes.distances(features)
        return log_softmax(self.scores(log_probs, distances) + np.log(class_prior))

    def adjustment(self, distances: FloatArray | float, class_prior: FloatArray) -> LogitAdjustment:
        """Return what this model adds to a trained model's logits, for images with these distances, (n, C)."""
        offset = self.logit_bias + np.log(class_prior) - self.feature_scale / 2 * distances
        return LogitAdjustment(self.text_scale, np.atleast_2d(offset))

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return all of it as named arrays of finite numbers, to be stored."""
        numbers = np.array([self.text_scale, self.feature_scale])
        arrays = {"class_prior": self.class_prior, "logit_bias": self.logit_bias, "numbers": numbers}
        if math.isfinite(self.strength):  # files hold finite numbers only
            arrays["strength"] = np.array([self.strength])
        if self.prototypes is None:
            return arrays
        prototypes = self.prototypes
        return arrays | {"counts": prototypes.counts, "totals": prototypes.totals, "whiten": prototypes.whiten}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> "PosteriorModel":
        """Read what `to_arrays` returned."""
        text_scale, feature_scale = arrays["numbers"].tolist()
        strength = float(arrays["strength"][0]) if "strength" in arrays else math.inf
        prototypes = Prototypes(arrays["counts"], arrays["totals"], arrays["whiten"]) if "whiten" in arrays else None
        return cls(arrays["class_prior"], arrays["logit_bias"], text_scale, feature_scale, prototypes, strength)

    def rebalanced(self, predicted: FloatArray) -> "PosteriorModel":
        """Move the logit bias one step towards classes predicted in proportion to the class prior.

        Args:
            predicted: How many images are assigned to each class under the class prior, (C,).
        """
        predicted = np.maximum(predicted, 0.0)  # noise may bring a sum below 0
        shares = np.maximum(predicted / max(predicted.sum(), TINY), TINY)
        bias = self.logit_bias - np.clip(np.log(shares / self.class_prior), -2, 2)
        return replace(self, logit_bias=bias - bias.mean())


def no_priors(classes: int) -> PosteriorModel:
    """Return the model that changes nothing: zero-shot CLIP with a uniform class prior."""
    return PosteriorModel(uniform(classes), np.zeros(classes))


def make_prototypes(
    sums: FloatArray, images: float, mean: FloatArray, square: FloatArray, number: int, text: FloatArray | None
) -> Prototypes:
    """Make class means, shrunk towards the common mean, and their covariance, shrunk towards a sphere (OAS).

    Args:
        sums: (C, 1 + d): N_c and S_c.
        images: n, over all clients.
        mean: (d,) of all features.
        square: (d, d) sum of f f^T.
        number: Of these class sums, which the prototypes remember.
        text: (C, d) class embeddings, whose span separates the text view from the residual view; None: no views.
    """
    counts, totals = np.maximum(sums[:, 0], 1e-9), sums[:, 1:]
    within = (square - (totals / counts[:, None]).T @ totals) / images
    values, axes = np.linalg.eigh((within + within.T) / 2)
    values = np.maximum(values, 0.0)
    width, trace, squares = len(values), values.sum(), (values**2).sum()
    excess = max(squares - trace**2 / width, TINY * squares, TINY)
    sphere = min(1.0, ((1 - 2 / width) * squares + trace**2) / ((images + 1 - 2 / width) * excess))
    deviation = np.sqrt(np.maximum((1 - sphere) * values + sphere * trace / width, MIN_VARIANCE / width))
    whiten = (axes / deviation) @ axes.T
    text_axes = None
    if text is not None:
        left, spread, _ = np.linalg.svd((axes * deviation) @ axes.T @ (text - text.mean(axis=0)).T, full_matrices=False)
        text_axes = left[:, spread > 1e-8 * max(spread[0], TINY)]
    return Prototypes(counts + KAPPA, (totals + KAPPA * mean) @ whiten, whiten, number, text_axes)
