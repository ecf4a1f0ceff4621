"""The hold-out check of a client whose training helps or harms, computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fakes import START, FakeLearner
from fedcopl.algorithm.holdout import _extra_errors
from fedcopl.algorithm.select import Selection
from fedcopl.config import RunConfig
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState, state_from, state_tensors
from fedcopl.federation.prior_estimation import PriorState
from fedcopl.messages import Estimate, Evaluate, Select, Train
from fedcopl.priors.posterior import no_priors
from fedcopl.privacy.masked_layout import HoldoutSums

VISUAL = {"visual": np.zeros((2, 3), np.float32)}
RIGHT = np.arange(10) % 2  # pseudo labels of the ten images, two classes of three; 4 and 9 are the holdout


class ConfidenceLearner(FakeLearner):
    """The visual prompt is the confidence: logit = 1 + visual. Training adds `move` to it."""

    def __init__(self, move=1.0):
        super().__init__(images=10)
        self.move, self.cautions, self.chosen = move, [], []
        self.log_probs = self.log_probabilities_of(START, np.arange(10))

    def log_probabilities_of(self, prompts, index):
        logits = np.zeros((len(index), 3))
        logits[np.arange(len(index)), RIGHT[index]] = 1 + prompts["visual"][0, 0].astype(np.float64)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
        self.cautions.append(lr_factor)
        self.chosen.append(selection.index.tolist())
        moved = {"visual": prompts["visual"] + np.float32(self.move), "text": prompts["text"] + np.float32(1)}
        return {**prompts, **moved}, 0.5


def client_of(move=1.0, **train):
    labels = {"confidence_filter": False, "entropy_filter": False, "global_allocation": False, "refresh_every": 9}
    return Client(
        ConfidenceLearner(move), RunConfig.from_mapping({"rounds": 2, "labels": labels, "train": train}, "test")
    )


def ready(client):
    _, state = client.handle(Estimate(0, VISUAL), ClientState())
    return client.handle(Select(0, 0, None, 1), state)[1]


def shared(value):
    return {"visual": np.full((2, 3), value, np.float32)}


def test_holdout_is_never_trained_on():
    client = client_of()
    reply, _ = client.handle(Train(0, VISUAL), ready(client))
    assert sorted(client.learner.chosen[0]) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert reply.examples == 8


def test_without_holdout_everything_is_trained_on():
    client = client_of(-3.0, holdout=0)
    reply, state = client.handle(Train(0, VISUAL), ready(client))
    assert reply.examples == 10
    assert (reply.shared["visual"] == -3).all()
    assert reply.checks == ()
    assert state.holdout.training is None


def test_no_rollback_after_helpful_training():
    client = client_of(1.0)
    reply, state = client.handle(Train(0, VISUAL), ready(client))
    assert (reply.shared["visual"] == 1).all()
    assert (state.own["text"] == 1).all()
    assert state.holdout.training.harm == ""
    assert state.holdout.lr_factor == 1


@pytest.mark.parametrize(("move", "harm"), [(-0.5, "less confident"), (np.nan, "not finite")])
def test_rollback_after_harmful_training_lowers_learning_rate(move, harm):
    client = client_of(move)
    reply, state = client.handle(Train(0, VISUAL), ready(client))
    assert reply.shared is VISUAL
    assert reply.examples == 0  # it has no part in the average
    assert HoldoutSums(*reply.checks).trainings_rolled_back == 1
    assert state.own == {}
    assert state.holdout.training.harm == harm
    client.handle(Train(1, VISUAL), state)
    assert client.learner.cautions == [1.0, 0.5]


def test_rollback_after_harmful_average():
    client = client_of(1.0)
    _, state = client.handle(Train(0, VISUAL), ready(client))
    reply, state = client.handle(Train(1, shared(-4)), state)
    # The holdout: two images at -log p = log(e + 2) - 1 with visual 0, at log(e^-3 + 2) + 3 with -4.
    assert reply.checks[0] == 2
    assert reply.checks[1] == pytest.approx(2 * (np.log(np.e + 2) - 1))
    assert reply.checks[2] == pytest.approx(2 * (np.log(np.exp(-3) + 2) + 3))
    assert reply.checks[3] == 1
    assert reply.examples == 0  # it does not train from there
    assert len(client.learner.cautions) == 1
    assert (state.own["visual"] == 0).all()
    assert (state.own["text"] == 0).all()  # the whole model it had, not half of it


def test_good_average_is_accepted_after_rollback():
    client = client_of(1.0)
    _, state = client.handle(Train(0, VISUAL), ready(client))
    _, state = client.handle(Train(1, shared(-4)), state)
    reply, state = client.handle(Train(2, shared(2)), state)
    assert (reply.shared["visual"] == 3).all()
    assert "visual" not in state.own


def test_evaluation_uses_the_model_the_client_keeps():
    seen = []

    class Spy:
        def score(self, prompts, prior):
            seen.append(prompts)
            return 0, 0

    client = replace(client_of(), test_set=Spy())
    _, state = client.handle(Train(0, VISUAL), ready(client))
    client.handle(Evaluate(0, shared(-4)), state)
    client.handle(Evaluate(0, shared(4)), state)
    assert [prompts["visual"][0, 0] for prompts in seen] == [0, 4]


def test_final_model_against_first_labels_is_reset():
    # A harmful model agrees with the labels that it made at a refresh, but not with those of the first refresh.
    client = client_of()
    state = ready(client)
    spoilt = replace(state, own={"visual": np.full((2, 3), -4, np.float32), "text": np.ones((1, 3), np.float32)})
    spoilt = replace(spoilt, selection=None)  # nothing to compare with
    _, after = client.handle(Evaluate(0, {}), spoilt)
    assert not after.holdout.was_reset  # not the last round
    _, after = client.handle(Evaluate(1, {}), spoilt)
    assert after.holdout.was_reset
    assert (after.own["visual"] == START["visual"]).all()


def test_holdout_state_is_stored():
    client = client_of(-0.5)
    _, state = client.handle(Train(0, VISUAL), ready(client))
    _, state = client.handle(Evaluate(0, shared(-4)), state)
    again = state_from(state_tensors(state))
    assert again.holdout.lr_factor == state.holdout.lr_factor == 0.5
    assert again.holdout.average == state.holdout.average
    assert again.holdout.training == state.holdout.training
    assert np.array_equal(again.holdout.log_probs, state.holdout.log_probs)
    assert np.array_equal(again.holdout.accepted["visual"], state.holdout.accepted["visual"])
    assert np.array_equal(again.first_holdout.index, state.first_holdout.index)


def test_holdout_is_compared_with_priors():
    # A model with uniform predictions, at a client that has only class 0: the prior makes all predictions class 0.
    class UniformLearner(ConfidenceLearner):
        def log_probabilities_of(self, prompts, index):
            return np.log(np.full((len(index), 2), 0.5))

    check = replace(client_of(0.0)._check, learner=UniformLearner())
    known = PriorState(model=no_priors(2), class_prior=np.array([0.999, 0.001]), distances=np.zeros((20, 2)))
    log_probs = check._log_probs({}, np.array([0, 7]), ClientState(prior=known))
    assert log_probs == pytest.approx(np.log([[0.999, 0.001]] * 2))


class OvertrainedLearner(ConfidenceLearner):
    """Training raises the confidence on the holdout, and changes the predictions of three images not trained on."""

    def log_probabilities_of(self, prompts, index):
        log_probs = super().log_probabilities_of(
            {"visual": prompts["visual"] + 2}, index
        )  # else the client would not train on its labels
        if prompts["visual"][0, 0] > 0:
            for row in np.flatnonzero(np.isin(index, [0, 1, 2])):
                log_probs[row] = np.log([0.05, 0.05, 0.9])
        return log_probs


def even_priors():
    """Priors that only change the confidence of the client's own predictions."""
    even = np.full(3, 1 / 3)
    return PriorState(model=no_priors(3), class_prior=even, distances=np.zeros((10, 3)))


def without_three_images(client, prior):
    """Return the state of a client that did not select the images 0, 1 and 2."""
    state = ready(client)
    chosen = state.selection.index > 2
    selection = Selection(state.selection.index[chosen], state.selection.label[chosen])
    return replace(state, prior=prior, selection=selection, confidence=state.confidence[chosen])


@pytest.mark.parametrize(("prior", "harm"), [(PriorState(), ""), (even_priors(), "against the priors")])
def test_rollback_of_training_against_the_priors(prior, harm):
    client = client_of()
    client = replace(client, learner=OvertrainedLearner())
    reply, state = client.handle(Train(0, VISUAL), without_three_images(client, prior))
    # By priors p = e^3 / (e^3 + 2) for unchanged predictions, 1 / (e^3 + 2) for changed ones: here three of ten.
    assert state.holdout.training.harm == harm
    assert (reply.examples == 0) == bool(harm)
    fewer = _extra_errors(client.learner.log_probs, np.array([2, 2, 2, *RIGHT[3:]]))
    assert fewer == pytest.approx(3 * (np.e**3 - 1) / (np.e**3 + 2))


def test_rollback_of_average_against_the_priors():
    client = replace(client_of(), learner=OvertrainedLearner())
    _, state = client.handle(Train(0, shared(1)), without_three_images(client, even_priors()))
    assert state.holdout.average.harm == "against the priors"
    assert (state.own["visual"] == 0).all()


@pytest.mark.parametrize(
    ("trained", "epochs", "looked_at"),
    [(10, 1, 8), (10, 4, 10), (20, 10, 50), (100, 10, 64), (196, 10, 4)],
    ids=["at least eight", "a quarter of the training", "of all epochs", "at most 64", "there are no more"],
)
def test_number_of_unseen_images_is_limited_by_training(trained, epochs, looked_at):
    # A look costs half of training on an image and there are two a round: with a look for four images trained on in all
    # epochs together the check costs a quarter of the training. Of 200 images none is held out here.
    client = client_of(epochs=epochs, holdout=0)
    selection = Selection(np.arange(trained), np.zeros(trained, np.int64))
    state = ClientState(selection=selection, labels=np.zeros(200, np.int32), prior=even_priors())
    unseen = client._check._unseen(state)
    assert len(unseen) == looked_at and unseen.min() >= trained


def test_losses_of_a_small_holdout_are_not_sent():
    open_client = client_of()
    state = ready(open_client)
    checks = [
        HoldoutSums(*client.handle(Train(0, shared(-5)), state)[0].checks)
        for client in (open_client, replace(open_client, min_images=3))  # the holdout has two images
    ]
    assert checks[0].images == 2 and checks[0].loss_after > checks[0].loss_before > 0
    assert checks[1] == checks[0]._replace(images=0.0, loss_before=0.0, loss_after=0.0)
