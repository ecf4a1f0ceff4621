"""Properties of every registered method."""

from functools import cache

import numpy as np
import pytest
import torch

from fedcopl.errors import ConfigError
from fedcopl.methods import METHODS, choose_method
from fedcopl.methods.base import Method
from fedcopl.methods.fedclip import FedCLIP
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel
from methods.toolbox import CHOSEN, SETS, config_of, encoder, floats_of, images, learner_of, trained

TRAINING = [name for name in METHODS if choose_method(config_of(name)).trains]
FLOATS = {  # of glyph-clip: 3 x 5 x 128 visual, 16 x 128 text
    "fedcopl": ({"visual": 1920}, {"text": 2048}),
    "local": ({}, {"visual": 1920, "text": 2048}),
    "central": ({}, {"visual": 1920, "text": 2048}),
    "zeroshot": ({}, {}),
    "fedvpt": ({"visual": 2560}, {}),  # at every one of its four blocks
}


@pytest.mark.parametrize("name", FLOATS)  # of methods/fedcopl.py; other methods have their own tests
def test_shared_and_personal_arrays(name):
    assert floats_of(name) == FLOATS[name]


@pytest.mark.parametrize("name", TRAINING)
def test_training_changes_all_trained_arrays_and_lowers_the_loss(name):
    learner = learner_of(name, "epochs=6", "lr=0.05")
    after, last = trained(learner)
    _, first = trained(learner_of(name, "epochs=1", "lr=1e-9"))
    assert last < first
    # pFedMoAP's gate has no gradient without experts: see test_pfedmoap.py.
    for key in (
        key for key in learner.model.method.shapes(encoder().clip, encoder().classes) if not key.startswith("gate")
    ):
        assert (after[key] != learner.initial()[key]).any(), key
        assert np.isfinite(after[key]).all(), key


@cache
def trained_once(name):
    """Return the result of one training, shared by several tests."""
    return trained(learner_of(name))


@pytest.mark.parametrize("name", TRAINING)
def test_training_is_deterministic(name):
    one, two = trained_once(name)[0], trained(learner_of(name))[0]
    assert all(one[key].tobytes() == two[key].tobytes() for key in one)


@pytest.mark.parametrize("name", TRAINING)
def test_candidate_sets_can_be_trained_on(name):
    after, loss = trained(learner_of(name), SETS)
    assert np.isfinite(loss)
    assert loss < trained_once(name)[1] + 1  # the loss on a set that contains the label is at most as high
    assert all(np.isfinite(value).all() for value in after.values())


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_are_probabilities(name):
    log_probs = learner_of(name).log_probabilities(learner_of(name).initial())
    assert log_probs.shape == (60, 10)
    np.testing.assert_allclose(np.exp(log_probs).sum(1), 1)


@pytest.mark.parametrize("name", METHODS)
def test_frozen_image_features_are_computed_once(name, monkeypatch):
    """Methods with frozen image features encode each image once; the others every time."""
    learner = learner_of(name)
    encoded = []
    tower = encoder().clip.vision
    monkeypatch.setattr(
        tower, "forward", lambda tokens, *args, run=tower.forward: (encoded.append(len(tokens)), run(tokens, *args))[1]
    )
    learner.log_probabilities(None)
    trained(learner)
    learner.log_probabilities(learner.initial())
    if learner.model.method.caches_frozen:
        assert sum(encoded) <= 60
    else:
        assert sum(encoded) == 60 + 2 * 40 + 60  # zero-shot, two epochs on the selected images, and one pass over all


@pytest.mark.parametrize("name", METHODS)
def test_class_order_changes_only_the_order(name):
    from fedcopl.clip.encoder import Encoder
    from fedcopl.data.catalog import CLASSES

    turned = Encoder(encoder().clip, CLASSES[::-1], "a photo of a {}", encoder().arithmetic)
    learner = learner_of(name)
    other = ClipLearner(PromptedModel(learner.model.method, turned), images(), learner.start, learner.config, 0)
    ours, theirs = (each.log_probabilities(each.initial()) for each in (learner, other))
    np.testing.assert_allclose(ours, theirs[:, ::-1], atol=1e-4)


class ForgottenAdapter(FedCLIP):
    """Its image features depend on the adapter, which it does not declare."""

    image_arrays = ()

    def shared(self):
        return FedCLIP.image_arrays


class ForgottenVisual(Method):
    image_arrays = ()


class ForgottenText(Method):
    class_arrays = ()


class OnlyTested(FedCLIP):
    """It tests whether an array exists, without using it."""

    def image_features(self, encoder, frozen, named):
        return super().image_features(encoder, frozen, named) if "bias" not in named else frozen


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ForgottenAdapter, r"^ForgottenAdapter\.image_arrays does not declare 'down': add it"),
        (ForgottenVisual, r"^ForgottenVisual\.image_arrays does not declare 'visual': add it"),
        (ForgottenText, r"^ForgottenText\.class_arrays does not declare 'text': add it"),
        (OnlyTested, r"^OnlyTested\.image_arrays does not declare 'bias': add it"),
    ],
)
def test_a_method_that_forgets_to_declare_an_array_fails_at_once(kind, message):
    """Otherwise cached features of an older model would be used for labels, accuracy and predictions."""
    method = kind(config_of("fedcopl"))
    start = method.start(encoder().clip, encoder().classes)
    learner = ClipLearner(PromptedModel(method, encoder()), images(), start, method.config, 0)
    for use in (
        lambda: learner.log_probabilities(start),
        lambda: learner.log_probabilities_of(start, np.arange(2)),
        lambda: learner.train(start, CHOSEN, 0),
    ):
        with pytest.raises(LookupError, match=message):
            use()


def test_zero_shot_logits_are_the_same_for_all_methods():
    learner = learner_of("zeroshot")
    plain = learner.extractor.logits({})
    for name in METHODS:
        torch.testing.assert_close(learner_of(name).extractor.zero_shot_logits(), plain, atol=1e-4, rtol=1e-5)
    assert learner.train({}, CHOSEN, 0)[0] == {}


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"method: unknown method 'promtfl' \(known: fedcopl, .*did you mean promptfl"
    ):
        choose_method(config_of("promtfl"))


def test_unknown_and_invalid_options_are_refused():
    with pytest.raises(ConfigError, match=r"options\.mu: fedcopl has no such option \(it has: none\)"):
        choose_method(config_of("fedcopl", "options.mu=1"))
    with pytest.raises(ConfigError, match=r"options\.mu: should be at least 0"):
        choose_method(config_of("promptprox", "options.mu=-1"))
    assert choose_method(config_of("promptprox", "options.mu=0.1")).options.mu == 0.1


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (["zeroshot", "labeler=fpl"], "does not train"),
        (["promptfl", "aggregate=both"], "is for method=fedcopl only"),
        (["central", "options.labels=truth", "labeler=cpl"], "truth needs no labeler"),
    ],
)
def test_contradicting_settings_are_refused(pairs, why):
    with pytest.raises(ConfigError, match=why):
        choose_method(config_of(*pairs))


def test_arrays_other_than_prompts_start_with_small_values():
    class WithBias(Method):
        def shapes(self, clip, classes):
            return {**super().shapes(clip, classes), "bias": (classes,)}

    model = encoder()
    start = WithBias(config_of("fedcopl", "init=neutral")).start(model.clip, model.classes)
    assert start["bias"].shape == (model.classes,)
    assert abs(start["bias"]).max() < 0.2  # 0.02 is the standard deviation
