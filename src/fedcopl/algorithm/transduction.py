"""Transduction as in TransCLIP (Zanella et al., NeurIPS 2024): all images of a site are labelled jointly, untrained.

A Gaussian mixture over the site's image features f_i, of length one, whose assignments z_i (C,) are regularised towards
the text's probabilities y_i and the assignments of the neighbours. It lowers

    sum_i z_i . (log z_i - lambda log y_i - kappa log p_i)  -  1/2 sum_ij w_ij z_i . z_j,

log p_ic = -1/2 sum_d ((f_id - mu_cd)^2 / sigma_d + log sigma_d), with one diagonal covariance sigma for all classes, by
alternating updates: z_i proportional to y_i^lambda exp(kappa log p_i + sum_j w_ij z_j) for all i at once, then mu and
sigma as means weighted by z. w = (v + v^T) / 2, where v_ij is the cosine of i and j, not below 0, divided by n, if j is
one of the n nearest images of i, else 0.

Each mu and sigma is the best for its z. A pass over z, which moves each z_i by d_i, lowers the objective by
sum_i KL(z_i old || new) + 1/2 sum_ij w_ij d_i . d_j; the first is at least sum_i |d_i|^2 (Pinsker), and no eigenvalue
of w is below -2 as long as no image is among the nearest n of more than 4 n others; then the objective never rises.
"""

from typing import NamedTuple

import numpy as np

from . import FloatArray, IntArray, softmax

_MIN_MASS = 1e-9  # sum of assignments below which a class keeps its centre
_MIN_SPREAD = 1e-8  # least variance of a dimension
_TOP_IMAGES = 8  # images of each class in its initial centre, as in its authors' code


class MixtureWeights(NamedTuple):
    """The weights of the three terms."""

    text: float  # lambda
    mixture: float  # kappa
    neighbours: int  # n, the number of nearest images


class _Mixture(NamedTuple):
    """A Gaussian mixture over a site's own images; it is never sent."""

    centres: FloatArray  # mu (C, d)
    spread: FloatArray  # sigma (d,)
    features: FloatArray  # (n, d) of its images
    assignments: FloatArray  # z (n, C)


def transduce(
    features: FloatArray, text_log_probs: FloatArray, weights: MixtureWeights, *, iterations: int, passes: int
) -> _Mixture:
    """Fit the mixture to image features, (n, d), with log-probabilities from the text, (n, C).

    There are `iterations` outer iterations, each with `passes` updates of z. The initial z are the text's
    probabilities, mu is the mean of the most confident images of each class, and sigma = 1 / d.
    """
    assignments, spread = np.exp(text_log_probs), np.full(features.shape[1], 1 / features.shape[1])
    mixture = _Mixture(_first_centres(features, assignments), spread, features, assignments)
    neighbour_index, affinity = nearest(features, features, weights.neighbours, skip_itself=True)
    for _ in range(iterations):
        scores = weights.text * text_log_probs + weights.mixture * _log_likelihood(features, mixture)
        for _ in range(passes):
            neighbours = neighbour_terms(neighbour_index, affinity, mixture.assignments)
            mixture = mixture._replace(assignments=softmax(scores + neighbours))
        mixture = _refit(mixture)
    return mixture


def _first_centres(features: FloatArray, assignments: FloatArray) -> FloatArray:
    """Return the mean of the most confident images of each class, weighted by confidence, (C, d)."""
    top = np.argsort(-assignments, axis=0, kind="stable")[:_TOP_IMAGES]
    weights = np.take_along_axis(assignments, top, axis=0)
    sums = np.einsum("kc,kcd->cd", weights, features[top])
    centres: FloatArray = sums / np.maximum(weights.sum(axis=0), _MIN_MASS)[:, None]
    return centres


def neighbour_terms(index: IntArray, affinity: FloatArray, assignments: FloatArray) -> FloatArray:
    """Return sum_j w_ij z_j, (n, C): over the nearest images of i and over those that have i among their nearest."""
    terms: FloatArray = np.einsum("ik,ikc->ic", affinity, assignments[index])
    np.add.at(terms, index, affinity[:, :, None] * assignments[:, None, :])
    terms /= 2
    return terms


def scores_of(
    features: FloatArray, text_log_probs: FloatArray, mixture: _Mixture, weights: MixtureWeights
) -> FloatArray:
    """Return the unnormalised log z of other images, (m, C), with neighbours among the site's own images."""
    neighbour_index, affinity = nearest(features, mixture.features, weights.neighbours)
    neighbours = np.einsum("ik,ikc->ic", affinity, mixture.assignments[neighbour_index])
    own = weights.text * text_log_probs + weights.mixture * _log_likelihood(features, mixture)
    scores: FloatArray = own + neighbours
    return scores


def _log_likelihood(features: FloatArray, mixture: _Mixture) -> FloatArray:
    """Return log p_ic up to a term that all classes share, (m, C)."""
    scaled, centres = features / mixture.spread, mixture.centres
    log_likelihood: FloatArray = scaled @ centres.T - 0.5 * (centres**2 / mixture.spread).sum(axis=1)
    return log_likelihood


def nearest(
    features: FloatArray, among: FloatArray, neighbours: int, *, skip_itself: bool = False
) -> tuple[IntArray, FloatArray]:
    """Return the indices, (m, k), of the rows of `among` nearest to each of m features, and their affinities v, (m, k).

    Ties go to the lower index. With `skip_itself`, when both arrays are the same images, no image is its own neighbour.
    """
    cosines = features @ among.T
    if skip_itself:
        np.fill_diagonal(cosines, -np.inf)
    count = min(neighbours, len(among) - skip_itself)
    index = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return index, np.maximum(np.take_along_axis(cosines, index, axis=1), 0.0) / max(count, 1)


def _refit(mixture: _Mixture) -> _Mixture:
    """Update mu and sigma from the assignments."""
    z, features = mixture.assignments, mixture.features
    mass = z.sum(axis=0)
    means = z.T @ features / np.maximum(mass, _MIN_MASS)[:, None]
    centres = np.where(mass[:, None] > _MIN_MASS, means, mixture.centres)
    # sum_ic z_ic (f_i - mu_c)^2 / n, with sum_c z_ic = 1
    spread = (features**2).mean(axis=0) + (-2 * (z.T @ features) * centres + mass[:, None] * centres**2).sum(
        axis=0
    ) / len(z)
    return mixture._replace(centres=centres, spread=np.maximum(spread, _MIN_SPREAD))
