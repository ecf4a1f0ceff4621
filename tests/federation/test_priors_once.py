"""The priors within a run: estimated once from zero-shot CLIP, sent to clients that join later, used in training."""

import numpy as np
import pytest
import torch

from fakes import CLASSES, FakeLearner, FlakyFederation, clients, run, start
from fedcopl.algorithm.select import Selection
from fedcopl.config import RunConfig
from fedcopl.federation.prior_estimation import PriorState
from fedcopl.messages import Evaluate
from fedcopl.methods.losses import label_loss
from fedcopl.priors.posterior import no_priors


def config_of(**sections):
    return RunConfig.from_mapping({"rounds": 3, "labels": {"refresh_every": 1}, **sections}, "test")


def run_all(federation, config):
    reports = []
    state = run(config, federation, start(), lambda _, report: reports.append(report))
    return state, reports


class RecordingFederation(FlakyFederation):
    """Records all requests."""

    def __init__(self, members):
        super().__init__(members)
        self.requests = []

    def request(self, requests):
        self.requests += requests.values()
        return super().request(requests)


def test_priors_are_estimated_once():
    federation = RecordingFederation(clients(config_of()))
    state, reports = run_all(federation, config_of())
    assert {number for _, kind, number in federation.requested if kind == "Adapt"} == {0}
    assert state.prior_model is not None
    assert all(client.learner.predict_calls[0] is None for client in federation._clients.values())  # by plain CLIP
    assert [
        message.round
        for message in federation.requests
        if isinstance(message, Evaluate) and message.calibration == "priors"
    ] == [0] * 3
    assert [bool(report.untrained) for report in reports] == [True, False, False]


def test_new_client_gets_the_priors():
    config = config_of()
    federation = FlakyFederation(clients(config))
    late = "client-2"
    federation.lost = {(late, kind, 0) for kind in ("Adapt", "Estimate", "Evaluate")}
    state, _ = run_all(federation, config)
    assert [number for client, kind, number in federation.requested if kind == "Adapt" and number] == [1]
    prior = federation.states[late].prior
    assert np.array_equal(prior.model.logit_bias, state.prior_model.logit_bias)
    assert prior.class_prior is not None and prior.distances is not None


def test_new_client_without_reply_does_not_end_the_run():
    config = config_of()
    federation = FlakyFederation(clients(config))
    federation.lost = {("client-2", kind, number) for kind in ("Adapt", "Estimate", "Evaluate") for number in (0, 1, 2)}
    state, reports = run_all(federation, config)
    assert state.round == 3 and reports[-1].participants == ("client-0", "client-1")


def test_training_gets_the_logit_adjustment():
    config, seen = config_of(), []

    class RecordingLearner(FakeLearner):
        """Sure enough of its labels to train on them."""

        def __init__(self, number):
            super().__init__(number)
            sharp = 30 * self.log_probs
            self.log_probs = sharp - np.log(np.exp(sharp - sharp.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
            self.log_probs -= sharp.max(axis=1, keepdims=True)

        def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
            seen.append((self.number, selection.index, adjustment))
            return super().train(prompts, selection, round, lr_factor, adjustment)

    federation = FlakyFederation(clients(config, RecordingLearner))
    run_all(federation, config)
    assert seen
    for number, index, adjustment in seen:
        prior = federation.states[f"client-{number}"].prior
        assert adjustment.offset.shape == (len(index), CLASSES)
        log_probs = federation._clients[f"client-{number}"].learner.log_probs[index]
        log_posteriors = adjustment.weight * log_probs + adjustment.offset
        log_posteriors -= np.log(np.exp(log_posteriors).sum(axis=1, keepdims=True))
        assert log_posteriors == pytest.approx(
            prior.own_log_posteriors(log_probs, index)
        )  # training and prediction use the same log-posteriors


def test_loss_on_prior_adjusted_logits():
    # Two classes; the model predicts 1 : 1, the class prior is 3 : 1. The posterior is 3/4, its loss log(4/3).
    known = PriorState(model=no_priors(2), class_prior=np.array([0.75, 0.25]), distances=np.zeros((1, 2)))
    adjustment = known.adjustment(np.array([0]))
    loss = label_loss(Selection(np.array([0]), np.array([0])), "cc", torch.device("cpu"), adjustment)
    assert float(loss(torch.zeros(1, 2), torch.tensor([0]))) == pytest.approx(np.log(4 / 3))


def test_no_logit_adjustment_without_priors():
    assert PriorState().adjustment(np.array([0])) is None
