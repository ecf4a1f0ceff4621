"""The sums that a client computes from its images, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcopl.priors.label_shift import STRENGTHS
from fedcopl.priors.posterior import PosteriorModel, Prototypes, no_priors
from fedcopl.priors.statistics import ClientScores, Statistic, _withhold_small

PROBS = np.array([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]])
EVEN = np.full(2, 0.5)


def unused():
    raise AssertionError("this sum needs no features")


def computed(probs, statistic, features=unused, **kept):
    return ClientScores(np.log(np.asarray(probs)), **kept).compute(statistic, features)[0]


def test_predictions_are_summed_under_each_model():
    # With a uniform class prior the posteriors are the probabilities. The bias (-log 2, 0, 0) makes of them
    # 0.4 0.1 0.1 of 0.6 and 0.25 0.3 0.2 of 0.75: 2/3 + 1/3, 1/6 + 0.4, 1/6 + 4/15.
    halved = PosteriorModel(np.full(3, 1 / 3), np.array([-math.log(2), 0, 0]))
    result = computed(PROBS, Statistic("predicted", (no_priors(3), halved)))
    assert result == pytest.approx(np.array([[1.3, 0.4, 0.3], [1, 1 / 6 + 0.4, 1 / 6 + 4 / 15]]))


def test_logits_are_summed_over_images_in_so_far_as_they_are_of_other_classes():
    # log 0.8 and log 0.2 are +-log(4) / 2 from their mean, with weights of 0.2 and 0.8; log 0.5 is the mean.
    result = computed([[0.8, 0.2], [0.5, 0.5]], Statistic("logits"))
    assert result == pytest.approx(np.array([0.2, -0.8]) * math.log(4) / 2)
    # A probability of 0 counts as exp(-100): the mean is -50, and the image is not of the class.
    assert computed([[1.0, 1e-320]], Statistic("logits")) == pytest.approx([0.0, -50.0])


@pytest.mark.parametrize(("feature_scale", "prior"), [(0.0, [0.75, 0.25]), (0.1, [1.0, 0.0])])
def test_with_text_alone_the_class_prior_has_one_image_more_of_each_class(feature_scale, prior):
    # Two certain images of class 0 and one more of each class are 3 : 1.
    model = PosteriorModel(EVEN, np.zeros(2), feature_scale=feature_scale, strength=0.0)
    scores = ClientScores(np.array([[0.0, -700.0]] * 2))
    assert scores.class_prior(model) == pytest.approx(prior, abs=1e-3)
    [[*evidence]] = scores.compute(Statistic("evidence", (model,), np.array([EVEN])), unused)[0]
    # Held out, the other image and as much of the common prior are 3 : 1, worth log(2 * 3 / 4) each; alone, log 2.
    least = 2 * math.log(3 / 2) if feature_scale == 0 else 2 * math.log(2)
    assert evidence[STRENGTHS.index(0.0)] == pytest.approx(least, abs=2e-2)


@pytest.mark.parametrize(("strength", "counts"), [(math.inf, [3.6, 0.4]), (0.0, [4.0, 0.0])])
def test_class_sums_use_the_clients_class_prior(strength, counts):
    # Four images of 0.9 : 0.1 are most likely all of class 0, if the class prior may be any.
    model = PosteriorModel(EVEN, np.zeros(2), feature_scale=0.1, strength=strength)
    features = np.array([[0.6, 0.8]] * 4)
    [sums] = computed([[0.9, 0.1]] * 4, Statistic("class_sums", (model,)), lambda: features)
    assert sums == pytest.approx(np.array(counts)[:, None] * [1, 0.6, 0.8], abs=1e-2)


def test_predictions_are_summed_under_the_common_class_prior():
    model = PosteriorModel(EVEN, np.zeros(2), strength=0.0)
    assert computed([[0.9, 0.1]] * 4, Statistic("predicted", (model,))) == pytest.approx(np.array([[3.6, 0.4]]))


# Two views of an image: text says 0.8 : 0.2, and the distances 0 and log 3, times half of a scale of 2, give 3 : 1.
DISTANCES = {"distances": {0: np.array([[[0.0, 0.0]], [[0.0, math.log(3)]]])}}
WITH_FEATURES = PosteriorModel(EVEN, np.zeros(2), 1.0, 2.0, Prototypes(np.ones(2), np.zeros((2, 1)), np.eye(1), 0))


def test_view_sums_by_hand():
    result = computed([[0.8, 0.2]], Statistic("view_sums", (WITH_FEATURES,)), **DISTANCES)
    assert result == pytest.approx(np.array([[[0.8, 0.2], [0.75, 0.25]]]))


def test_distances_in_the_text_axes_are_in_the_text_view_only():
    # All of the distance is within the axes of text: 0.8 * 3 : 0.2 is 12 : 1, and the residual view is uniform.
    both = {"distances": {0: np.array([[[0.0, math.log(3)]], [[0.0, math.log(3)]]])}}
    result = computed([[0.8, 0.2]], Statistic("view_sums", (WITH_FEATURES,)), **both)
    assert result == pytest.approx(np.array([[[12 / 13, 1 / 13], [0.5, 0.5]]]))


def test_agreement_by_hand():
    # (0.8 * 0.75 + 0.2 * 0.25) * 0.5 / (0.5 * 0.5) = 1.3.
    shares = np.array([[EVEN, EVEN]])
    result = computed([[0.8, 0.2]], Statistic("agreement", (WITH_FEATURES,), shares), **DISTANCES)
    assert result == pytest.approx([math.log(1.3)])
    # A class that both views predict three times in four: 0.6 / 0.75^2 + 0.05 / 0.25^2, of a prior of a half each.
    shares = np.array([[[0.75, 0.25], [0.75, 0.25]]])
    result = computed([[0.8, 0.2]], Statistic("agreement", (WITH_FEATURES,), shares), **DISTANCES)
    assert result == pytest.approx([math.log(0.5 * (0.6 / 0.5625 + 0.05 / 0.0625))])


def test_evidence_is_relative_to_the_mean_posteriors_of_all_clients():
    # If the mean posterior of all clients is 0.9 : 0.1 as well, there is no evidence.
    probs = [[0.9, 0.1]] * 4
    same = computed(probs, Statistic("evidence", (no_priors(2),), np.array([[0.9, 0.1]])))
    assert same == pytest.approx(np.zeros((1, len(STRENGTHS))))
    # If the mean is 1 : 1, each image is worth log 1.8.
    weak = replace(no_priors(2), feature_scale=0.1)
    [other] = computed(probs, Statistic("evidence", (weak,), EVEN[None]))
    assert other[STRENGTHS.index(0.0)] == pytest.approx(4 * math.log(1.8), abs=1e-3)


@pytest.mark.parametrize(("threshold", "uses_it"), [(0.4, True), (0.42, False)])
def test_strength_at_a_client_alone_needs_evidence_above_the_threshold(threshold, uses_it):
    # Ratios of 1.8 : 0.2, and half as much of the common prior: pi = (1.8 pi / (0.2 + 1.6 pi) + 0.25) / 1.5 has the
    # solution 0.817, so each of four images is worth log(0.2 + 1.6 * 0.817) = 0.41 nats.
    strength = ClientScores(np.log([[0.9, 0.1]] * 4)).best_prior_strength(no_priors(2), threshold)
    assert math.isfinite(strength) == uses_it


def test_strength_of_a_single_image_is_infinite():
    assert ClientScores(np.log([[0.9, 0.1]])).best_prior_strength(no_priors(2), 0.0) == math.inf


def test_own_distances_leave_the_image_out_of_the_means():
    # Features along one axis, 1 and -1; both classes got half of each image: N = 1 + 2, S = 0.
    # Without its half, an image at 1 has the mean -0.5 / 2.5 of 2.5 images: 1.2^2 * 2.5 / 3.5 + log(1 + 1 / 2.5).
    model = PosteriorModel(EVEN, np.zeros(2), 1.0, 1.0, Prototypes(np.full(2, 3.0), np.zeros((2, 1)), np.eye(1), 4))
    scores = ClientScores(np.log([EVEN, EVEN]))
    features = np.array([[1.0], [-1.0]])
    _, scores = scores.compute(Statistic("class_sums", (no_priors(2),), number=4), lambda: features)
    scores = scores.with_prototypes(model.prototypes, lambda: features)
    expected = 1.2**2 * 2.5 / 3.5 + math.log(1 + 1 / 2.5)
    assert scores.own_distances(model.prototypes) == pytest.approx(np.full((2, 2), expected))


# No class feature sum over few images leaves a site, nor can one be recovered.


def test_a_single_withheld_class_cannot_be_recovered_by_subtraction():
    # Three images each of classes 0 and 1, and one of class 2: 0.02 + 0.02 + ... + 0.9 images of class 2.
    probs = np.array([[0.96, 0.02, 0.02]] * 3 + [[0.02, 0.96, 0.02]] * 3 + [[0.075, 0.025, 0.9]])
    features = np.eye(7)
    q = _withhold_small(np.log(probs), 2)
    assert (q[:, 2] == 0).all()
    # Normalised over two classes: 0.96 and 0.02 of 0.98, and 0.075 and 0.025 of 0.1.
    assert q[0, :2] == pytest.approx([0.96 / 0.98, 0.02 / 0.98])
    assert q[6, :2] == pytest.approx([0.75, 0.25])
    assert features.sum(axis=0) - (q.T @ features).sum(axis=0) == pytest.approx(np.zeros(7))


def test_several_withheld_classes_are_together_of_enough_images():
    # 3, 1 and 1 images: the last two are withheld, and what remains is the sum of two images.
    probs = np.array([[1.0, 0, 0]] * 3 + [[0, 1.0, 0], [0, 0, 1.0]]) + 1e-12
    q = _withhold_small(np.log(probs), 2)
    assert q.sum(axis=0) == pytest.approx([3, 0, 0])
    assert (1 - q.sum(axis=1)).tolist() == pytest.approx([0, 0, 0, 1, 1], abs=1e-9)


def test_without_small_classes_nothing_is_withheld():
    assert (_withhold_small(np.log(PROBS), 0) == np.exp(np.log(PROBS))).all()
    assert _withhold_small(np.log(PROBS), 3).sum() == 0  # all are small: together they are all images


def test_no_image_exceeds_its_maximum_share_of_a_class_sum():
    # One image with 0.9 and ten with 0.01 of class 1 are 1.0 images, of which one has 90 %: withheld from two on.
    probs = np.array([[0.1, 0.9]] + [[0.99, 0.01]] * 10)
    for min_images, has_class in ((1, True), (2, False)):
        q = _withhold_small(np.log(probs), min_images)
        assert (q[:, 1] > 0).any() == has_class
        assert (q.max(axis=0) <= q.sum(axis=0) / min_images + 1e-12).all()


def test_an_image_is_left_out_of_the_means_with_the_weight_of_its_client():
    model = no_priors(2)
    for weight in (1.0, 0.2):
        scores = ClientScores(np.log([[0.9, 0.1]]))
        sums, kept = scores.compute(Statistic("class_sums", (model,)), lambda: np.eye(1, 2), weight=weight)
        assert sums[0, :, 0] == pytest.approx([0.9, 0.1])  # the server applies the weight to the sums
        assert kept.contributions[0] == pytest.approx(weight * np.array([[0.9, 0.1]]))
