"""TransCLIP's mixture: numbers worked by hand, and what must hold for any images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.transduction import Mixture, MixtureWeights, log_likelihood, nearest, scores_of, transduce

ALONE, ONCE = MixtureWeights(1.0, 1.0, 0), {"turns": 1, "passes": 1}
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0]])
SURE = np.log(np.array([[1 - 1e-12, 1e-12], [1e-12, 1 - 1e-12]]))


def test_likelihood_by_hand():
    # f = (1, 0), mu = (1, 0) and (0, 1), sigma = (1/2, 1/4): -1/2 (0) and -1/2 (1 / .5 + 1 / .25) = -3, so 3 apart.
    mixture = Mixture(np.eye(2), np.array([0.5, 0.25]), FEATURES, np.eye(2))
    found = log_likelihood(np.array([[1.0, 0.0]]), mixture)
    assert found[0, 0] - found[0, 1] == pytest.approx(3)


def test_two_sure_images_are_their_own_centres():
    # Both are sure, so mu are the images themselves and nothing is left to spread: the floor.
    found = transduce(FEATURES, SURE, ALONE, **ONCE)
    np.testing.assert_allclose(found.centres, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(found.spread, 1e-8)
    np.testing.assert_allclose(found.assignments, np.eye(2), atol=1e-9)


def test_the_first_turn_by_hand():
    # Texts say 1/2 each: z = y, so both centres are (1, 1) / sqrt 2, likelihoods are equal, z stays 1/2.
    # sigma: every image is (1 - 1/sqrt 2)^2 and (1/sqrt 2)^2 away, half of them in each dimension.
    found = transduce(FEATURES, np.log(np.full((2, 2), 0.5)), ALONE, **ONCE)
    np.testing.assert_allclose(found.assignments, 0.5)
    np.testing.assert_allclose(found.centres, np.full((2, 2), np.sqrt(0.5)))
    np.testing.assert_allclose(found.spread, ((1 - np.sqrt(0.5)) ** 2 + 0.5) / 2)


def test_nearest_by_hand():
    near, weights = nearest(np.array([[1.0, 0], [0.6, 0.8]]), np.array([[0.0, 1], [1, 0], [-1, 0]]), 2)
    assert near.tolist() == [[1, 0], [0, 1]]
    np.testing.assert_allclose(weights, [[1 / 2, 0], [0.8 / 2, 0.6 / 2]])  # two pull, each by half
    near, _ = nearest(FEATURES, FEATURES, 3, skip_itself=True)
    assert near.tolist() == [[1], [0]]  # there is but one other


def test_neighbours_pull_by_hand():
    # Equal centres and texts: only the neighbour speaks, cosine .8 times its assignments (1, 0).
    same = Mixture(np.ones((2, 2)), np.ones(2), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
    text = np.log(np.full((1, 2), 0.5))
    alone = scores_of(np.array([[0.6, 0.8]]), text, same, ALONE)
    pulled = scores_of(np.array([[0.6, 0.8]]), text, same, MixtureWeights(1, 1, 3))
    np.testing.assert_allclose(pulled - alone, [[0.8, 0.0]])


def test_a_cluster_corrects_its_doubtful_member():
    # Three images in each of two directions; the text is wrong about one of them, but unsure.
    tilt = np.array([[1, 0.05, 0], [1, -0.05, 0], [1, 0, 0.05], [0, 1, 0.05], [0, 1, -0.05], [0.05, 1, 0]])
    features = tilt / np.linalg.norm(tilt, axis=1, keepdims=True)
    said = np.log([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9]])
    found = transduce(features, said, MixtureWeights(1, 0.02, 3), turns=10, passes=5)
    assert found.assignments.argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 1]


@given(
    hnp.arrays(np.float64, (7, 3), elements=st.floats(-3, 3)), hnp.arrays(np.float64, (7, 4), elements=st.floats(-5, 5))
)
def test_assignments_are_shares_and_nothing_is_lost(rows, logits):
    away = rows + np.array([4.0, 0, 0])  # no row of length 0
    features = away / np.linalg.norm(away, axis=1, keepdims=True)
    said = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = transduce(features, said, MixtureWeights(1, 0.02, 3), turns=3, passes=2)
    assert all(np.isfinite(part).all() for part in found)
    np.testing.assert_allclose(found.assignments.sum(axis=1), 1)
    assert (found.spread > 0).all()
