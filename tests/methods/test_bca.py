"""BCA: two images of a stream by hand, and its limits."""

import math

import numpy as np
import pytest

from fedcopl.methods import choose_method
from fedcopl.methods.bca import _posteriors
from methods.toolbox import CHOSEN, config_of, floats_of, learner_of

TEXTS = np.eye(2)


def fitted(features, scale, *pairs):
    features = np.array(features)
    return choose_method(config_of("bca", *pairs)).fit(features, np.zeros((len(features), 2)), TEXTS, scale)


def test_the_prior_by_hand():
    # exp(s <f, mu>) = 3 and 1, so P(mu | x) = (3/4, 1/4). First posterior: (3/4, 1/4), the prior of class 0 becomes
    # ((1, 0) + (3/4, 1/4)) / 2 = (7/8, 1/8). Second: 3/4 (7/8, 1/8) + 1/4 (0, 1) = (21/32, 11/32), the prior becomes
    # (2 (7/8, 1/8) + (21/32, 11/32)) / 3 = (77/96, 19/96). An image at class 0 then has 3/4 * 77/96.
    scores = fitted([[1.0, 0.0], [1.0, 0.0]], math.log(3))
    expected = 0.75 * 77 / 96
    np.testing.assert_allclose(np.exp(scores(TEXTS[:1], None)), [[expected, 1 - expected]])


def test_the_embedding_by_hand():
    # s <f, mu> differ by s 0.2 = log 2, so that class 1 has 2/3; mu_1 is the direction of (0, 1) + (0.6, 0.8).
    pairs = ["options.text_count=1", "options.prior_threshold=1"]
    scores = fitted([[0.6, 0.8]], math.log(2) / 0.2, *pairs)
    moved = np.array([[1.0, 0.0], np.array([0.6, 1.8]) / math.hypot(0.6, 1.8)])
    logits = math.log(2) / 0.2 * TEXTS @ moved.T
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(np.exp(scores(TEXTS, None)), expected)


def test_below_both_thresholds_it_is_zero_shot_clip():
    pairs = ["options.likelihood_threshold=1", "options.prior_threshold=1"]
    learner = learner_of("bca", *pairs)
    np.testing.assert_allclose(
        learner.log_probabilities(learner.build_memory(CHOSEN)), learner.log_probabilities(None), atol=1e-4
    )


def test_posteriors_are_mixed_by_the_priors():
    priors = np.array([[0.9, 0.1], [0.2, 0.8]])
    # Far beyond the scale of rounding only the nearest embedding counts.
    np.testing.assert_allclose(_posteriors(TEXTS, TEXTS, priors, 1000.0), priors)


def test_the_sites_images_change_its_predictions():
    learner = learner_of("bca", "options.text_count=20")
    np.testing.assert_allclose(learner.log_probabilities({}), learner.log_probabilities(None), atol=1e-5)
    after = learner.log_probabilities(learner.build_memory(CHOSEN))
    assert (after.argmax(1) != learner.log_probabilities(None).argmax(1)).any()
    np.testing.assert_allclose(np.exp(after).sum(1), 1)


def test_the_default_keeps_embeddings_near_the_texts_and_a_small_count_collapses():
    """Images share most of their length, as a real CLIP's do: with a small a the first class attracts all images."""
    common, own = np.eye(6)[5], np.eye(6)[:3]
    truth = np.arange(30) % 3
    images = np.sqrt(0.8) * common + np.sqrt(0.2) * own[truth]
    texts = 0.05 * own + np.sqrt(1 - 0.05**2) * np.eye(6)[4]
    log_probs = np.zeros((30, 3))

    def accuracy(*pairs):
        scores = choose_method(config_of("bca", *pairs)).fit(images, log_probs, texts, 100.0)
        return (scores(images, None).argmax(axis=1) == truth).mean()

    assert accuracy() == 1
    assert accuracy("options.text_count=20") == 1 / 3


def test_nothing_is_trained_or_shared():
    assert floats_of("bca") == ({}, {})


def test_a_threshold_is_a_probability():
    with pytest.raises(Exception, match=r"options\.prior_threshold: should be at most 1"):
        choose_method(config_of("bca", "options.prior_threshold=2"))
