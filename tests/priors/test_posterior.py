"""The posterior model and its prototypes, by hand and by independent computation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.priors.posterior import KAPPA, PosteriorModel, Prototypes, make_prototypes, no_priors
from fedcopl.rng import stream


def test_without_priors_probabilities_do_not_change():
    log_probs = np.log([[0.7, 0.3], [0.1, 0.9]])
    assert no_priors(2).log_posteriors(log_probs, np.zeros((2, 1)), np.full(2, 0.5)) == pytest.approx(log_probs)


def test_bias_scale_and_class_prior_add_up():
    # sqrt(0.64) : sqrt(0.36) = 4 : 3; the bias doubles the second, the prior triples it: 4 : 18.
    model = PosteriorModel(np.full(2, 0.5), np.log([1.0, 2.0]), text_scale=0.5)
    result = model.log_posteriors(np.log([[0.64, 0.36]]), np.zeros((1, 1)), np.array([0.25, 0.75]))
    assert np.exp(result) == pytest.approx(np.array([[4 / 22, 18 / 22]]))


def test_the_adjustment_of_logits_gives_the_same_posteriors():
    model = PosteriorModel(np.array([0.2, 0.8]), np.array([0.3, -0.3]), 0.7, 0.4)
    log_probs, distances, prior = np.log([[0.6, 0.4]]), np.array([[1.0, 3.0]]), np.array([0.9, 0.1])
    adjusted = model.adjustment(distances, prior)
    scores = adjusted.weight * log_probs + adjusted.offset
    by_hand = 0.7 * log_probs + [0.3, -0.3] + np.log(prior) - 0.2 * distances
    assert scores == pytest.approx(by_hand)


def test_a_distance_is_minus_twice_the_log_predictive_density():
    # One dimension, mean 0 of 2 images, Sigma 1: the predictive variance is 1 + 1/2.
    made = Prototypes(np.array([2.0]), np.array([[0.0]]), np.eye(1))
    x = 3.0
    assert made.distances(np.array([[x]])) == pytest.approx(np.array([[x**2 / 1.5 + math.log(1.5)]]))


@given(st.integers(0, 50))
def test_distances_are_leave_one_out(seed):
    draw = stream(seed, "leave one out")
    features, q = draw.normal(size=(6, 3)), draw.dirichlet(np.ones(2), size=6)
    counts, totals = q.sum(axis=0) + KAPPA + 5, q.T @ features
    whole = Prototypes(counts, totals, np.eye(3)).distances(features, q)
    for image in range(6):
        without = Prototypes(counts - q[image], totals - np.outer(q[image], features[image]), np.eye(3))
        assert whole[image] == pytest.approx(without.distances(features[image : image + 1])[0])


def test_prototypes_are_class_means_shrunk_towards_the_common_mean():
    # Three images of class 0 at 1, one of class 1 at -1, in one dimension: means (3 + 2 * 0.5) / 5 and (-1 + 1) / 3.
    sums = np.array([[3.0, 3.0], [1.0, -1.0]])
    made = make_prototypes(sums, 4.0, np.array([0.5]), np.array([[4.4]]), 0, None)
    unwhitened = made.totals / made.counts[:, None] / made.whiten[0, 0]
    assert unwhitened.ravel() == pytest.approx([4 / 5, 0.0])
    # Within the classes 4.4 - 3 - 1 = 0.4 is left over of four images: variance 0.1.
    assert made.whiten[0, 0] ** -2 == pytest.approx(0.1)


def test_the_bias_moves_by_the_log_ratio_of_predicted_share_and_class_prior():
    # Predicted 3 : 1 where it should be 1 : 1: log(0.75 / 0.5) and log(0.25 / 0.5), centred.
    moved = no_priors(2).rebalanced(np.array([30.0, 10.0]))
    assert moved.logit_bias == pytest.approx([-math.log(3) / 2, math.log(3) / 2])
    assert no_priors(2).rebalanced(np.array([-5.0, -1.0])).logit_bias == pytest.approx([0, 0])  # only noise


def test_the_bias_moves_by_two_at_most():
    # Class 1 is never predicted: log(1 / 0.5) for class 0, and 2 instead of infinity for class 1, centred.
    moved = no_priors(2).rebalanced(np.array([40.0, 0.0]))
    assert moved.logit_bias == pytest.approx([-(math.log(2) + 2) / 2, (math.log(2) + 2) / 2])


def test_a_model_is_stored_and_read_back():
    made = Prototypes(np.array([3.0, 4.0]), np.ones((2, 3)), np.eye(3))
    for model in (no_priors(2), PosteriorModel(np.array([0.4, 0.6]), np.array([1.0, -1.0]), 0.5, 0.2, made, 0.1)):
        again = PosteriorModel.from_arrays(model.to_arrays())
        assert {name: value.tolist() for name, value in again.to_arrays().items()} == {
            name: value.tolist() for name, value in model.to_arrays().items()
        }
