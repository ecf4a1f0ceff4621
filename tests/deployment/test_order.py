"""Order of requests: the requests of an honest server are accepted, and no others."""

from dataclasses import replace

import numpy as np
import pytest

from fakes import NO_PRIORS, START, NoisyLearner, clients, run, start
from fedcopl.config import RunConfig
from fedcopl.deployment.site.order import _MAX_REPEATS, _max_aggregations, out_of_order
from fedcopl.deployment.site.site_state import SiteProgress
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.prior_estimation import prior_steps
from fedcopl.federation.server import MAX_ESTIMATIONS, evaluate_zero_shot
from fedcopl.messages import Adapt, Estimate, Evaluate, Select, SetupKeys, Train, digest
from fedcopl.simulation.simulate import LocalTransport

SHARED, OTHER = {"visual": START["visual"]}, {"visual": START["visual"] + 1}
TOTALS = np.array([5, 5, 5])
RESTARTS = 3


def config_of(**settings):
    return RunConfig.from_mapping({"rounds": 3, "labels": {"refresh_every": 2}, **settings}, "test")


PLAIN = config_of(priors=NO_PRIORS)
WITH_PRIORS = config_of()
SECURE = config_of(priors=NO_PRIORS, privacy={"secure_aggregation": True})
KINDS = {
    "plain": PLAIN,
    "priors": WITH_PRIORS,
    "secure": SECURE,
    "secure with priors": config_of(privacy={"secure_aggregation": True}),
    "noise": config_of(privacy={"noise_multiplier": 1.0}),
    "some train": config_of(priors=NO_PRIORS, sharing={"participation": 0.4}, evaluation={"every": 2}),
}


def objections(requests, config, at=None, restarts=RESTARTS):
    """Return the reason of a site for refusing each of these requests, in this order; None: it accepts."""
    at, reasons = at or SiteProgress(), []
    for message in requests:
        at = at.for_request(at.attempt, message.round)
        reasons.append(out_of_order(message, at, config, restarts))
        if reasons[-1] is None:
            at = at.with_step(digest(message), message).after(digest(message), message)
    return reasons


class RecordingTransport(LocalTransport):
    """Records all requests to one client."""

    def request(self, requests):
        self.requests = [*getattr(self, "requests", []), *([requests["client-1"]] if "client-1" in requests else [])]
        return super().request(requests)


def requests_of_run(config):
    members = clients(config, NoisyLearner)
    federation = RecordingTransport(
        {name: replace(one, secret=name.encode() * 4, repeatable=True) for name, one in members.items()}
    )
    evaluate_zero_shot(federation)
    run(config, federation, start(), lambda *_: None)
    return federation.requests


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_every_request_of_an_honest_run_is_accepted(config):
    requests = requests_of_run(config)
    assert {type(message) for message in requests} >= {Estimate, Select, Train, Evaluate}
    assert objections(requests, config) == [None] * len(requests)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_repeated_round_may_differ_in_the_replies_of_other_sites(config):
    first = [message for message in requests_of_run(config) if message.round == 0]
    at, reasons = SiteProgress(), []
    for attempt in range(1, 2 + RESTARTS):
        for message in first:
            changed = replace(message, totals=TOTALS + attempt) if isinstance(message, Select) else message
            at = at.for_request(attempt, 0)
            reasons.append(out_of_order(changed, at, config, RESTARTS))
            at = at.with_step(f"{digest(message)}{attempt}", changed).after(digest(changed), changed)
    assert set(reasons) == {None}


STEPS, SUMS = prior_steps(WITH_PRIORS), np.ones(5)
ROUND = [Estimate(0, SHARED), Select(0, 0, TOTALS, 2), Train(0, SHARED)]
UNEXPECTED = {
    "a round past the last": (PLAIN, [], Train(3, SHARED), "unexpected request: Train in round 4, but the run has 3"),
    "before the first": (PLAIN, [], Train(-1, SHARED), "unexpected request: Train in round 0, but the run has 3"),
    "a second Train": (
        PLAIN,
        ROUND,
        Train(0, SHARED, ({},)),
        "unexpected request: Train in round 1 again, with other content",
    ),
    "another model": (
        PLAIN,
        ROUND[:2],
        Train(0, OTHER),
        "unexpected request: Train in round 1 with other prompts than at the start of the round",
    ),
    "a second Estimate": (PLAIN, ROUND[:1], Estimate(0, OTHER), "unexpected request: Estimate in round 1 again"),
    "an Estimate after training": (
        PLAIN,
        ROUND,
        Estimate(0, OTHER),
        "unexpected request: Estimate in round 1 after Train",
    ),
    "no refresh": (
        PLAIN,
        [],
        Estimate(1, SHARED),
        "unexpected request: Estimate in round 2, in which labels are not refreshed",
    ),
    "a second Select": (PLAIN, ROUND[:2], Select(0, 0, TOTALS + 1, 2), "unexpected request: Select in round 1 again"),
    "a wrong refresh": (
        PLAIN,
        ROUND[:1],
        Select(0, 7, TOTALS, 2),
        "unexpected request: Select in round 1 for refresh 8",
    ),
    "no priors": (PLAIN, [], Adapt(0, 0), "unexpected request: Adapt in round 1, but the run has no"),
    "priors in a later round": (WITH_PRIORS, [], Adapt(2, 0), "unexpected request: Adapt in round 3 for prior stat"),
    "too many steps of the priors": (
        WITH_PRIORS,
        [],
        Adapt(0, STEPS + 1),
        f"unexpected request: Adapt in round 1 at step {STEPS + 2}, but the prior estimation has at most {STEPS + 1}",
    ),
    "priors after their end": (
        WITH_PRIORS,
        [Adapt(0, STEPS)],
        Adapt(0, 1, (SUMS,)),
        "unexpected request: Adapt in round 1 again",
    ),
    "the same step of the priors": (
        WITH_PRIORS,
        [Adapt(0, 0), Adapt(0, 1, (SUMS,))],
        Adapt(0, 1, (SUMS + 1,)),
        "unexpected request: Adapt in round 1 again",
    ),
    "priors before zero-shot": (
        WITH_PRIORS,
        [Adapt(0, 0)],
        Evaluate(0, None),
        "unexpected request: Evaluate in round 1 after",
    ),
    "zero-shot later": (PLAIN, [], Evaluate(1, None), "unexpected request: Evaluate in round 2 without prompts"),
    "a second Evaluate": (
        PLAIN,
        [Evaluate(0, SHARED)],
        Evaluate(0, OTHER),
        "unexpected request: Evaluate in round 1 again",
    ),
    "not evaluated": (
        config_of(evaluation={"every": 3}),
        [],
        Evaluate(0, SHARED),
        "unexpected request: Evaluate in round 1, whi",
    ),
    "a sum for others": (
        SECURE,
        [Estimate(0, SHARED, ("a", "b", "c"))],
        Estimate(0, SHARED, ("a", "b", "d")),
        "unexpected request: Estimate in round 1 again",
    ),
    "two sums of prompts": (
        SECURE,
        [*ROUND[:2], Train(0, SHARED, peers=("a", "b", "c"))],
        Train(0, SHARED, peers=("a", "b")),
        "unexpected request: Train in round 1 again",
    ),
}


@pytest.mark.parametrize(("config", "before", "message", "words"), UNEXPECTED.values(), ids=UNEXPECTED)
def test_requests_outside_the_protocol_are_refused(config, before, message, words):
    *fine, reasons = objections([*before, message], config)
    assert fine == [None] * len(before)
    assert reasons is not None and reasons.startswith(words)


def test_a_failed_aggregation_is_repeated_with_fewer_sites():
    requests = [Estimate(0, SHARED, tuple("abcdefghi"[:many])) for many in range(9, 1, -1)]
    reasons = objections(requests, SECURE, restarts=0)
    assert reasons[: 1 + _MAX_REPEATS] == [None] * (1 + _MAX_REPEATS)
    assert all(reason and "th time" in reason for reason in reasons[1 + _MAX_REPEATS :])


def test_too_many_aggregations_per_round_are_refused():
    """With 60 sums over invented sites a server could recover a site's counts. This round has two sums."""
    reasons = objections([SetupKeys(0, bytes([number])) for number in range(60)], SECURE, restarts=0)
    assert _max_aggregations(SECURE, 0) == 2 and _max_aggregations(SECURE, 1) == 1
    assert [reason is None for reason in reasons] == [True] * (2 + _MAX_REPEATS) + [False] * (58 - _MAX_REPEATS)


def test_restarts_do_not_allow_unlimited_requests():
    at, accepted = SiteProgress(), 0
    for attempt in range(50):
        message = Select(0, 0, TOTALS + attempt, 2)
        at = at.for_request(attempt, 0)
        if out_of_order(message, at, PLAIN, RESTARTS) is None:
            at = at.with_step(digest(message), message).after(digest(message), message)
            accepted += 1
    assert accepted == 1 + RESTARTS


@pytest.mark.parametrize("settings", [{}, {"priors": {"prototypes": False}}, {"privacy": {"noise_multiplier": 1.0}}])
def test_a_site_accepts_every_step_of_an_estimation(settings):
    """The last request of an estimation, `keep`, is one step more."""
    adapts = [message for message in requests_of_run(config_of(**settings)) if isinstance(message, Adapt)]
    assert [message.step for message in adapts] == list(range(prior_steps(config_of(**settings)) + 1))


def test_the_steps_of_the_priors_by_hand():
    # Moments; 4 for the logit bias; class sums; views; evidence; 4 times class sums and logit bias; 2 scales; evidence.
    assert prior_steps(WITH_PRIORS) == 1 + 4 + 1 + 2 + 4 * 2 + 2 + 1 == 19
    assert prior_steps(config_of(priors={"prototypes": False})) == 1 + 4 + 2 + 2 + 1
    assert prior_steps(config_of(privacy={"noise_multiplier": 1.0})) == 3
    assert prior_steps(config_of(priors={"logit_bias": False})) == 0


def test_a_prior_estimation_restarts_a_limited_number_of_times():
    requests = [Adapt(0, step, (SUMS * start,) * (step > 0)) for start in range(6) for step in range(2)]
    reasons = objections(requests, WITH_PRIORS, restarts=0)
    assert reasons[: 2 * MAX_ESTIMATIONS] == [None] * 2 * MAX_ESTIMATIONS
    assert all(reason and "th time" in reason for reason in reasons[2 * MAX_ESTIMATIONS :: 2])


def test_too_few_images_are_not_trained_on():
    few = Client(NoisyLearner(0), PLAIN, min_images=11)  # of its 10 images
    state = ClientState()
    for message in ROUND:
        reply, state = few.handle(message, state)
    assert reply.examples == 0 and reply.shared is SHARED
