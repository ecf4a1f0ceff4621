"""TransCLIP's mixture: numbers computed by hand, and properties for any images."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.transduction import (
    MixtureWeights,
    _first_centres,
    _log_likelihood,
    _Mixture,
    nearest,
    neighbour_terms,
    scores_of,
    transduce,
)

NO_NEIGHBOURS, ONCE = MixtureWeights(1.0, 1.0, 0), {"iterations": 1, "passes": 1}
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0]])
CONFIDENT = np.log(np.array([[1 - 1e-12, 1e-12], [1e-12, 1 - 1e-12]]))


def test_likelihood_by_hand():
    # f = (1, 0), mu = (1, 0) and (0, 1), sigma = (1/2, 1/4): -1/2 (0) and -1/2 (1 / .5 + 1 / .25) = -3, so 3 apart.
    mixture = _Mixture(np.eye(2), np.array([0.5, 0.25]), FEATURES, np.eye(2))
    result = _log_likelihood(np.array([[1.0, 0.0]]), mixture)
    assert result[0, 0] - result[0, 1] == pytest.approx(3)


def test_centres_of_two_confident_images_are_the_images():
    # Both are confident, so mu are the images and the variance is its minimum.
    result = transduce(FEATURES, CONFIDENT, NO_NEIGHBOURS, **ONCE)
    np.testing.assert_allclose(result.centres, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(result.spread, 1e-8)
    np.testing.assert_allclose(result.assignments, np.eye(2), atol=1e-9)


def test_the_first_iteration_by_hand():
    # The text has 1/2 for each class: z = y, so both centres are (1/2, 1/2), likelihoods are equal, z stays 1/2.
    # sigma: every image is 1/2 shifted in each dimension.
    result = transduce(FEATURES, np.log(np.full((2, 2), 0.5)), NO_NEIGHBOURS, **ONCE)
    np.testing.assert_allclose(result.assignments, 0.5)
    np.testing.assert_allclose(result.centres, 0.5)
    np.testing.assert_allclose(result.spread, 0.25)


def test_first_centres_are_means_of_eight_most_confident_images():
    # Ten images at 0 .. 9 on a line. The last eight are the most confident of the first class, with weight two for the
    # last: (2 + 3 + ... + 8 + 2 x 9) / 9 = 53 / 9; the first eight of the second, with equal weights: 28 / 8.
    probabilities = np.array([[1, 4], [1, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 1], [4, 1]]) / 8
    result = _first_centres(np.arange(10.0)[:, None], probabilities)
    np.testing.assert_allclose(result, [[53 / 9], [28 / 8]])


def test_nearest_by_hand():
    index, weights = nearest(np.array([[1.0, 0], [0.6, 0.8]]), np.array([[0.0, 1], [1, 0], [-1, 0]]), 2)
    assert index.tolist() == [[1, 0], [0, 1]]
    np.testing.assert_allclose(weights, [[1 / 2, 0], [0.8 / 2, 0.6 / 2]])  # two neighbours, each with weight 1/2
    index, _ = nearest(FEATURES, FEATURES, 3, skip_itself=True)
    assert index.tolist() == [[1], [0]]  # there is only one other image


def test_neighbour_terms_are_symmetric():
    # v_01 = v_10 = 0.8, v_20 = 0.5: w_01 = 0.8 and w_02 = 0.25, both ways.
    index, weights = np.array([[1], [0], [0]]), np.array([[0.8], [0.8], [0.5]])
    result = neighbour_terms(index, weights, np.eye(3))
    np.testing.assert_allclose(result, [[0, 0.8, 0.25], [0.8, 0, 0], [0.25, 0, 0]])


def test_neighbour_terms_by_hand():
    # Equal centres and texts: only the neighbour counts, with cosine .8 times its assignments (1, 0).
    same = _Mixture(np.ones((2, 2)), np.ones(2), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
    text = np.log(np.full((1, 2), 0.5))
    alone = scores_of(np.array([[0.6, 0.8]]), text, same, NO_NEIGHBOURS)
    with_neighbours = scores_of(np.array([[0.6, 0.8]]), text, same, MixtureWeights(1, 1, 3))
    np.testing.assert_allclose(with_neighbours - alone, [[0.8, 0.0]])


def test_a_cluster_corrects_an_uncertain_member():
    # Three images in each of two directions; the text is wrong about one of them, with low confidence.
    tilt = np.array([[1, 0.05, 0], [1, -0.05, 0], [1, 0, 0.05], [0, 1, 0.05], [0, 1, -0.05], [0.05, 1, 0]])
    features = tilt / np.linalg.norm(tilt, axis=1, keepdims=True)
    text_log_probs = np.log([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9]])
    result = transduce(features, text_log_probs, MixtureWeights(1, 0.02, 3), iterations=10, passes=5)
    assert result.assignments.argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 1]


def normalised(rows, logits):
    """Return features of length one and log-probabilities."""
    shifted = rows + np.array([4.0, 0, 0])  # no row of length 0
    features = shifted / np.linalg.norm(shifted, axis=1, keepdims=True)
    return features, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


CASES = (
    hnp.arrays(np.float64, (9, 3), elements=st.floats(-3, 3)),
    hnp.arrays(np.float64, (9, 4), elements=st.floats(-5, 5)),
)


@given(*CASES)
def test_assignments_sum_to_one_and_are_finite(rows, logits):
    result = transduce(*normalised(rows, logits), MixtureWeights(1, 0.02, 3), iterations=3, passes=2)
    assert all(np.isfinite(part).all() for part in result)
    np.testing.assert_allclose(result.assignments.sum(axis=1), 1)
    assert (result.spread > 0).all()


def objective(text_log_probs, mixture, weights):
    """Return the objective in the docstring of the module, with a full matrix of neighbours."""
    z, features = mixture.assignments, mixture.features
    cosines = features @ features.T - 9 * np.eye(len(features))
    v = np.zeros_like(cosines)
    for i, row in enumerate(cosines):
        for j in np.argsort(-row, kind="stable")[: weights.neighbours]:
            v[i, j] = max(row[j], 0) / weights.neighbours
    shifted = (features[:, None] - mixture.centres) ** 2 / mixture.spread
    log_p = -0.5 * (shifted.sum(axis=2) + np.log(mixture.spread).sum())
    log_z = np.log(np.maximum(z, 1e-300))
    alone = (z * (log_z - weights.text * text_log_probs - weights.mixture * log_p)).sum()
    return alone - 0.5 * ((v + v.T) / 2 * (z @ z.T)).sum()


@given(*CASES, st.sampled_from([0.02, 0.3, 1.0]))
def test_no_iteration_raises_the_objective(rows, logits, mixture_weight):
    # Nine images: none can be among the nearest three of more than twelve others.
    (features, text_log_probs), weights = normalised(rows, logits), MixtureWeights(1.0, mixture_weight, 3)
    result = [
        transduce(features, text_log_probs, weights, iterations=iterations, passes=2) for iterations in range(1, 6)
    ]
    values = [objective(text_log_probs, mixture, weights) for mixture in result]
    assert all(later <= earlier + 1e-9 * (1 + abs(earlier)) for earlier, later in pairwise(values))
