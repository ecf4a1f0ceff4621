"""FST: numbers computed by hand."""

import math

import numpy as np
import pytest
import torch

from fedcopl.methods import choose_method
from fedcopl.methods.base import Batch
from fedcopl.methods.fst import _SYNTHETIC, _missing_images
from methods.toolbox import config_of, encoder, floats_of, learner_of

NO_PRIORS = ("priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false")


def test_with_priors_the_initial_model_is_zero_shot_clip():
    learner = learner_of("fst")
    np.testing.assert_allclose(learner.log_probabilities(learner.initial()), learner.log_probabilities(None), atol=1e-4)


def test_initial_logits_are_those_of_zero_shot_clip():
    learner = learner_of("fst", *NO_PRIORS)
    first, plain = learner.log_probabilities(learner.initial()), learner.log_probabilities(None)
    assert (first.argmax(1) == plain.argmax(1)).all()
    ours, theirs = (logits - logits[:, :1] for logits in (first, plain))
    np.testing.assert_allclose(ours * float(encoder().clip.logit_scale), theirs, atol=1e-3)  # except for CLIP's scale


def test_only_the_classifier_is_shared():
    assert floats_of("fst") == ({"classifier": 1280}, {})  # ten classes, 128 features


def test_missing_images_of_rare_classes():
    assert _missing_images(np.array([0, 0, 0, 2]), 4).tolist() == [0, 3, 2, 3]


def loss_of(named, labels, *pairs):
    """Return the loss for two classes with class features of zero, so that only the classifier counts."""
    method, zeros = choose_method(config_of("fst", *NO_PRIORS, *pairs)), torch.zeros(2, 2)
    images = torch.tensor([[1.0, 0.0]]).repeat(len(labels), 1)
    batch = Batch(encoder(), images, zeros, named, np.arange(len(labels)), np.array(labels), None, lambda: images)

    def fit(logits):
        return torch.nn.functional.cross_entropy(logits, torch.tensor(labels))

    return method.loss(batch, fit).item()


def test_the_loss_by_hand():
    # z = <f, D>: D_0 = (ln 3, 0), D_1 = 0. Two images (1, 0) of class 0: p_0 = 3/4, loss ln 4/3 each. Class 1 lacks two
    # images; its synthetic feature (0, 1) has z = (0, 0), loss ln 2. Mean over the four.
    named = {"classifier": torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])}
    bank = {_SYNTHETIC: torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])}
    assert loss_of(named, [0, 0]) == pytest.approx(math.log(4 / 3))
    balanced = (2 * math.log(4 / 3) + 2 * math.log(2)) / 4
    assert loss_of(named | bank, [0, 0], "options.samples=1") == pytest.approx(balanced)


def test_a_balanced_batch_has_no_synthetic_features():
    named = {"classifier": torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])}
    bank = {_SYNTHETIC: torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])}
    assert loss_of(named | bank, [0, 1], "options.samples=1") == pytest.approx(loss_of(named, [0, 1]))


def test_synthetic_features_lie_around_the_texts():
    method = choose_method(config_of("fst", "options.spread=0.1"))
    bank = method.before_training(encoder(), {})[_SYNTHETIC]
    texts = encoder().class_features(None)
    assert bank.shape == (16, *texts.shape)
    cosines = (bank * texts).sum(-1)
    assert cosines.min() > 0.98  # noise of length about 0.1 across
    assert torch.equal(bank, method.before_training(encoder(), {})[_SYNTHETIC])  # equal at every client and round
    assert method.before_training(encoder(), {"a": texts}).keys() == {"a", _SYNTHETIC}
    assert choose_method(config_of("fst", "options.balance=false")).before_training(encoder(), {}) == {}
