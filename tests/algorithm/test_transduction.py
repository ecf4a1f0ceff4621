"""TransCLIP's mixture: numbers worked by hand, and what must hold for any images."""

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

ALONE, ONCE = MixtureWeights(1.0, 1.0, 0), {"iterations": 1, "passes": 1}
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0]])
SURE = np.log(np.array([[1 - 1e-12, 1e-12], [1e-12, 1 - 1e-12]]))


def test_likelihood_by_hand():
    # f = (1, 0), mu = (1, 0) and (0, 1), sigma = (1/2, 1/4): -1/2 (0) and -1/2 (1 / .5 + 1 / .25) = -3, so 3 apart.
    mixture = _Mixture(np.eye(2), np.array([0.5, 0.25]), FEATURES, np.eye(2))
    found = _log_likelihood(np.array([[1.0, 0.0]]), mixture)
    assert found[0, 0] - found[0, 1] == pytest.approx(3)


def test_two_confident_images_are_their_own_centres():
    # Both are sure, so mu are the images themselves and nothing is left to spread: the floor.
    found = transduce(FEATURES, SURE, ALONE, **ONCE)
    np.testing.assert_allclose(found.centres, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(found.spread, 1e-8)
    np.testing.assert_allclose(found.assignments, np.eye(2), atol=1e-9)


def test_the_first_iteration_by_hand():
    # Texts say 1/2 each: z = y, so both centres are (1/2, 1/2), likelihoods are equal, z stays 1/2.
    # sigma: every image is 1/2 away in each dimension.
    found = transduce(FEATURES, np.log(np.full((2, 2), 0.5)), ALONE, **ONCE)
    np.testing.assert_allclose(found.assignments, 0.5)
    np.testing.assert_allclose(found.centres, 0.5)
    np.testing.assert_allclose(found.spread, 0.25)


def test_first_centres_are_means_of_eight_most_confident_images():
    # Ten images at 0 .. 9 on a line. Of the first class the last eight are surest, of which the last counts twice:
    # (2 + 3 + ... + 8 + 2 x 9) / 9 = 53 / 9; of the second the first eight, alike: 28 / 8.
    sure = np.array([[1, 4], [1, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 1], [4, 1]]) / 8
    found = _first_centres(np.arange(10.0)[:, None], sure)
    np.testing.assert_allclose(found, [[53 / 9], [28 / 8]])


def test_nearest_by_hand():
    near, weights = nearest(np.array([[1.0, 0], [0.6, 0.8]]), np.array([[0.0, 1], [1, 0], [-1, 0]]), 2)
    assert near.tolist() == [[1, 0], [0, 1]]
    np.testing.assert_allclose(weights, [[1 / 2, 0], [0.8 / 2, 0.6 / 2]])  # two pull, each by half
    near, _ = nearest(FEATURES, FEATURES, 3, skip_itself=True)
    assert near.tolist() == [[1], [0]]  # there is but one other


def test_neighbour_terms_are_symmetric():
    # v_01 = v_10 = 0.8, v_20 = 0.5: w_01 = 0.8 and w_02 = 0.25, both ways.
    near, pull = np.array([[1], [0], [0]]), np.array([[0.8], [0.8], [0.5]])
    found = neighbour_terms(near, pull, np.eye(3))
    np.testing.assert_allclose(found, [[0, 0.8, 0.25], [0.8, 0, 0], [0.25, 0, 0]])


def test_neighbour_terms_by_hand():
    # Equal centres and texts: only the neighbour speaks, cosine .8 times its assignments (1, 0).
    same = _Mixture(np.ones((2, 2)), np.ones(2), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
    text = np.log(np.full((1, 2), 0.5))
    alone = scores_of(np.array([[0.6, 0.8]]), text, same, ALONE)
    pulled = scores_of(np.array([[0.6, 0.8]]), text, same, MixtureWeights(1, 1, 3))
    np.testing.assert_allclose(pulled - alone, [[0.8, 0.0]])


def test_a_cluster_corrects_its_doubtful_member():
    # Three images in each of two directions; the text is wrong about one of them, but unsure.
    tilt = np.array([[1, 0.05, 0], [1, -0.05, 0], [1, 0, 0.05], [0, 1, 0.05], [0, 1, -0.05], [0.05, 1, 0]])
    features = tilt / np.linalg.norm(tilt, axis=1, keepdims=True)
    said = np.log([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9]])
    found = transduce(features, said, MixtureWeights(1, 0.02, 3), iterations=10, passes=5)
    assert found.assignments.argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 1]


def made_of(rows, logits):
    """Features of length one, and what the text says of them."""
    away = rows + np.array([4.0, 0, 0])  # no row of length 0
    features = away / np.linalg.norm(away, axis=1, keepdims=True)
    return features, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


SOME = (
    hnp.arrays(np.float64, (9, 3), elements=st.floats(-3, 3)),
    hnp.arrays(np.float64, (9, 4), elements=st.floats(-5, 5)),
)


@given(*SOME)
def test_assignments_are_shares_and_nothing_is_lost(rows, logits):
    found = transduce(*made_of(rows, logits), MixtureWeights(1, 0.02, 3), iterations=3, passes=2)
    assert all(np.isfinite(part).all() for part in found)
    np.testing.assert_allclose(found.assignments.sum(axis=1), 1)
    assert (found.spread > 0).all()


def objective(said, mixture, weights):
    """As the docstring of the module has it, written out with a whole matrix of who is near whom."""
    z, features = mixture.assignments, mixture.features
    cosines = features @ features.T - 9 * np.eye(len(features))
    v = np.zeros_like(cosines)
    for i, row in enumerate(cosines):
        for j in np.argsort(-row, kind="stable")[: weights.neighbours]:
            v[i, j] = max(row[j], 0) / weights.neighbours
    away = (features[:, None] - mixture.centres) ** 2 / mixture.spread
    log_p = -0.5 * (away.sum(axis=2) + np.log(mixture.spread).sum())
    log_z = np.log(np.maximum(z, 1e-300))
    alone = (z * (log_z - weights.text * said - weights.mixture * log_p)).sum()
    return alone - 0.5 * ((v + v.T) / 2 * (z @ z.T)).sum()


@given(*SOME, st.sampled_from([0.02, 0.3, 1.0]))
def test_no_iteration_raises_the_objective(rows, logits, mixture_weight):
    # Nine images: none can be among the nearest three of more than twelve others.
    (features, said), weights = made_of(rows, logits), MixtureWeights(1.0, mixture_weight, 3)
    found = [transduce(features, said, weights, iterations=iterations, passes=2) for iterations in range(1, 6)]
    values = [objective(said, mixture, weights) for mixture in found]
    assert all(later <= earlier + 1e-9 * (1 + abs(earlier)) for earlier, later in pairwise(values))
