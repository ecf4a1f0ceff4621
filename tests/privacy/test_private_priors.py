"""The sums of the priors over secure aggregation and with noise."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes import CLASSES, WIDTH, FakeTestSet, SkewedLearner, run, start
from fedcopl.config import RunConfig
from fedcopl.errors import CannotReply, NoClientReplied
from fedcopl.federation.aggregation import PlainAggregator, SecureAggregator
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState, state_from, state_tensors
from fedcopl.federation.prior_estimation import prior_settings, prior_steps
from fedcopl.federation.server import run_round
from fedcopl.federation.transport import RoundExchange, RoundReport
from fedcopl.messages import Adapt, Adapted
from fedcopl.priors.estimation import Estimation
from fedcopl.privacy.accountant import planned_releases
from fedcopl.privacy.masked_layout import decode_sums, encode_sums
from fedcopl.rng import stream
from fedcopl.simulation.simulate import LocalTransport

SECURE = {"secure_aggregation": True}
NO_PROTOTYPES = {"prototypes": False}
FIRST = Adapt(0, 0)


def config_of(privacy, rounds=2, **sections):
    return RunConfig.from_mapping({"rounds": rounds, "privacy": privacy, **sections}, "test")


class RecordingTransport(LocalTransport):
    """Records all Adapt requests and replies; drops those of the clients in `lost`, or replaces them by `instead`."""

    def __init__(self, clients):
        super().__init__(clients)
        self.exchanged: list[tuple[Adapt, Adapted]] = []
        self.lost, self.instead = set(), {}

    def request(self, requests):
        replies = super().request(requests)
        adapt_requests = {client: message for client, message in requests.items() if isinstance(message, Adapt)}
        replies |= {client: self.instead[client] for client in adapt_requests if client in self.instead}
        for client in self.lost & adapt_requests.keys():
            del replies[client]
        self.exchanged += [
            (message, replies[client]) for client, message in adapt_requests.items() if client in replies
        ]
        return replies


def clients_of(config, count=5, seed=0):
    secrets = [stream(seed, "secret", number).bytes(32) for number in range(count)]
    return {
        f"client-{i}": Client(SkewedLearner(i), config, FakeTestSet(6, 12), secrets[i], repeatable=True)
        for i in range(count)
    }


def run_all(config, federation, state=None):
    reports = []
    last = run(config, federation, state or start(), lambda state, report: reports.append(report))
    return last, reports


def summed(config, federation):
    """Return the sum of one step of the priors at the server, and its report."""
    server = RoundExchange(federation, RoundReport(0), CLASSES, config)
    server.estimation = Estimation(prior_settings(config, CLASSES, WIDTH))
    aggregator = SecureAggregator(config) if config.privacy.secure_aggregation else PlainAggregator(config)
    return aggregator.adaptation(server, federation.clients(), FIRST)[1], server.report


# Secure aggregation


def test_secure_aggregation_estimates_the_same_priors():
    models, priors = [], []
    for privacy in ({}, SECURE):
        config = config_of(privacy, rounds=1)
        federation = RecordingTransport(clients_of(config, count=3))
        state, _ = run_all(config, federation)
        models.append(state.prior_model)
        priors.append([one.prior.class_prior for one in federation.states.values()])
    # A sum is wrong by at most three roundings to 2^-32; so are the priors.
    assert models[1].logit_bias == pytest.approx(models[0].logit_bias, abs=1e-6)
    assert models[1].feature_scale == models[0].feature_scale > 0
    assert models[1].prototypes.totals == pytest.approx(models[0].prototypes.totals, abs=1e-4)
    assert np.array(priors[1]) == pytest.approx(np.array(priors[0]), abs=1e-4)


def test_nothing_but_masked_numbers_is_sent():
    config = config_of(SECURE, rounds=1)
    federation = RecordingTransport(clients_of(config))
    run_all(config, federation)
    replied = [(message, reply) for message, reply in federation.exchanged if message.step < prior_steps(config)]
    assert {message.step for message, _ in replied} == set(range(19))
    assert all(reply.sums is None and reply.masked.dtype == np.uint64 for _, reply in replied)
    assert all(len(message.peers) == 5 for message, _ in replied)
    # A sum of sixty images in steps of 2^-32 is below 2^39; under its masks it is anywhere up to 2^64.
    assert np.median(np.concatenate([reply.masked for _, reply in replied])) > 2**60
    assert [reply for message, reply in federation.exchanged if message.step == 19] == [Adapted(None)] * 5


def test_a_client_sends_no_unmasked_sums():
    client = clients_of(config_of(SECURE))["client-0"]
    with pytest.raises(CannotReply, match=r"without masks, but privacy\.secure_aggregation is on"):
        client.handle(FIRST, ClientState())


def test_the_first_sum_continues_without_lost_clients():
    config = config_of(SECURE, priors=NO_PROTOTYPES)
    federation = RecordingTransport(clients_of(config))
    federation.lost = {"client-1", "client-3"}
    total, report = summed(config, federation)
    # By equal shares and no bias, the posteriors are the model's probabilities.
    predicted = sum(np.exp(SkewedLearner(i).log_probs).sum(axis=0) for i in (0, 2, 4))
    assert total[:CLASSES] == pytest.approx(predicted, abs=2**-30)  # the sums of logits come after
    assert report.releases == []  # there is no noise to account for


def test_too_few_clients_for_secure_aggregation_end_the_round():
    config = config_of(SECURE)
    federation = RecordingTransport(clients_of(config))
    federation.lost = {f"client-{i}" for i in range(3)}
    with pytest.raises(
        NoClientReplied, match="round 1, step Adapt: 2 clients replied, but a secure aggregation needs 3"
    ):
        summed(config, federation)


def test_a_masked_reply_of_the_wrong_size_is_dropped():
    config = config_of(SECURE, priors=NO_PROTOTYPES)
    federation = RecordingTransport(clients_of(config))
    federation.instead = {"client-2": Adapted(None, np.zeros(1, np.uint64))}
    total, report = summed(config, federation)
    assert report.dropped == {"client-2": "Adapt: its masked reply is not 6 integers"}
    assert total[:CLASSES].sum() == pytest.approx(4 * 60)


def test_decoded_sums_are_exact_up_to_rounding():
    # Halves of 2^-32 are rounded once for each of two clients.
    parts = [np.array([1.5, -2.25, math.pi]), np.array([0.5, 1e-3, 7e5])]
    words = [encode_sums(part, 2) for part in parts]
    total = np.sum(words, axis=0, dtype=np.uint64)
    assert decode_sums(total) == pytest.approx(parts[0] + parts[1], abs=2**-32)
    with pytest.raises(CannotReply, match="too large to be summed over 2 clients"):
        encode_sums(np.array([2.0**30]), 2)


def test_under_secure_aggregation_later_sums_must_be_of_as_many_images_as_the_first():
    class GrowingTransport(LocalTransport):
        """One client doubles its sums from the second step on, before they are masked."""

        def request(self, requests):
            for name, message in requests.items():
                if name == "client-1" and isinstance(message, Adapt) and message.step == 1:
                    learner = SkewedLearner(1)
                    learner.log_probs = np.concatenate([learner.log_probs] * 2)
                    scores = replace(self.states[name].prior.scores, log_probs=learner.log_probs)
                    self.states[name] = replace(
                        self.states[name], prior=replace(self.states[name].prior, scores=scores)
                    )
            return super().request(requests)

    config = config_of(SECURE, rounds=1, priors=NO_PROTOTYPES)
    with pytest.raises(NoClientReplied, match="round 1, step Adapt: the classes do not add up to 180 images"):
        run_all(config, GrowingTransport(clients_of(config, count=3)))


# Noise


def noisy(noise=1.0, **more):
    return config_of({"noise_multiplier": noise, **more})


def alone(config, secret=bytes(range(32))):
    return Client(SkewedLearner(0), config, secret=secret)


@pytest.mark.parametrize("secure", [False, True])
def test_every_release_of_a_run_is_planned_and_accounted(secure):
    # Three rounds, a refresh each two: balance once in three exchanges, counts twice, prompts three times.
    config = config_of({"noise_multiplier": 1.0, "secure_aggregation": secure}, rounds=3, labels={"refresh_every": 2})
    _, reports = run_all(config, RecordingTransport(clients_of(config)))
    kinds = [[release.of for release in report.releases] for report in reports]
    assert kinds == [["sums"] * 3 + ["counts", "prompts"], ["prompts"], ["counts", "prompts"]]
    assert sum(map(len, kinds)) == planned_releases(config) == 8
    assert {release.noise for report in reports for release in report.releases} == {1.0}


def test_a_first_sum_without_a_lost_client_is_masked_anew_with_all_of_its_noise():
    """The masks of a sum that lacks a member do not come off: the others make a new one, with their noise in it."""
    config = config_of({**SECURE, "noise_multiplier": 1.5})
    federation = RecordingTransport(clients_of(config))
    federation.lost = {"client-2"}
    [release] = summed(config, federation)[1].releases
    assert release.noise == pytest.approx(1.5)
    assert release.clients == ("client-0", "client-1", "client-3", "client-4")


def test_a_client_that_is_lost_between_two_secure_sums_ends_the_estimation_until_it_is_back():
    """Over the others the next sums would reveal its numbers; the same members get the same totals again."""

    class LostOnce(RecordingTransport):
        def request(self, requests):
            steps = {message.step for message in requests.values() if isinstance(message, Adapt)}
            self.lost = {"client-2"} if 3 in steps and self.away else set()
            return super().request(requests)

    config = config_of(SECURE, priors=NO_PROTOTYPES)
    federation = LostOnce(clients_of(config))
    federation.away = True
    with pytest.raises(NoClientReplied, match=r"client-2 did not reply, and all secure .* the same members; continue"):
        run_round(config, federation, start())
    federation.away = False
    state, report = run_round(config, federation, start())
    reference, _ = run_round(config, RecordingTransport(clients_of(config)), start())
    assert [total.tolist() for total in state.prior_totals] == [total.tolist() for total in reference.prior_totals]
    assert report.dropped == {}


def test_with_noise_only_the_logit_bias_is_estimated_in_three_steps():
    config = noisy()
    federation = RecordingTransport(clients_of(config))
    state, _ = run_round(config, federation, start())
    assert [(message.step, reply.sums is None) for message, reply in federation.exchanged[::5]] == [
        (0, False),
        (1, False),
        (2, False),
        (3, True),
    ]
    assert {reply.sums.shape for _, reply in federation.exchanged if reply.sums is not None} == {(CLASSES,)}
    assert state.prior_model.prototypes is None


def test_sums_are_clipped_and_noised_around_the_truth():
    exact = alone(config_of({}, priors=NO_PROTOTYPES)).handle(FIRST, ClientState())[0].sums[:CLASSES]
    assert exact.sum() == pytest.approx(60)
    clip = float(np.linalg.norm(exact)) / 2
    config = noisy(count_clip=clip)
    replied = np.array([alone(config, bytes([n]) * 32).handle(FIRST, ClientState())[0].sums for n in range(200)])
    assert replied.mean(axis=0) == pytest.approx(exact / 2, abs=4 * clip / math.sqrt(200))
    assert replied.std(axis=0) == pytest.approx(np.full(CLASSES, clip), rel=0.25)


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_in_the_sum_is_as_wide_as_stated(secure):
    # Sums of length 0.5 altogether: all that is seen is noise, of 2 * 0.5 in a secure sum, and of that from each of
    # five clients otherwise.
    config = config_of({"secure_aggregation": secure, "noise_multiplier": 2.0, "count_clip": 0.5})
    totals = [summed(config, RecordingTransport(clients_of(config, seed=seed)))[0] for seed in range(25)]
    together = 1 if secure else math.sqrt(5)
    assert np.std(totals) == pytest.approx(2.0 * 0.5 * together, rel=0.25)


def test_an_equal_request_gets_the_same_reply_and_another_of_that_step_none():
    client = alone(noisy())
    first, state = client.handle(FIRST, ClientState())
    state = state_from(state_tensors(state))
    client.learner.log_probs = client.learner.log_probs[:, ::-1]  # a model that has changed since
    again, state = client.handle(FIRST, state)
    assert again.sums.tobytes() == first.sums.tobytes()
    other = replace(FIRST, class_prior=np.array([0.5, 0.3, 0.2]))
    with pytest.raises(CannotReply, match="Adapt 0 request in round 1 differs from the earlier one"):
        client.handle(other, state)
    assert client.handle(Adapt(0, 1, (first.sums,)), state)[0].sums is not None


def test_each_request_has_its_own_noise():
    client, config = alone(noisy()), noisy()
    one, state = client.handle(FIRST, ClientState())
    even = np.full(CLASSES, 20.0)  # with these totals the next step has the same model
    two, _ = client.handle(Adapt(0, 1, (even,)), state)
    exact = alone(config_of({}, priors=NO_PROTOTYPES)).handle(FIRST, ClientState())[0].sums[:CLASSES]
    clipped = exact * min(1, config.privacy.count_clip / np.linalg.norm(exact))
    assert one.sums - clipped != pytest.approx(two.sums - clipped)


def test_a_request_of_a_round_beyond_the_run_is_refused():
    with pytest.raises(CannotReply, match="Adapt 0 request in round 3, but the run has 2"):
        alone(noisy()).handle(replace(FIRST, round=2), ClientState())


def test_noisy_priors_are_stored():
    client = alone(noisy())
    reply, state = client.handle(FIRST, ClientState())
    for step in range(1, 4):
        reply, state = client.handle(Adapt(0, step, (reply.sums,)), state)
    assert reply == Adapted(None)
    assert state.prior.model is not None


def test_a_resumed_run_has_the_same_bits():
    config = config_of({**SECURE, "noise_multiplier": 0.5}, rounds=3, labels={"refresh_every": 2})
    whole, _ = run_all(config, LocalTransport(clients_of(config)))
    first, state = LocalTransport(clients_of(config)), start()
    for _ in range(2):
        state, _ = run_round(config, first, state)
    kept = {name: state_from(state_tensors(one)) for name, one in first.states.items()}
    resumed, _ = run_all(config, LocalTransport(clients_of(config), kept), state)
    assert (resumed.shared["visual"] == whole.shared["visual"]).all()
    assert (resumed.prior_model.logit_bias == whole.prior_model.logit_bias).all()
