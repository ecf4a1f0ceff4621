"""Settings and numbers reach the code that uses them; expected values are computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fakes import NO_PRIORS, START, FakeLearner, clients, run, start
from fedcopl.config import RunConfig
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState
from fedcopl.messages import Estimate, Evaluate, Request, Select, Train
from fedcopl.simulation.simulate import LocalTransport

VISUAL = {"visual": np.full((2, 3), 5, np.float32)}
NO_FILTERS = {"confidence_filter": False, "entropy_filter": False}


def config_of(**sections):
    return RunConfig.from_mapping({"priors": NO_PRIORS, "train": {"holdout": 0}, **sections}, "test")


class RecordingTransport(LocalTransport):
    """Records all requests."""

    def __init__(self, clients):
        super().__init__(clients)
        self.requests: list[Request] = []

    def request(self, requests):
        self.requests += requests.values()
        return super().request(requests)

    def of(self, kind):
        return [request for request in self.requests if isinstance(request, kind)]


def learner_with(probs, number=0):
    learner = FakeLearner(number)
    learner.log_probs = np.log(np.array(probs, np.float64))
    return learner


def run_all(config, federation, state=None):
    return run(config, federation, state or start(), lambda state, report: None)


# The server's sums and the number of the refresh reach the quota.

ONE_AND_TWO = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.2, 0.6, 0.2], [0.3, 0.4, 0.3]]  # u_k = (1, 3, 0)


def test_quota_of_unseen_class_grows_with_refreshes():
    # Three such clients: T = (3, 9, 0), S = 12, M = 4. Class 0: ceil(1 * 4 / 3) = 2, class 1: ceil(3 * 4 / 9) = 2.
    # Class 2 at refresh q: ceil(4 (q + 1) / (2 * 3)) = ceil(2 (q + 1) / 3) = 1, 2, 2, 3.
    # With K = 1 it would be 2, 4, 6, 8; with q always 0, 1 each time.
    config = config_of(rounds=7, labels={"refresh_every": 2, **NO_FILTERS})
    federation = RecordingTransport(clients(config, lambda i: learner_with(ONE_AND_TWO, i)))
    quotas = []
    run(config, federation, start(), lambda state, _: quotas.append(federation.states["client-0"].quota.tolist()))
    assert quotas[::2] == [[2, 2, 1], [2, 2, 2], [2, 2, 2], [2, 2, 3]]
    assert {request.clients for request in federation.of(Select)} == {3}
    assert [request.refresh for request in federation.of(Select)[::3]] == [0, 1, 2, 3]
    assert [request.round for request in federation.of(Select)[::3]] == [0, 2, 4, 6]


def test_number_of_clients_is_that_of_the_sum():
    class OneClientLost(RecordingTransport):
        def request(self, requests):
            return {name: reply for name, reply in super().request(requests).items() if name != "client-2"}

    config = config_of(rounds=1)
    federation = OneClientLost(clients(config))
    run_all(config, federation)
    assert [request.clients for request in federation.of(Select)] == [2, 2]


def test_requests_have_round_and_prompts_of_their_round():
    # Every client adds 1 to the visual prompt in a round: Train requests of round r have r, Evaluate requests r + 1.
    config = config_of(rounds=3, labels={"refresh_every": 1})
    federation = RecordingTransport(clients(config))
    run_all(config, federation)
    for kind, more in ((Estimate, 0), (Train, 0), (Evaluate, 1)):
        sent = [(request.round, request.shared["visual"][0, 0]) for request in federation.of(kind)[::3]]
        assert sent == [(number, number + more) for number in range(3)], kind


# The levels of both filters reach their own filter.

# Confidences 0.9 0.6 0.8 0.5; the entropies are in the opposite order: 0.39, 0.90, 0.64, 1.03.
ORDERED = [[0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.5, 0.3, 0.2]]
# Image 0 is surer (0.6 against 0.55), image 1 has less entropy (0.69 against 0.95).
CONTRARY = [[0.6, 0.2, 0.2], [0.45, 0.549999, 0.000001]]


def counted(probs, **labels):
    client = Client(learner_with(probs), config_of(labels=labels))
    return client.handle(Estimate(0, VISUAL), ClientState())[0].counts.tolist()


def test_confidence_and_entropy_quantiles_reach_the_labeler():
    # At level 0 all but the worst pass; at 0.75 only image 0: 0.9 > 0.825, and 0.39 < 0.39 + 0.75 * (0.64 - 0.39).
    assert counted(ORDERED, confidence_quantile=0.0, entropy_quantile=0.0) == [2, 1, 0]
    assert counted(ORDERED, confidence_quantile=0.0, entropy_quantile=0.75) == [1, 0, 0]
    assert counted(ORDERED, confidence_quantile=0.75, entropy_quantile=0.0) == [1, 0, 0]


@pytest.mark.parametrize(("off", "counts"), [("entropy_filter", [1, 0, 0]), ("confidence_filter", [0, 1, 0])])
def test_confidence_and_entropy_filters_switch_off_separately(off, counts):
    assert counted(CONTRARY, **{off: False}) == counts


def last_quota(**labels):
    """At the third refresh of a client alone, with u = (1, 3, 0)."""
    config = config_of(rounds=3, labels={"refresh_every": 1, **NO_FILTERS, **labels})
    federation = LocalTransport(clients(config, lambda i: learner_with(ONE_AND_TWO, i), count=1))
    run_all(config, federation)
    return federation.states["client-0"].quota.tolist()


def test_budget_and_unseen_rule_follow_the_settings():
    # S = 4, M = 4/3: class 0 gets ceil(1 * 4/3), class 1 ceil(3 * 4/3 / 3), the class without confident images
    # ceil(4/3 * 3/2) = 2.
    # With M rounded up to 2 first, that is ceil(2 * 3/2) = 3.
    assert last_quota() == [2, 2, 2]
    assert last_quota(budget="ceil") == [2, 2, 3]
    assert last_quota(unseen="none") == [2, 2, 0]


@pytest.mark.parametrize(("candidates", "chosen"), [("argmax", {0: 0, 1: 0, 2: 1}), ("any", {0: 0, 1: 0, 2: 1, 3: 2})])
def test_candidates_rule_follows_the_settings(candidates, chosen):
    # u = T = (3, 1, 0), S = 4, M = 4/3: quotas 2, 2 and, of the class without confident images, ceil(4/3 / 2) = 1. With
    # argmax no image is selected for class 2. With any image 3 is the likeliest with 0.2, and image 1, a candidate of
    # class 1 too, is likelier of class 0.
    client = Client(learner_with(ORDERED), config_of(labels={"candidates": candidates, **NO_FILTERS}))
    _, state = client.handle(Estimate(0, VISUAL), ClientState())
    _, state = client.handle(Select(0, 0, np.array([3, 1, 0]), 1), state)
    assert state.quota.tolist() == [2, 2, 1]
    assert dict(zip(state.selection.index.tolist(), state.selection.label.tolist(), strict=True)) == chosen


# A client's own text prompt takes part in everything but the first labels.


class Spy:
    """A test set that records its calls."""

    def __init__(self):
        self.prompts, self.priors = [], []

    def score(self, prompts, prior=None):
        self.prompts.append(prompts)
        self.priors.append(prior)
        return 1, 2


def trained_client(**sections):
    learner = learner_with(ORDERED, number=7)  # training adds 7 to the text prompt
    client = Client(learner, config_of(labels={"global_allocation": False}, **sections), Spy())
    _, state = client.handle(Estimate(0, VISUAL), ClientState())
    _, state = client.handle(Select(0, 0, None, 1), state)
    _, state = client.handle(Train(0, VISUAL), state)
    return client, state


def test_every_request_uses_the_clients_own_text_prompt():
    client, state = trained_client()
    sent = {"visual": VISUAL["visual"] + 1}
    client.handle(Estimate(5, sent), state)
    client.handle(Evaluate(5, sent), state)
    client.handle(Train(6, sent), state)
    for used in (client.learner.predict_calls[-1], client.test_set.prompts[-1], client.learner.train_calls[-1]):
        assert (used["text"] == 7).all()
        assert used["visual"] is sent["visual"]


def test_zero_shot_evaluation_has_no_prompts():
    client, state = trained_client()
    client.handle(Evaluate(0, None), state)
    assert client.test_set.prompts == [None]


def test_averaged_arrays_are_not_kept_by_the_client():
    client, state = trained_client()
    assert set(state.own) == {"text"}
    _, state = client.handle(Train(1, {**VISUAL, "text": START["text"]}), replace(state, own={}))
    assert state.own == {}


def test_learner_gets_round_and_selection():
    class RecordingLearner(FakeLearner):
        def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
            train_calls.append((round, selection.index.tolist(), selection.label.tolist(), lr_factor))
            return prompts, 0.5

    train_calls = []
    learner = RecordingLearner()
    learner.log_probs = np.log(np.array(ORDERED))
    client = Client(learner, config_of(labels={"global_allocation": False}))
    _, state = client.handle(Estimate(0, VISUAL), ClientState())
    _, state = client.handle(Select(0, 0, None, 1), state)
    client.handle(Train(3, VISUAL), state)
    assert train_calls == [(3, [0, 2], [0, 1], 1.0)]


def test_refresh_changes_the_training_images():
    client, state = trained_client()
    client.learner.log_probs = np.log(np.array(ORDERED))[:, ::-1]
    _, state = client.handle(Estimate(5, VISUAL), state)
    _, state = client.handle(Select(5, 1, None, 1), state)
    assert state.selection.label.tolist() == [1, 2]
    assert np.exp(state.confidence).tolist() == pytest.approx([0.8, 0.9])
