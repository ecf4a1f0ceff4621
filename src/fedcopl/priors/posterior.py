"""The posterior model that all clients share: prototypes, logit bias, class prior and their scales."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray

KAPPA = 2.0  # weight of the common mean in a class mean, in images
TINY = 1e-12
MIN_VARIANCE = 1e-3  # in any direction, in units of 1 / d: manipulated totals must not separate images sharply


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

    counts: FloatArray  # (C,) N_c + kappa, images in each mean
    totals: FloatArray  # (C, d) S_c + kappa mean, whitened
    whiten: FloatArray  # (d, d) Sigma^-1/2
    number: int = -1  # by which clients refer to them during the estimation; -1: from a file
    text_axes: FloatArray | None = None  # (d, r) orthonormal basis of the whitened directions that the text depends on

    def distances(self, features: FloatArray, contributions: FloatArray | None = None) -> FloatArray:
        """Return -2 log predictive density of each class up to a constant, (n, C).

        With a mean of N images the predictive covariance is Sigma (1 + 1/N), whose determinant is included.

        Args:
            features: (n, d), of unit length.
            contributions: The weights of these images in the class sums, (n, C), which are subtracted from the class
                means of each image (leave-one-out). None: the images are not in the sums.
        """
        return self._predictive_distances(features @ self.whiten, self.totals, contributions)

    def text_distances(self, features: FloatArray, contributions: FloatArray | None = None) -> FloatArray:
        """Return `distances` within the span of the text embeddings, (n, C); 0 if `text_axes` is None."""
        axes = np.zeros((self.whiten.shape[1], 0)) if self.text_axes is None else self.text_axes
        return self._predictive_distances(features @ self.whiten @ axes, self.totals @ axes, contributions)

    def _predictive_distances(self, x: FloatArray, totals: FloatArray, contributions: FloatArray | None) -> FloatArray:
        """Return `distances`, (n, C), of whitened features x, (n, r), from whitened totals, (C, r)."""
        # The mean without x is (totals - share x) / count, so x differs from it by stretch x - totals / count.
        share = np.zeros((1, len(self.counts))) if contributions is None else contributions
        count = np.maximum(self.counts - share, KAPPA)
        stretch = 1 + share / count
        inner = (x**2).sum(axis=1, keepdims=True) * stretch**2 - 2 * stretch / count * (x @ totals.T)
        distance = np.maximum(inner + (totals**2).sum(axis=1) / count**2, 0.0)
        predictive: FloatArray = distance * count / (count + 1) + x.shape[1] * np.log1p(1 / count)
        return predictive


@dataclass(frozen=True)
class LogitAdjustment:
    """Logit adjustment by the priors: log posterior = log softmax(weight z + offset)."""

    weight: float
    offset: FloatArray  # (n, C)


@dataclass(frozen=True)
class PosteriorModel:
    """The posterior model of all clients, without the class prior of each client."""

    class_prior: FloatArray  # (C,) over all clients
    logit_bias: FloatArray  # (C,)
    text_scale: float = 1.0
    feature_scale: float = 0.0
    prototypes: Prototypes | None = None
    strength: float = math.inf  # weight of `class_prior` in each client's own, in units of n_k; inf: no other prior

    def scores(self, log_probs: FloatArray, distances: FloatArray | float = 0.0) -> FloatArray:
        """Return the log-likelihoods of the classes, (n, C), up to a constant for each image."""
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
        """Return the logit adjustment of a trained model, for images with `distances` to the prototypes, (n, C)."""
        offset = self.logit_bias + np.log(class_prior) - self.feature_scale / 2 * distances
        return LogitAdjustment(self.text_scale, np.atleast_2d(offset))

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the model as named arrays of finite numbers, for a file."""
        numbers = np.array([self.text_scale, self.feature_scale])
        arrays = {"class_prior": self.class_prior, "logit_bias": self.logit_bias, "numbers": numbers}
        if math.isfinite(self.strength):
            arrays["strength"] = np.array([self.strength])
        if self.prototypes is None:
            return arrays
        prototypes = self.prototypes
        return arrays | {"counts": prototypes.counts, "totals": prototypes.totals, "whiten": prototypes.whiten}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> "PosteriorModel":
        text_scale, feature_scale = arrays["numbers"].tolist()
        strength = float(arrays["strength"][0]) if "strength" in arrays else math.inf
        prototypes = Prototypes(arrays["counts"], arrays["totals"], arrays["whiten"]) if "whiten" in arrays else None
        return cls(arrays["class_prior"], arrays["logit_bias"], text_scale, feature_scale, prototypes, strength)

    def rebalanced(self, predicted: FloatArray) -> "PosteriorModel":
        """Return the model with the logit bias one step nearer to predicting classes in proportion to the class prior.

        Args:
            predicted: Sums of the posteriors of all images under the class prior, (C,).
        """
        predicted = np.maximum(predicted, 0.0)  # with noise a sum may be negative
        shares = np.maximum(predicted / max(predicted.sum(), TINY), TINY)
        bias = self.logit_bias - np.clip(np.log(shares / self.class_prior), -2, 2)
        return replace(self, logit_bias=bias - bias.mean())


def no_priors(classes: int) -> PosteriorModel:
    """Return the model that leaves zero-shot CLIP as it is: a uniform class prior and no bias."""
    return PosteriorModel(uniform(classes), np.zeros(classes))


def make_prototypes(
    sums: FloatArray, images: float, mean: FloatArray, square: FloatArray, number: int, text: FloatArray | None
) -> Prototypes:
    """Make class means, shrunk towards the common mean, and their covariance, shrunk towards a sphere (OAS).

    Args:
        sums: (C, 1 + d): N_c and S_c.
        images: n, over all clients.
        mean: Mean of all features, (d,).
        square: Sum of f f^T, (d, d).
        number: The number by which clients refer to these class sums.
        text: Class embeddings, (C, d), whose span separates the text view from the residual view; None: no views.
    """
    counts, totals = np.maximum(sums[:, 0], 1e-9), sums[:, 1:]
    within = (square - (totals / counts[:, None]).T @ totals) / images
    values, axes = np.linalg.eigh((within + within.T) / 2)
    values = np.maximum(values, 0.0)
    width, trace, squares = len(values), values.sum(), (values**2).sum()
    excess = max(squares - trace**2 / width, TINY * squares, TINY)
    shrinkage = min(1.0, ((1 - 2 / width) * squares + trace**2) / ((images + 1 - 2 / width) * excess))
    deviation = np.sqrt(np.maximum((1 - shrinkage) * values + shrinkage * trace / width, MIN_VARIANCE / width))
    whiten = (axes / deviation) @ axes.T
    text_axes = None
    if text is not None:
        directions = (axes * deviation) @ axes.T @ (text - text.mean(axis=0)).T  # <f, w> = <f Sigma^-1/2, Sigma^1/2 w>
        basis, singular, _ = np.linalg.svd(directions, full_matrices=False)
        text_axes = basis[:, singular > 1e-8 * max(singular[0], TINY)]
    return Prototypes(counts + KAPPA, (totals + KAPPA * mean) @ whiten, whiten, number, text_axes)
