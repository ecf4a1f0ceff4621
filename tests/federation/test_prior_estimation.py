"""The prior estimation over requests and replies: state, refusals and outcome at a client, drops at the server."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes import CLASSES, WIDTH, FakeLearner, SkewedLearner, clients, start, unit_rows
from fedcopl.config import RunConfig
from fedcopl.errors import CannotReply, NoClientReplied
from fedcopl.federation.aggregation import PlainAggregator
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState, state_from, state_tensors
from fedcopl.federation.prior_estimation import (
    PriorState,
    _contradicts_zero_shot,
    is_worth_training,
    prior_settings,
)
from fedcopl.federation.server import run_round
from fedcopl.federation.transport import RoundExchange, RoundReport
from fedcopl.messages import Adapt, Adapted, Estimate, Evaluate, Select, Train
from fedcopl.priors.estimation import Estimation
from fedcopl.priors.posterior import PosteriorModel, Prototypes, log_softmax, uniform
from fedcopl.simulation.simulate import LocalTransport

VISUAL = {"visual": np.full((2, 3), 5, np.float32)}
PROBS = np.array([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]])
MOSTLY_FIRST = [[0.9, 0.05, 0.05]] * 20
NO_BIAS = {"logit_bias": False, "prototypes": False}  # nothing is exchanged: each client decides alone
NO_FEATURES = {"prototypes": False}


def config_of(rounds=1, **sections):
    return RunConfig.from_mapping({"rounds": rounds, "train": {"holdout": 0}, **sections}, "test")


def client_of(probs=PROBS, min_images=0, **sections):
    learner = FakeLearner()
    learner.log_probs = np.log(np.asarray(probs, np.float64))
    return Client(learner, config_of(**sections), min_images=min_images)


def with_priors(logit_bias, class_prior=None, images=2):
    """A client's state after an estimation with this outcome."""
    model = PosteriorModel(uniform(CLASSES), np.asarray(logit_bias, np.float64))
    prior = uniform(CLASSES) if class_prior is None else np.asarray(class_prior)
    return ClientState(prior=PriorState(model=model, class_prior=prior, distances=np.zeros((images, CLASSES))))


def test_text_and_prototypes_agree_on_half_of_the_images():
    # Text alone names classes 0 and 0; the nearest prototypes are 0 and 2. Bias and class prior must not matter.
    made = Prototypes(np.ones(CLASSES), np.zeros((CLASSES, 1)), np.eye(1))
    model = PosteriorModel(uniform(CLASSES), np.array([-3.0, 1.0, 2.0]), 0.5, 1.0, made)
    distances = np.array([[0.0, 4.0, 4.0], [9.0, 9.0, 0.0]])
    prior = PriorState(model=model, class_prior=np.array([0.1, 0.2, 0.7]), distances=distances)
    posteriors = prior.own_log_posteriors(np.log(PROBS))
    assert prior.prototype_agreement(posteriors) == 0.5
    assert replace(prior, model=replace(model, prototypes=None)).prototype_agreement(posteriors) is None
    assert replace(prior, refused=True).prototype_agreement(posteriors) is None
    assert PriorState().prototype_agreement(posteriors) is None


# Labels, test accuracy and training use the priors.


def test_pseudo_labels_are_made_with_the_priors():
    # The bias (-log 4, 0, 0) turns 0.8 0.1 0.1 into 0.2 0.1 0.1 of 0.4, and 0.5 0.3 0.2 into 0.125 0.3 0.2 of 0.625.
    client = client_of(labels={"confidence_filter": False, "entropy_filter": False})
    reply, state = client.handle(Estimate(0, VISUAL), with_priors([-math.log(4), 0, 0]))
    assert reply.counts.tolist() == [1, 1, 0]
    assert np.exp(state.log_probs) == pytest.approx(np.array([[0.5, 0.25, 0.25], [0.2, 0.48, 0.32]]))


def test_the_class_prior_of_the_client_is_in_its_labels():
    # 0.5 0.3 0.2 with a class prior of 0.2 0.6 0.2: 0.10 0.18 0.04 of 0.32.
    _, state = client_of().handle(Estimate(0, VISUAL), with_priors(np.zeros(3), [0.2, 0.6, 0.2]))
    assert np.exp(state.log_probs[1]) == pytest.approx([10 / 32, 18 / 32, 4 / 32])


def test_accuracy_is_measured_with_the_priors_but_that_of_zero_shot_clip_is_not():
    seen = []

    class Spy:
        def score(self, prompts, prior):
            seen.append(prior.class_prior)
            return 0, 0

    client, state = replace(client_of(), test_set=Spy()), with_priors(np.zeros(3))
    for message in (Evaluate(0, VISUAL), Evaluate(0, None), Evaluate(0, None, "priors")):
        client.handle(message, state)
    assert seen[0].tolist() == seen[2].tolist() == [1 / 3] * 3
    assert seen[1] is None


def test_new_images_are_predicted_with_the_priors():
    # The bias (-log 4, 0, 0), and a client with the first two classes only: 0.5 0.3 becomes 0.125 0.3 of 0.425.
    prior = with_priors([-math.log(4), 0, 0], [0.5, 0.5, 1e-9]).prior
    found = prior.log_posteriors(np.log(PROBS[1:]), np.zeros((1, WIDTH)))
    assert np.exp(found[0, :2]) == pytest.approx([0.125 / 0.425, 0.3 / 0.425], abs=1e-6)


@pytest.mark.parametrize(("confidence", "trains"), [(0.95, True), (0.89, False)])
def test_labels_of_which_too_many_are_expected_wrong_are_not_trained_on(confidence, trains):
    rest = (1 - confidence) / 2
    client = client_of([[confidence, rest, rest]] * 4, labels={"global_allocation": False})
    _, state = client.handle(Estimate(0, VISUAL), with_priors(np.zeros(3), images=4))
    _, state = client.handle(Select(0, 0, None, 1), state)
    reply, _ = client.handle(Train(0, VISUAL), state)
    assert (len(client.learner.train_calls) == 1) == trains
    assert (reply.examples == 4) == trains
    assert reply.checks == (() if trains else (0, 0, 0, 0, 0, 1))


def test_expected_shares_of_correct_labels():
    assert is_worth_training(np.log([0.95, 0.86]))  # 1.81 of 2 are 90.5 %
    assert not is_worth_training(np.log([0.95, 0.84]))  # 1.79 of 2 are 89.5 %
    assert not is_worth_training(np.zeros(0))


# The outcome at a client.

# Twenty images of 0.9 0.05 0.05 are most likely all of class 0. With a Dirichlet prior of one image per class its share
# is the root of p = (20 * 0.9 p / (0.9 p + 0.05 (1 - p)) + 1) / 23.
SHARE_OF_FIRST = 0.9082


@pytest.mark.parametrize(("label_shift", "first"), [(True, SHARE_OF_FIRST), (False, 1 / 3)])
def test_a_client_keeps_its_own_class_prior_if_that_is_switched_on(label_shift, first):
    client = client_of(MOSTLY_FIRST, priors={**NO_BIAS, "label_shift": label_shift})
    reply, state = client.handle(Adapt(0, 0), ClientState())
    assert reply == Adapted(None)
    assert state.prior.class_prior[0] == pytest.approx(first, abs=1e-3)


def test_with_noisy_totals_a_client_decides_alone_on_its_class_prior():
    config = config_of(privacy={"noise_multiplier": 1.0})
    learner = FakeLearner()
    learner.log_probs = np.log(np.array(MOSTLY_FIRST))
    client, state = Client(learner, config, secret=bytes(32)), ClientState()
    for step in range(4):
        even = np.full(CLASSES, 100.0)  # predicted equally often: no bias
        reply, state = client.handle(Adapt(0, step, (even,) * (step > 0)), state)
    assert reply == Adapted(None)
    assert state.prior.model.logit_bias == pytest.approx(np.zeros(CLASSES))
    assert state.prior.class_prior[0] == pytest.approx(SHARE_OF_FIRST, abs=1e-3)


def test_a_known_class_prior_is_used_by_every_client():
    known, client = np.array([0.2, 0.3, 0.5]), client_of(priors=NO_FEATURES)
    _, state = client.handle(Adapt(0, 0, class_prior=known), ClientState())
    reply, state = client.handle(Adapt(0, 1, (state.prior.sent,), known), state)
    # Alone, its mean logits on images of other classes explain the shares 1.3 0.4 0.3 of 2, with F = 8.9.
    without_bias = PROBS * np.exp([-0.51511, 0.40526, 0.57429])
    left = (without_bias / without_bias.sum(axis=1, keepdims=True)).sum(axis=0)
    assert reply.sums == pytest.approx(left, rel=1e-4) and left == pytest.approx([0.864, 0.594, 0.542], rel=1e-3)
    # The bias that removes the rest leaves 1 / 0.864 : 1 / 0.594 : 1 / 0.542 of that, times the prior.
    reply, _ = client.handle(Adapt(0, 2, (state.prior.sent,), known), state)
    adjusted = without_bias / left * known
    assert reply.sums == pytest.approx((adjusted / adjusted.sum(axis=1, keepdims=True)).sum(axis=0), rel=1e-4)


def test_the_estimation_runs_on_zero_shot_clip_and_computes_its_log_probabilities_once():
    client, state = client_of(priors=NO_FEATURES), ClientState(own={"text": np.full((1, 3), 9, np.float32)})
    _, state = client.handle(Adapt(0, 0), state)
    client.handle(Adapt(0, 1, (state.prior.sent,)), state)
    assert client.learner.predict_calls == [None]


# Refusals of a client.


def two_members(steps, min_images=0, probs=None):
    """A client with 12 images and another with 60, after some steps; the first one's state and the last totals."""
    learners = FakeLearner(1), SkewedLearner(0)
    if probs is not None:
        learners[0].log_probs = np.log(np.asarray(probs))
    members = [Client(learner, config_of(), min_images=min_images) for learner in learners]
    states, totals = [ClientState()] * 2, ()
    for step in range(steps):
        replies_and_states = [
            one.handle(Adapt(0, step, totals), state) for one, state in zip(members, states, strict=True)
        ]
        states = [state for _, state in replies_and_states]
        totals = (replies_and_states[0][0].sums + replies_and_states[1][0].sums,)
    return members[0], states[0], totals[0]


def test_totals_without_the_own_images_are_refused():
    # Most of its images are of class 0, most of the other's are of class 1: the other's 60 do not contain its 60.
    client, other = (Client(SkewedLearner(number), config_of()) for number in range(2))
    sent, state = client.handle(Adapt(0, 0), ClientState())
    elsewhere, _ = other.handle(Adapt(0, 0), ClientState())
    with pytest.raises(CannotReply, match="step 1: the totals are impossible: the totals do not contain this"):
        client.handle(Adapt(0, 1, (elsewhere.sums,)), state)
    assert client.handle(Adapt(0, 1, (sent.sums + elsewhere.sums,)), state)[0].sums is not None


def test_totals_without_a_class_of_the_own_images_are_refused():
    # All 72 images, none of them of class 0, of which this client has some.
    client, state, total = two_members(2)
    moved = total.reshape(-1, CLASSES).copy()
    moved[:, 1] += moved[:, 0]
    moved[:, 0] = 0
    with pytest.raises(CannotReply, match="do not contain this client's own images"):
        client.handle(Adapt(0, 2, (moved.ravel(),)), state)


def test_totals_of_more_images_than_in_the_first_step_are_refused():
    client, state, total = two_members(2)
    with pytest.raises(CannotReply, match="the classes do not add up to 72 images"):
        client.handle(Adapt(0, 2, (total + 1,)), state)


def test_no_sum_is_over_fewer_images_than_the_minimum():
    for min_images, is_sent in ((2, True), (3, False)):
        client = client_of(min_images=min_images)
        if is_sent:
            assert client.handle(Adapt(0, 0), ClientState())[0].sums is not None
        else:
            with pytest.raises(
                CannotReply, match="has fewer than 3 images, the minimum over which this site sends sums"
            ):
                client.handle(Adapt(0, 0), ClientState())


@pytest.mark.parametrize(("min_images", "withheld"), [(0, False), (5, True)])
def test_class_feature_sums_of_fewer_images_than_the_minimum_are_withheld(min_images, withheld):
    # Step 6 asks for class sums. Eleven images are nearly certainly of class 0 and one of class 1.
    sure = [[1 - 2e-9, 1e-9, 1e-9]] * 11 + [[1e-9, 1 - 2e-9, 1e-9]]
    client, state, total = two_members(5, min_images, sure)
    reply, _ = client.handle(Adapt(0, 5, (total,)), state)
    counts = reply.sums.reshape(2, CLASSES, 1 + WIDTH)[:, :, 0]
    # The sum of all twelve minus that of eleven would be the one image: so class 0 gets all twelve.
    assert counts[:, 0] == pytest.approx([12 if withheld else 11] * 2, abs=0.1)
    assert (counts[:, 1] == 0).all() == withheld


# The server adds up, and starts again without a client that it has lost.


class LosingTransport(LocalTransport):
    """Loses the replies to some steps of the priors: (client, step), each once."""

    def __init__(self, members, lost):
        super().__init__(members)
        self.lost, self.steps = list(lost), []

    def request(self, requests):
        adapt = {client: message.step for client, message in requests.items() if isinstance(message, Adapt)}
        self.steps += list(dict.fromkeys(adapt.values()))
        dropped = [pair for pair in adapt.items() if pair in self.lost]
        self.lost = [pair for pair in self.lost if pair not in dropped]
        return super().request(
            {client: message for client, message in requests.items() if (client, adapt.get(client)) not in dropped}
        )


def test_totals_are_sums_over_the_clients():
    # 12 images each: 36 in all.
    config = config_of(priors=NO_FEATURES)
    federation = LocalTransport(clients(config))
    server = RoundExchange(federation, RoundReport(0), CLASSES, config)
    server.estimation = Estimation(prior_settings(config, CLASSES, WIDTH))
    members, total = PlainAggregator(config).adaptation(server, federation.clients(), Adapt(0, 0))
    assert members == ("client-0", "client-1", "client-2")
    predicted = sum(np.exp(FakeLearner(number).log_probs).sum(axis=0) for number in range(3))
    assert total[:CLASSES] == pytest.approx(predicted)  # the sums of logits come after
    assert total[:CLASSES].sum() == pytest.approx(36)


def test_one_client_weighs_at_most_ten_others():
    # Four clients have 12 images and one has 600, which count as 120: 168 in all.
    config = config_of(priors=NO_FEATURES)
    members = clients(config, count=4) | {"large": Client(FakeLearner(4, images=600), config)}
    server = RoundExchange(LocalTransport(members), RoundReport(0), CLASSES, config)
    server.estimation = Estimation(prior_settings(config, CLASSES, WIDTH))
    _, total = PlainAggregator(config).adaptation(server, tuple(members), Adapt(0, 0))
    assert total[:CLASSES].sum() == pytest.approx(168)
    assert server.report.bounds.summary() == {"large": "Adapt: weight clipped from 600 to 120 images"}


@pytest.mark.parametrize("priors", [{}, NO_FEATURES])
def test_a_run_with_one_large_client_clips_its_weight(priors):
    # Four clients have 60 images and one has 3,000, which count as 600: 840 in all.
    config = config_of(priors=priors)
    members = {f"small-{number}": Client(SkewedLearner(number), config) for number in range(4)}
    federation = LocalTransport(members | {"large": Client(SkewedLearner(4, images=3000), config)})
    state, report = run_round(config, federation, start())
    assert report.bounds.summary()["large"].startswith("Adapt: weight clipped from 3,000 to 600 images")
    assert report.dropped == {} and len(state.members) == 5
    images = state.prior_totals[0][0] if not priors else state.prior_totals[0][:CLASSES].sum()
    assert images == pytest.approx(840)
    assert [one.prior.weight for one in federation.states.values()] == [1, 1, 1, 1, 0.2]
    for one in federation.states.values():  # every client computes the same priors as the server
        assert one.prior.model.logit_bias == pytest.approx(state.prior_model.logit_bias)


def test_a_client_with_a_clipped_weight_still_refuses_false_totals():
    client, other = Client(SkewedLearner(0), config_of()), Client(SkewedLearner(1), config_of())
    sent, state = client.handle(Adapt(0, 0), ClientState())
    elsewhere, _ = other.handle(Adapt(0, 0), ClientState())
    total = elsewhere.sums + 0.5 * sent.sums
    for weight in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(CannotReply, match=f"the client's weight in the totals of the priors is {weight:g}"):
            client.handle(Adapt(0, 1, (total,), weight=weight), state)
    with pytest.raises(CannotReply, match="do not contain this client's own images"):
        client.handle(Adapt(0, 1, (elsewhere.sums,), weight=0.5), state)
    reply, state = client.handle(Adapt(0, 1, (total,), weight=0.5), state)
    with pytest.raises(
        CannotReply, match=r"the client's weight in the totals of the priors changed from 0\.5 to 0\.25"
    ):
        client.handle(Adapt(0, 2, (reply.sums,), weight=0.25), state)


def test_under_secure_aggregation_no_weight_is_clipped():
    client = client_of(privacy={"secure_aggregation": True})
    with pytest.raises(CannotReply, match=r"the client's weight in the totals of the priors is 0\.5"):
        client.handle(Adapt(0, 0, weight=0.5), ClientState())


def test_the_configured_class_prior_is_sent_to_the_clients():
    config, known = config_of(priors=NO_FEATURES), np.array([0.2, 0.3, 0.5])
    federation = LocalTransport(clients(config, SkewedLearner))
    state, _ = run_round(config, federation, replace(start(), class_prior=known))
    assert state.prior_model.class_prior.tolist() == known.tolist()
    assert [one.prior.model.class_prior.tolist() for one in federation.states.values()] == [known.tolist()] * 3


def test_after_a_loss_the_estimation_starts_again_without_the_client():
    config = config_of(priors=NO_FEATURES)
    federation = LosingTransport(clients(config, SkewedLearner), [("client-2", 3)])
    state, _ = run_round(config, federation, start())
    assert federation.steps == [*range(4), *range(11)]
    two = LocalTransport({name: one for name, one in clients(config, SkewedLearner).items() if name != "client-2"})
    reference, _ = run_round(config, two, start())
    assert [total.tolist() for total in state.prior_totals] == [total.tolist() for total in reference.prior_totals]
    # The lost client gets the totals of all steps at the end, and computes the same.
    found = federation.states["client-2"].prior
    assert found.model.logit_bias == pytest.approx(state.prior_model.logit_bias)
    assert state.members == ("client-0", "client-1", "client-2")


def test_after_three_losses_the_round_ends():
    config = config_of(priors=NO_FEATURES)
    federation = LosingTransport(clients(config, count=5), [(f"client-{number}", number) for number in (1, 2, 3)])
    with pytest.raises(NoClientReplied, match="clients were lost in 3 estimations"):
        run_round(config, federation, start())


def test_later_sums_must_agree_with_the_first_reply():
    # Twelve images in the first step, and twenty-four in the second.
    class GrowingTransport(LocalTransport):
        def request(self, requests):
            replies = super().request(requests)
            message = requests.get("client-1")
            if isinstance(message, Adapt) and message.step == 1:
                replies["client-1"] = Adapted(2 * replies["client-1"].sums)
            return replies

    config = config_of(priors=NO_FEATURES)
    _, report = run_round(config, GrowingTransport(clients(config)), start())
    assert report.dropped == {"client-1": "Adapt: the classes do not add up to 12 images"}


# Priors that contradict most confident images.


def test_a_client_refuses_priors_that_change_its_most_confident_labels():
    # Twenty images; of the ten most confident ones the priors change 7 (30 % stay) or 8 (20 %).
    log_probs = np.log(np.array([[0.98, 0.01, 0.01]] * 10 + [[0.4, 0.3, 0.3]] * 10))
    for changed, contradicts in ((7, False), (8, True)):
        posteriors = log_probs.copy()
        posteriors[:changed] = posteriors[:changed, [1, 0, 2]]
        assert _contradicts_zero_shot(log_probs, posteriors) == contradicts
    assert not _contradicts_zero_shot(log_probs[:9], -log_probs[:9])  # too few to compare


def test_client_that_refuses_priors_uses_zero_shot_and_reports_it():
    config = config_of(priors=NO_FEATURES)
    member = client_of([[0.01, 0.98, 0.01]] * 30, priors=NO_FEATURES)
    sent, state = member.handle(Adapt(0, 0), ClientState())
    settings, step = prior_settings(config, CLASSES, WIDTH), 0
    estimation = Estimation(settings)
    while estimation.outcome is None:  # a thousand images of others that are always assigned to class 1
        total = np.zeros(estimation.size(step))
        if estimation.steps[step][0].kind == "predicted":
            total.reshape(-1, CLASSES)[:, 1] = 1000
        total += sent.sums
        estimation.add(total)
        step += 1
        sent, state = member.handle(Adapt(0, step, (total,)), state)
    assert sent == Adapted(None, refused=True)
    assert estimation.outcome.logit_bias[1] < -2  # class 1 is hardly ever predicted with it
    assert state.prior.refused and state.prior.class_prior == pytest.approx(uniform(CLASSES))
    assert state.prior.own_log_posteriors(member.learner.log_probs) == pytest.approx(member.learner.log_probs)
    restored = state_from(state_tensors(state)).prior
    assert restored.refused and restored.weight == 1


def test_a_refusal_is_in_the_report_of_the_round():
    class RefusingTransport(LocalTransport):
        def request(self, requests):
            replies = super().request(requests)
            last = isinstance(replies.get("client-1"), Adapted) and replies["client-1"].sums is None
            return replies | ({"client-1": Adapted(None, refused=True)} if last else {})

    config = config_of(priors=NO_FEATURES)
    _, report = run_round(config, RefusingTransport(clients(config)), start())
    words = "Adapt: rejected the priors, which contradict its most confident images"
    assert report.bounds.summary() == {"client-1": words}


def test_a_client_with_swapped_class_sums_is_named_and_left_out():
    class SwappingTransport(LocalTransport):
        def request(self, requests):
            replies = super().request(requests)
            message = requests.get("client-1")
            if isinstance(message, Adapt) and message.step == 5:
                sums = replies["client-1"].sums.reshape(2, CLASSES, 1 + WIDTH)
                replies["client-1"] = Adapted(np.roll(sums, 1, axis=1).ravel())
            return replies

    config = config_of()
    learners = [SkewedLearner(n, images=200) for n in range(5)]
    for learner in learners:  # a confident model, and features that separate the predicted classes
        learner.log_probs = log_softmax(10 * learner.log_probs)
        noise = 0.1 * learner.features()
        learner._features = unit_rows(np.eye(WIDTH)[learner.log_probs.argmax(axis=1)] + noise)
    members = {f"client-{n}": Client(learner, config) for n, learner in enumerate(learners)}
    state, report = run_round(config, SwappingTransport(members), start())
    words = "Adapt: its class means are those of other classes at the other clients"
    assert report.dropped == {"client-1": words}
    honest = {name: member for name, member in members.items() if name != "client-1"}
    reference, _ = run_round(config, LocalTransport(honest), start())
    assert state.prior_model.logit_bias == pytest.approx(reference.prior_model.logit_bias)
    assert state.members == tuple(honest)


def test_without_priors_log_probabilities_do_not_change():
    assert PriorState().own_log_posteriors(np.log(PROBS)) == pytest.approx(np.log(PROBS))
