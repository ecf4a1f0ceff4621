"""Prototypes, a cooperation of all sites: text says what a class is called, their images say what it looks like.

With q_i(c) = p~_i(c) the adapted posteriors and f_i the frozen image features of unit length, the clients add up

    once           n = sum_i 1,  F = sum_i f_i,  G = sum_i f_i f_i^T      (or only its trace, where d x d is too much)
    each time      N_c = sum_i q_i(c),  S_c = sum_i q_i(c) f_i

and everybody makes the class means mu_c = (S_c + kappa F/n) / (N_c + kappa), drawn towards the common mean as by kappa
images, and the spread within the classes Sigma = (G - sum_c S_c S_c^T / N_c) / n, drawn towards a sphere. Then

    log p'_i(c) = log p_i(c) - tau/2 * (f_i - mu_c)^T Sigma^-1 (f_i - mu_c) * (N_c + kappa) / (N_c + kappa + 1).

The last factor is what a mean of few images is worth. tau, below 1, is how far such a distance is believed.
An image that helped to make a prototype must not be judged by itself: a client takes its share out again before.
"""

from dataclasses import dataclass

import numpy as np

from . import FloatArray

KAPPA = 2.0  # images that the common mean is worth
FEWEST = 1e-9  # images of a class, where a sum with noise has fewer


@dataclass(frozen=True)
class FeatureSums:
    """What a client tells once of its images' features, whatever they show."""

    images: float  # n
    total: FloatArray  # F, (d,)
    square: FloatArray  # G, (d, d); or (), its trace

    def __add__(self, other: "FeatureSums") -> "FeatureSums":
        return FeatureSums(self.images + other.images, self.total + other.total, self.square + other.square)


@dataclass(frozen=True)
class ClassSums:
    """What a client tells of the features of each class, as far as it knows them."""

    images: FloatArray  # N, (C,)
    total: FloatArray  # S, (C, d)

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return ClassSums(self.images + other.images, self.total + other.total)


@dataclass(frozen=True)
class Prototypes:
    """What the classes look like, the same at every site: all that is needed to judge a new image."""

    images: FloatArray  # N + kappa, (C,)
    total: FloatArray  # S + kappa F/n in the coordinates of `whiten`, (C, d)
    whiten: FloatArray  # Sigma^-1/2, (d, d)


def feature_sums(features: FloatArray, *, full: bool) -> FeatureSums:
    """A client's share of n, F and G; full: G as a matrix, otherwise its trace."""
    features = np.asarray(features, np.float64)
    square = features.T @ features if full else np.asarray((features**2).sum())
    return FeatureSums(float(len(features)), features.sum(axis=0), square)


def class_sums(features: FloatArray, posteriors: FloatArray) -> ClassSums:
    """A client's share of N and S; posteriors is q, (n, C). Several clients' may be stacked."""
    return ClassSums(posteriors.sum(axis=-2), posteriors.swapaxes(-1, -2) @ np.asarray(features, np.float64))


def make_prototypes(features: FeatureSums, classes: ClassSums) -> Prototypes:
    """Means and spread from the sums over all clients."""
    counts = np.maximum(classes.images, FEWEST)
    common = features.total / features.images
    whiten = _whitening(_within(features, classes.total, counts), features.images)
    return Prototypes(counts + KAPPA, (classes.total + KAPPA * common) @ whiten, whiten)


def distances(prototypes: Prototypes, features: FloatArray, own: FloatArray | None = None) -> FloatArray:
    """Squared distance of each image to each class in units of the spread, (n, C).

    own is q of these images if they are part of the prototypes: each is then measured without its own share,
    f - (S - q f) / (N - q) = (1 + q / (N - q)) f - S / (N - q). Several clients' images may be stacked.
    """
    whitened = np.asarray(features, np.float64) @ prototypes.whiten
    share = np.zeros((*whitened.shape[:-1], len(prototypes.images))) if own is None else own
    images = np.maximum(prototypes.images - share, KAPPA)
    stretch = 1 + share / images
    squares = (
        (whitened**2).sum(axis=-1, keepdims=True) * stretch**2
        - 2 * stretch / images * (whitened @ prototypes.total.T)
        + (prototypes.total**2).sum(axis=1) / images**2
    )
    worth: FloatArray = np.maximum(squares, 0.0) * images / (images + 1)
    return worth


def with_prototypes(log_probs: FloatArray, squared_distances: FloatArray, tempering: float) -> FloatArray:
    """log p' = log p - tau/2 * distance^2, (n, C), up to a number for each image."""
    return log_probs - tempering / 2 * squared_distances


def _within(features: FeatureSums, totals: FloatArray, counts: FloatArray) -> FloatArray:
    """The spread within the classes, (d, d): all less that of the means; a sphere where only its size is known."""
    if features.square.ndim == 0:
        size = (features.square - (totals**2 / counts[:, None]).sum()) / features.images
        sphere: FloatArray = np.eye(totals.shape[1]) * (max(float(size), FEWEST) / totals.shape[1])
        return sphere
    within: FloatArray = (features.square - (totals / counts[:, None]).T @ totals) / features.images
    return within


def _whitening(spread: FloatArray, images: float) -> FloatArray:
    """Sigma^-1/2 of the spread drawn towards a sphere as far as so few images ask for (OAS: Chen et al., 2010)."""
    values, axes = np.linalg.eigh((spread + spread.T) / 2)
    values = np.maximum(values, 0.0)
    mean = max(float(values.mean()), FEWEST)
    round_part = sphere_share(values, images)
    shrunk = (1 - round_part) * values + round_part * mean
    whitening: FloatArray = (axes / np.sqrt(np.maximum(shrunk, FEWEST * mean))) @ axes.T
    return whitening


def sphere_share(values: FloatArray, images: float) -> float:
    """Oracle approximating shrinkage: how much of the sphere to take, from the spread along its axes."""
    dimensions, trace, trace_of_square = len(values), values.sum(), (values**2).sum()
    excess = trace_of_square - trace**2 / dimensions
    if excess <= FEWEST * trace_of_square:
        return 1.0  # it is a sphere
    wanted = (1 - 2 / dimensions) * trace_of_square + trace**2
    return float(min(1.0, wanted / ((images + 1 - 2 / dimensions) * excess)))
