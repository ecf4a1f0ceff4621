"""StatA: its updates by hand and against the objective that they minimise, and its limits."""

import numpy as np
import pytest

from fedcopl.methods import choose_method
from fedcopl.methods.stata import _anchored, _Gaussians, _text_anchor
from methods.toolbox import CHOSEN, config_of, floats_of, learner_of

FEATURES = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
TEXTS = np.eye(2)
Z = np.array([[0.8, 0.2], [0.5, 0.5], [0.3, 0.7]])


def test_the_anchor_by_hand():
    # Around (1, 0) the squares are (0, 0), (.16, .64), (1, 1), around (0, 1) they are (1, 1), (.36, .04), (0, 0).
    anchor = _text_anchor(FEATURES, Z, TEXTS)
    first = (0.8 * 0 + 0.2 * 1 + 0.5 * 0.16 + 0.5 * 0.36 + 0.3 * 1 + 0.7 * 0) / 3
    second = (0.8 * 0 + 0.2 * 1 + 0.5 * 0.64 + 0.5 * 0.04 + 0.3 * 1 + 0.7 * 0) / 3
    np.testing.assert_allclose(anchor.variances, [[first, second]] * 2)
    assert anchor.means is TEXTS


def test_means_and_counts_by_hand():
    # Class 0 has two images (ties go to the lower class), class 1 one: beta = 2/3 and 1/2 with alpha = 1.
    means = _anchored(FEATURES, Z, _text_anchor(FEATURES, Z, TEXTS), 1.0, soft_counts=False).means
    np.testing.assert_allclose(means[0], 2 / 3 * np.array([0.8 + 0.3, 0.4 + 0.3]) / 1.6 + 1 / 3 * TEXTS[0])
    np.testing.assert_allclose(means[1], 1 / 2 * np.array([0.2 + 0.3, 0.4 + 0.7]) / 1.4 + 1 / 2 * TEXTS[1])


def objective(model, z, anchor, alpha):
    """-sum z log p + alpha KL(anchor || model), term by term."""
    likelihood = sum(
        z[i, k] * 0.5 * ((FEATURES[i] - model.means[k]) ** 2 / model.variances[k] + np.log(model.variances[k])).sum()
        for i in range(3)
        for k in range(2)
    )
    ratio = anchor.variances / model.variances
    kl = 0.5 * (ratio - 1 - np.log(ratio) + (anchor.means - model.means) ** 2 / model.variances).sum()
    return likelihood + alpha * kl


def test_the_updates_minimise_the_objective():
    anchor, rng = _text_anchor(FEATURES, Z, TEXTS), np.random.default_rng(0)
    best = _anchored(FEATURES, Z, anchor, 0.7, soft_counts=True)
    least = objective(best, Z, anchor, 0.7)
    for _ in range(50):
        moved = _Gaussians(
            best.means + rng.normal(0, 0.02, (2, 2)), best.variances * np.exp(rng.normal(0, 0.05, (2, 2)))
        )
        assert objective(moved, Z, anchor, 0.7) > least


def test_a_class_without_images_stays_at_its_anchor():
    z = np.array([[1.0, 0.0]] * 3)
    anchor = _text_anchor(FEATURES, Z, TEXTS)
    for soft in (True, False):
        model = _anchored(FEATURES, z, anchor, 1.0, soft_counts=soft)
        np.testing.assert_array_equal(model.means[1], TEXTS[1])
        np.testing.assert_array_equal(model.variances[1], anchor.variances[1])
    free = _anchored(FEATURES, z, anchor, 0.0, soft_counts=True)
    np.testing.assert_allclose(free.means[0], FEATURES.mean(0))
    np.testing.assert_allclose(free.variances[0], FEATURES.var(0))


def test_the_likelihood_by_hand():
    # -1/2 ((1 - 0)^2 / 2 + log 2 + (0 - 1)^2 / 4 + log 4)
    model = _Gaussians(np.array([[0.0, 1.0]]), np.array([[2.0, 4.0]]))
    assert model.log_likelihood(FEATURES[:1])[0, 0] == pytest.approx(-0.5 * (0.5 + np.log(2) + 0.25 + np.log(4)))


def test_before_a_selection_it_is_zero_shot_clip():
    learner = learner_of("stata")
    np.testing.assert_allclose(learner.log_probabilities({}), learner.log_probabilities(None), atol=1e-5)
    memory = learner.build_memory(CHOSEN)
    assert (learner.log_probabilities(memory).argmax(1) != learner.log_probabilities(None).argmax(1)).any()


def test_without_gaussians_and_neighbours_it_is_zero_shot_clip():
    learner = learner_of("stata", "options.mixture_weight=0", "options.neighbours=0")
    np.testing.assert_allclose(
        learner.log_probabilities(learner.build_memory(CHOSEN)), learner.log_probabilities(None), atol=1e-5
    )


def test_an_infinite_anchor_keeps_the_texts():
    """With alpha towards infinity the Gaussians stay the anchors, so more iterations change nothing."""
    memory = learner_of("stata").build_memory(CHOSEN)
    pairs = ["options.anchor=1e12", "options.neighbours=0"]
    few, many = (
        learner_of("stata", *pairs, f"options.iterations={count}").log_probabilities(memory) for count in (1, 10)
    )
    np.testing.assert_allclose(few, many, atol=1e-5)
    usual = learner_of("stata", "options.neighbours=0").log_probabilities(memory)
    assert abs(usual - many).max() > 0.1


def test_nothing_is_trained_or_shared():
    assert floats_of("stata") == ({}, {})
    assert not choose_method(config_of("stata")).trains
