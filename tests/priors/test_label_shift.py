"""Label-shift estimation and its held-out evidence."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from fedcopl.priors.label_shift import STRENGTHS, label_shift, shift_evidence
from fedcopl.rng import stream

EVEN = np.full(2, 0.5)
CERTAIN = np.array([[2.0, 0.0]] * 3 + [[0.0, 2.0]])  # p(x | c) / p(x) of images whose class is certain


def test_certain_images_are_counted():
    assert label_shift(CERTAIN, EVEN, 0.0) == pytest.approx([0.75, 0.25])
    assert label_shift(CERTAIN, EVEN, 1.0) == pytest.approx([0.625, 0.375], abs=1e-3)  # half way to the common prior
    assert label_shift(CERTAIN, EVEN, math.inf) == pytest.approx(EVEN)
    assert label_shift(np.zeros((0, 2)), EVEN, 0.0) == pytest.approx(EVEN)


def test_label_shift_maximises_the_likelihood():
    ratios = stream(0, "ratios").dirichlet(np.ones(3), size=50) * 3

    def loss(scores):
        pi = np.exp(scores) / np.exp(scores).sum()
        return -np.log(ratios @ pi).sum()

    best = minimize(loss, np.zeros(3)).x  # an independent optimiser
    assert label_shift(ratios, np.full(3, 1 / 3), 0.0) == pytest.approx(np.exp(best) / np.exp(best).sum(), abs=5e-3)


def test_evidence_of_certain_images_by_hand():
    # Four images of class 0, folds of one: the other images are of class 0, so each has log 2.
    ratios = np.array([[2.0, 0.0]] * 4)
    result = shift_evidence(ratios, EVEN)
    assert result[STRENGTHS.index(math.inf)] == pytest.approx(0.0)
    assert result[STRENGTHS.index(0.0)] == pytest.approx(4 * math.log(2))
    assert result[STRENGTHS.index(1.0)] == pytest.approx(4 * math.log(2 * 0.75), abs=1e-2)


def test_evidence_is_held_out_by_hand():
    # One certain image of each class, folds of one: the other image is of the other class. With one pseudo-count of the
    # common prior for each image that is 1 : 3, so each has log(2 / 4); without it, log(2 * 1e-9).
    result = shift_evidence(np.array([[2.0, 0.0], [0.0, 2.0]]), EVEN)
    assert result[STRENGTHS.index(1.0)] == pytest.approx(2 * math.log(0.5), abs=1e-2)
    assert result[STRENGTHS.index(0.0)] == pytest.approx(2 * math.log(2e-9), rel=1e-3)


def test_the_common_prior_is_at_least_as_strong_as_the_minimum():
    result = shift_evidence(np.array([[2.0, 0.0]] * 4), EVEN, min_strength=1.0)
    assert result[STRENGTHS.index(math.inf)] == pytest.approx(0.0)
    assert result[1:] == pytest.approx(4 * math.log(2 * 0.75), abs=1e-2)  # the estimate is 3/4, at any weaker strength


def test_a_client_with_the_common_class_prior_has_no_evidence():
    draw = stream(1, "like all")
    labels = draw.choice(4, 400)
    scores = np.exp(draw.normal(size=(400, 4)) + 2 * np.eye(4)[labels])
    posteriors = scores / scores.sum(axis=1, keepdims=True)
    result = shift_evidence(posteriors / posteriors.mean(axis=0), posteriors.mean(axis=0))
    assert result.max() < 0.01 * 400


@pytest.mark.parametrize("images", [0, 1])
def test_fewer_than_two_images_have_no_evidence(images):
    assert (shift_evidence(np.ones((images, 2)), EVEN) == 0).all()
