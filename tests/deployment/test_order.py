"""Each question once, in the protocol's order: what honest servers ask is answered, and nothing beside it."""

from dataclasses import replace

import numpy as np
import pytest

from fakes import CLASSES, NO_PRIORS, START, WIDTH, NoisyLearner, clients, start
from fedcopl.algorithm.priors import MOST_EXCHANGES, Explained, learn
from fedcopl.algorithm.prototypes import ClassSums, FeatureSums
from fedcopl.config import RunConfig
from fedcopl.deployment.site.order import SPOILT, out_of_order, sums_of_round
from fedcopl.deployment.site.site_state import SiteStep
from fedcopl.federation.adaptation import most_steps, without_small
from fedcopl.federation.client import Client, ClientState
from fedcopl.federation.server import look_first, run
from fedcopl.messages import Adapt, Estimate, Evaluate, Introduce, Select, Train, digest
from fedcopl.simulation.local_clients import LocalClients

SHARED, OTHER = {"visual": START["visual"]}, {"visual": START["visual"] + 1}
TOTALS = np.array([5, 5, 5])
RESTARTS = 3


def config_of(**settings):
    return RunConfig.from_mapping({"rounds": 3, "labels": {"refresh_every": 2}, **settings}, "test")


PLAIN = config_of(priors=NO_PRIORS)
WITH_PRIORS = config_of()
SECURE = config_of(priors=NO_PRIORS, privacy={"secure_sums": True})
KINDS = {
    "plain": PLAIN,
    "priors": WITH_PRIORS,
    "secure": SECURE,
    "secure with priors": config_of(privacy={"secure_sums": True}),
    "noise": config_of(privacy={"noise": 1.0}),
    "some train": config_of(priors=NO_PRIORS, sharing={"participation": 0.4}, evaluation={"every": 2}),
}


def objections(asks, config, at=None, restarts=RESTARTS):
    """What a site says to each of these, one after the other; refused ones leave it where it is."""
    at, said = at or SiteStep(), []
    for ask in asks:
        at = at.at(at.attempt, ask.round)
        said.append(out_of_order(ask, at, config, restarts))
        if said[-1] is None:
            at = at.made_step(digest(ask), ask).answered(digest(ask), ask)
    return said


class Recorded(LocalClients):
    """Remembers all questions to one client."""

    def ask(self, questions):
        self.asks = [*getattr(self, "asks", []), *([questions["client-1"]] if "client-1" in questions else [])]
        return super().ask(questions)


def played(config):
    held = clients(config, NoisyLearner)
    federation = Recorded({name: replace(one, secret=name.encode() * 4, repeatable=True) for name, one in held.items()})
    look_first(federation)
    run(config, federation, start(), lambda *_: None)
    return federation.asks


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_every_question_of_an_honest_run_is_answered(config):
    asks = played(config)
    assert {type(ask) for ask in asks} >= {Estimate, Select, Train, Evaluate}
    assert objections(asks, config) == [None] * len(asks)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_round_that_is_played_again_after_a_stop_may_differ_in_what_others_answered(config):
    first = [ask for ask in played(config) if ask.round == 0]
    at, said = SiteStep(), []
    for attempt in range(1, 2 + RESTARTS):
        for ask in first:
            changed = replace(ask, totals=TOTALS + attempt) if isinstance(ask, Select) else ask
            at = at.at(attempt, 0)
            said.append(out_of_order(changed, at, config, RESTARTS))
            at = at.made_step(f"{digest(ask)}{attempt}", changed).answered(digest(changed), changed)
    assert set(said) == {None}


ROUND = [Estimate(0, SHARED), Select(0, 0, TOTALS, 2), Train(0, SHARED)]
TOO_MUCH = {
    "a round past the last": (PLAIN, [], Train(3, SHARED), "asked to Train in round 4, but the run has 3"),
    "before the first": (PLAIN, [], Train(-1, SHARED), "asked to Train in round 0, but the run has 3"),
    "two Trains": (PLAIN, ROUND, Train(0, SHARED, ({},)), "asked to Train in round 1 once more, with another question"),
    "another model": (
        PLAIN,
        ROUND[:2],
        Train(0, OTHER),
        "asked to Train in round 1 with other prompts than the round began with",
    ),
    "two Estimates": (PLAIN, ROUND[:1], Estimate(0, OTHER), "asked to Estimate in round 1 once more"),
    "an Estimate after training": (PLAIN, ROUND, Estimate(0, OTHER), "asked to Estimate in round 1 after Train"),
    "no refresh": (PLAIN, [], Estimate(1, SHARED), "asked to Estimate in round 2, which has no refresh"),
    "two Selects": (PLAIN, ROUND[:2], Select(0, 0, TOTALS + 1, 2), "asked to Select in round 1 once more"),
    "a wrong refresh": (PLAIN, ROUND[:1], Select(0, 7, TOTALS, 2), "asked to Select in round 1, as refresh 8"),
    "no priors": (PLAIN, [], Adapt(0, 0, "predicted", WIDTH), "asked to Adapt in round 1, but the run has no"),
    "priors once more": (WITH_PRIORS, [], Adapt(2, 0, "predicted", WIDTH), "asked to Adapt in round 3 for sums, which"),
    "priors without end": (
        WITH_PRIORS,
        [],
        Adapt(0, MOST_EXCHANGES + 1, "classes", WIDTH),
        f"asked to Adapt in round 1 at step {MOST_EXCHANGES + 2}, but the priors take {MOST_EXCHANGES + 1} at most",
    ),
    "priors after their end": (
        WITH_PRIORS,
        [Adapt(0, 0, "keep", WIDTH)],
        Adapt(0, 1, "classes", WIDTH),
        "asked to Adapt in round 1 once more",
    ),
    "the same step of the priors": (
        WITH_PRIORS,
        [Adapt(0, 0, "predicted", WIDTH)],
        Adapt(0, 0, "classes", WIDTH),
        "asked to Adapt in round 1 once more",
    ),
    "zero-shot later": (PLAIN, [], Evaluate(1, None), "asked to Evaluate in round 2 without prompts"),
    "two Evaluates": (PLAIN, [Evaluate(0, SHARED)], Evaluate(0, OTHER), "asked to Evaluate in round 1 once more"),
    "not evaluated": (config_of(evaluation={"every": 3}), [], Evaluate(0, SHARED), "asked to Evaluate in round 1, whi"),
    "a sum for others": (
        SECURE,
        [Estimate(0, SHARED, ("a", "b", "c"))],
        Estimate(0, SHARED, ("a", "b", "d")),
        "asked to Estimate in round 1 once more",
    ),
    "two sums of prompts": (
        SECURE,
        [*ROUND[:2], Train(0, SHARED, peers=("a", "b", "c"))],
        Train(0, SHARED, peers=("a", "b")),
        "asked to Train in round 1 once more",
    ),
}


@pytest.mark.parametrize(("config", "before", "ask", "words"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_the_protocol_does_not_have_is_refused(config, before, ask, words):
    *fine, said = objections([*before, ask], config)
    assert fine == [None] * len(before)
    assert said is not None and said.startswith(words)


def test_a_sum_that_was_spoilt_is_played_again_for_fewer_and_not_for_ever():
    asks = [Estimate(0, SHARED, tuple("abcdefghi"[:many])) for many in range(9, 1, -1)]
    said = objections(asks, SECURE, restarts=0)
    assert said[: 1 + SPOILT] == [None] * (1 + SPOILT)
    assert all(why and "th time" in why for why in said[1 + SPOILT :])


def test_sixty_sums_a_round_are_refused():
    """What `spec/trust.md` tells: 60 sums with invented sites recovered a site's counts. This round has two."""
    said = objections([Introduce(0, bytes([number])) for number in range(60)], SECURE, restarts=0)
    assert sums_of_round(SECURE, 0) == 2 and sums_of_round(SECURE, 1) == 1
    assert [why is None for why in said] == [True] * (2 + SPOILT) + [False] * (58 - SPOILT)


def test_restarts_are_no_way_to_ask_for_ever():
    at, answered = SiteStep(), 0
    for attempt in range(50):
        ask = Select(0, 0, TOTALS + attempt, 2)
        at = at.at(attempt, 0)
        if out_of_order(ask, at, PLAIN, RESTARTS) is None:
            at = at.made_step(digest(ask), ask).answered(digest(ask), ask)
            answered += 1
    assert answered == 1 + RESTARTS


class Unhappy:
    """Sums with which the priors never settle: every exchange that there can be is asked for."""

    def __init__(self):
        self.exchanges = 0

    def features(self):
        self.exchanges += 1
        rows = np.random.default_rng(0).normal(size=(400, 4))
        return FeatureSums(400.0, rows.sum(axis=0), rows.T @ rows)

    def predicted(self, readings):
        self.exchanges += 1
        return np.tile([300.0, 60.0, 40.0], (len(readings), 1))

    def explained(self, readings):
        self.exchanges += 1
        many = len(readings)
        evidence = {2: np.array([20.0, 400.0]), 4: np.array([20.0, 60.0, 30.0, 30.0])}.get(many, np.full(many, 30.0))
        if self.exchanges > MOST_EXCHANGES - 3:
            evidence = np.zeros(many)  # at last nothing can be told of how calm to be, so sureness is looked for
        return Explained(evidence, np.tile([200.0, 120.0, 80.0], (many, 1)), np.full(many, 300.0), 350.0)

    def classes_of(self, reading):
        self.exchanges += 1
        return ClassSums(np.array([200.0, 120.0, 80.0]), np.random.default_rng(1).normal(size=(3, 4)))

    def look_at(self, prototypes):
        pass


def test_the_longest_way_of_the_priors_is_as_long_as_a_site_allows():
    sums = Unhappy()
    learn(sums, CLASSES)
    assert sums.exchanges == MOST_EXCHANGES
    assert most_steps(WITH_PRIORS) == MOST_EXCHANGES + 1
    assert most_steps(config_of(privacy={"noise": 1.0})) == 4  # three with noise, and what was learnt
    assert most_steps(config_of(priors={"balance": False})) == 1


def test_too_few_images_are_not_trained_on_and_not_shown():
    """A class of fewer images than the site's least is not in the sums of features; nor is it taken out again."""
    sums = ClassSums(np.array([4.9, 5.0, 0.0]), np.ones((3, 2)))
    told, shown = without_small(sums, np.full((10, 3), 0.5), 5)
    assert told.images.tolist() == [0.0, 5.0, 0.0]
    assert told.total.tolist() == [[0, 0], [1, 1], [0, 0]] and shown[0].tolist() == [0.0, 0.5, 0.0]
    few = Client(NoisyLearner(0), PLAIN, least_images=11)  # it has 10 images
    state = ClientState()
    for ask in ROUND:
        reply, state = few.answer(ask, state)
    assert reply.examples == 0 and reply.shared is SHARED
