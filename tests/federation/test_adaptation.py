"""The priors over questions and answers: the same as worked out in one place, and by hand where that is short."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes import CLASSES, WIDTH, FakeLearner, SkewedLearner, clients, start
from fedcopl.algorithm.balance import even_mix
from fedcopl.algorithm.priors import (
    Learned,
    Reading,
    View,
    clustered_by,
    learn,
    looked_at,
    predicted_by,
)
from fedcopl.algorithm.prototypes import class_sums, feature_sums, make_prototypes
from fedcopl.config import RunConfig
from fedcopl.errors import CannotAnswer
from fedcopl.federation.adaptation import PriorState, reading_arrays
from fedcopl.federation.client import Client, ClientState
from fedcopl.federation.server import play_round, what_is_wrong
from fedcopl.federation.state_arrays import state_from, state_tensors
from fedcopl.messages import Adapt, Adapted, Estimate, Evaluate, Select, Train
from fedcopl.simulation.local_clients import LocalClients
from one_site import explained_by, shown_by

VISUAL = {"visual": np.full((2, 3), 5, np.float32)}
# Two images of a site, two classes of three that it knows of.
PROBS = np.array([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]])
EVEN = Reading(np.zeros(3), even_mix(3))


def config_of(rounds=1, **sections):
    return RunConfig.from_mapping({"rounds": rounds, "train": {"held_out": 0}, **sections}, "test")


def client_of(probs=PROBS, **sections):
    learner = FakeLearner()
    learner.log_probs = np.log(np.asarray(probs, np.float64))
    return Client(learner, config_of(**sections))


def asked(wanted, *readings, step=0, prototypes=None, **more):
    arrays = tuple(reading_arrays(reading) for reading in readings)
    return Adapt(0, step, wanted, WIDTH, readings=arrays, prototypes=prototypes or {}, **more)


# One client, each kind of sum.


def test_predicted_is_how_often_each_class_is_expected_under_each_reading():
    # By equal shares the posteriors are the probabilities: 0.8 + 0.5, 0.1 + 0.3, 0.1 + 0.2.
    # With b = (-log 2, 0, 0): 0.4 0.1 0.1 of 0.6 and 0.25 0.3 0.2 of 0.75: 2/3 + 1/3, 1/6 + 0.4, 1/6 + 4/15.
    halved = replace(EVEN, bias=np.array([-math.log(2), 0, 0]))
    reply, _ = client_of().answer(asked("predicted", EVEN, halved), ClientState())
    assert reply.sums == pytest.approx([1.3, 0.4, 0.3, 1, 1 / 6 + 0.4, 1 / 6 + 4 / 15])


def test_features_are_counted_added_up_and_squared():
    client = client_of()
    client.learner.features = lambda: np.array([[1.0, 0, 0, 0], [0, 3, 4, 0]])
    reply, _ = client.answer(asked("features"), ClientState())
    square = np.zeros((4, 4))
    square[0, 0], square[1, 1], square[1, 2], square[2, 1], square[2, 2] = 1, 9, 12, 12, 16
    assert reply.sums.tolist() == [2, 1, 3, 4, 0, *square.ravel()]


def test_of_wide_features_only_the_size_of_the_spread_is_told():
    client = client_of()
    client.learner.features = lambda: np.full((2, 300), 0.5)
    reply, _ = client.answer(replace(asked("features"), width=300), ClientState())
    assert reply.sums.tolist() == [2, *[1.0] * 300, 2 * 300 * 0.25]


def test_what_a_class_looks_like_is_weighted_with_the_posteriors_which_stay_at_home():
    # One image teaches nothing about a site's mix, so q is p: N = p, S_c = p_c f.
    client = client_of(PROBS[:1])
    client.learner.features = lambda: np.array([[1.0, 2.0, 0, 0]])
    reply, state = client.answer(asked("classes", EVEN), ClientState())
    assert reply.sums[:3] == pytest.approx([0.8, 0.1, 0.1])
    assert reply.sums[3:] == pytest.approx([0.8, 1.6, 0, 0, 0.1, 0.2, 0, 0, 0.1, 0.2, 0, 0])
    assert state.prior.shown == pytest.approx(PROBS[:1])


def test_explained_is_of_every_reading_in_its_own_order():
    # Twelve images: enough for a mix of the site's own. The reference is the algorithm on the same view.
    client = Client(FakeLearner(3), config_of())
    other = replace(EVEN, bias=np.array([1.0, 0, -1]), text=0.5)
    reply, _ = client.answer(asked("explained", EVEN, other), ClientState())
    found = explained_by(View.of(client.learner.log_probs), [EVEN, other])
    assert reply.sums == pytest.approx(
        [*found.evidence, *found.held[0], *found.held[1], *found.confidence, found.agreeing]
    )


def test_an_image_is_judged_by_prototypes_without_its_own_share():
    client = Client(FakeLearner(3), config_of())
    features = client.learner.features()
    view = View.of(client.learner.log_probs)
    sums, own = shown_by(view, features, EVEN)
    prototypes = make_prototypes(feature_sums(features, full=True), sums)
    _, state = client.answer(asked("classes", EVEN), ClientState())
    with_images = replace(EVEN, tempering=0.2)
    reply, _ = client.answer(asked("predicted", with_images, step=1, prototypes=vars(prototypes)), state)
    beside = looked_at(view, features, prototypes, own)
    assert reply.sums == pytest.approx(predicted_by(beside, [with_images])[0])
    assert reply.sums != pytest.approx(predicted_by(looked_at(view, features, prototypes, 0 * own), [with_images])[0])


def test_the_last_question_tells_nothing_and_is_kept():
    client = client_of([[0.9, 0.05, 0.05]] * 20)  # surely more of class 0 than elsewhere
    _, state = client.answer(asked("predicted", EVEN), ClientState())
    learned = Learned(replace(EVEN, bias=np.array([0.5, 0, -0.5])), None, True)
    keep = replace(asked("keep", step=1), readings=(learned.to_arrays(),))
    reply, state = client.answer(keep, state)
    assert reply == Adapted(None)
    assert state.prior.learned.reading.bias.tolist() == [0.5, 0, -0.5]
    assert state.prior.learned.is_uneven
    assert state.prior.mix[0] > 0.9
    again = state_from(state_tensors(state)).prior
    assert np.array_equal(again.mix, state.prior.mix) and np.array_equal(
        again.view.log_probs, state.prior.view.log_probs
    )


def test_without_a_prior_of_the_site_the_mix_of_all_sites_is_taken():
    client = client_of([[0.9, 0.05, 0.05]] * 20, priors={"site": False})
    _, state = client.answer(asked("predicted", EVEN), ClientState())
    learned = Learned(replace(EVEN, mix=np.array([0.2, 0.3, 0.5])), None, True)
    _, state = client.answer(replace(asked("keep", step=1), readings=(learned.to_arrays(),)), state)
    assert state.prior.mix.tolist() == [0.2, 0.3, 0.5]


def test_images_are_looked_at_once_and_by_plain_clip():
    client = client_of()
    _, state = client.answer(asked("predicted", EVEN), ClientState(own={"text": np.full((1, 3), 9, np.float32)}))
    client.answer(asked("predicted", EVEN, step=1), state)
    assert client.learner.asked_with == [None]


@pytest.mark.parametrize("ask", [asked("predicted", EVEN, step=1), asked("truth", EVEN)])
def test_questions_out_of_order_or_of_no_known_kind_are_refused(ask):
    with pytest.raises(CannotAnswer, match=r"has not begun with|no known kind: 'truth'"):
        client_of().answer(ask, ClientState())


# Labels and answers are made through the priors.


def kept(client, reading, state=None):
    _, state = client.answer(asked("predicted", reading), state or ClientState())
    learned = Learned(reading, None, False)
    return client.answer(replace(asked("keep", step=1), readings=(learned.to_arrays(),)), state)[1]


def test_labels_are_made_through_the_priors():
    # b = (-log 4, 0, 0) turns 0.5 0.3 0.2 into 0.125 0.3 0.2 of 0.625: class 1; 0.8 0.1 0.1 into half, a quarter each.
    client = client_of(priors={"site": False}, labels={"confidence_filter": False, "entropy_filter": False})
    state = kept(client, replace(EVEN, bias=np.array([-math.log(4), 0, 0])))
    reply, state = client.answer(Estimate(0, VISUAL), state)
    assert reply.counts.tolist() == [1, 1, 0]
    assert np.exp(state.log_probs) == pytest.approx(np.array([[0.5, 0.25, 0.25], [0.2, 0.48, 0.32]]))
    assert state.prior.view is None  # what it saw is of no use any more
    assert len(client.learner.asked_with) == 1  # it looked once


def test_the_site_prior_is_in_the_labels():
    # All but one of twenty images are of class 0: of the last one, 0.45 against 0.55 means class 0 all the same.
    rows = [[0.9, 0.05, 0.05]] * 19 + [[0.45, 0.54, 0.01]]
    for site, label in ((True, 0), (False, 1)):
        client = client_of(rows, priors={"site": site})
        _, state = client.answer(Estimate(0, VISUAL), kept(client, EVEN))
        assert state.log_probs[-1].argmax() == label


def test_an_exam_is_answered_through_the_priors_but_zero_shot_is_not():
    class Spy:
        def score(self, prompts, prior):
            seen.append(prior.mix)
            return 0, 0

    seen = []
    client = replace(client_of(priors={"site": False}), exam=Spy())
    state = kept(client, EVEN)
    for ask in (Evaluate(0, VISUAL), Evaluate(0, None), Evaluate(0, None, "priors")):
        client.answer(ask, state)
    assert seen[0].tolist() == seen[2].tolist() == [1 / 3] * 3
    assert seen[1] is None


@pytest.mark.parametrize(("sure", "trains"), [(0.95, True), (0.89, False)])
def test_labels_that_are_likely_wrong_are_not_trained_on(sure, trains):
    rest = (1 - sure) / 2
    client = client_of([[sure, rest, rest]] * 4, priors={"site": False}, labels={"global_allocation": False})
    state = kept(client, EVEN)
    _, state = client.answer(Estimate(0, VISUAL), state)
    _, state = client.answer(Select(0, 0, None, 1), state)
    reply, _ = client.answer(Train(0, VISUAL), state)
    assert (len(client.learner.trained_with) == 1) == trains
    assert (reply.examples == 4) == trains
    assert reply.checks == (() if trains else (0, 0, 0, 0, 0, 1))


# All clients together: the same as in one place.


class InOnePlace:
    """The sums of `algorithm.priors` over the clients' images, without a message. An independent reference."""

    def __init__(self, learners):
        self.features_of = [learner.features() for learner in learners]
        self.views = [View.of(learner.log_probs) for learner in learners]

    def features(self):
        return feature_sums(np.concatenate(self.features_of), full=True)

    def predicted(self, readings):
        return sum(predicted_by(view, readings) for view in self.views)

    def explained(self, readings):
        first, *others = (explained_by(view, readings) for view in self.views)
        return sum(others, start=first)

    def classes_of(self, reading):
        self.own = [shown_by(*pair, reading)[1] for pair in zip(self.views, self.features_of, strict=True)]
        return class_sums(np.concatenate(self.features_of), np.concatenate(self.own))

    def clusters_of(self, reading):
        self.own = [clustered_by(*pair, reading)[1] for pair in zip(self.views, self.features_of, strict=True)]
        return class_sums(np.concatenate(self.features_of), np.concatenate(self.own))

    def look_at(self, prototypes):
        parts = zip(self.views, self.features_of, self.own, strict=True)
        self.views = [looked_at(view, features, prototypes, own) for view, features, own in parts]


def same(one, other):
    assert one.reading.bias == pytest.approx(other.reading.bias, abs=1e-9)
    assert one.reading.mix == pytest.approx(other.reading.mix)
    numbers = ("text", "tempering", "calm", "sure")
    assert [getattr(one.reading, name) for name in numbers] == [getattr(other.reading, name) for name in numbers]
    assert (one.prototypes is None) == (other.prototypes is None)
    if one.prototypes is not None:
        assert one.prototypes.total == pytest.approx(other.prototypes.total)
        assert one.prototypes.images == pytest.approx(other.prototypes.images)


def test_the_federation_learns_what_one_place_with_all_images_would():
    config = config_of(rounds=2)  # one adaptation only, before the first labels
    federation = LocalClients(clients(config, SkewedLearner))
    learned = play_round(config, federation, start())[0].learned
    reference = InOnePlace([SkewedLearner(number) for number in range(3)])
    expected = learn(reference, CLASSES)
    assert expected.prototypes is not None and expected.reading.tempering > 0  # so all kinds of sums were asked for
    same(learned, expected)
    for state, view in zip(federation.states.values(), reference.views, strict=True):
        assert state.prior.mix == pytest.approx(view.site_prior(expected.reading).mix)
        same(state.prior.learned, expected)
        posteriors = view.posteriors(expected.reading, view.site_prior(expected.reading).mix)
        assert (state.labels == posteriors.argmax(axis=1)).all()


def test_without_prototypes_and_without_balance_less_is_asked_for():
    kinds = {}
    for name, priors in {
        "all": {},
        "text": {"prototypes": False},
        "site": {"prototypes": False, "balance": False},
    }.items():
        asks = []

        class Overheard(LocalClients):
            def ask(self, questions, asks=asks):
                asks.extend(ask.wanted for ask in questions.values() if isinstance(ask, Adapt))
                return super().ask(questions)

        config = config_of(rounds=2, priors=priors)
        play_round(config, Overheard(clients(config, SkewedLearner)), start())
        kinds[name] = set(asks)
    assert kinds == {
        "all": {"predicted", "explained", "features", "clusters", "classes", "keep"},
        "text": {"predicted", "explained", "keep"},
        "site": {"keep"},
    }


def test_a_client_that_tells_rubbish_is_left_out_of_the_sum():
    class Lying(LocalClients):
        def ask(self, questions):
            replies = super().ask(questions)
            for client, ask in questions.items():
                if isinstance(ask, Adapt) and client == "client-1":
                    replies[client] = Adapted(np.full(2, np.nan))
            return replies

    config = config_of(priors={"prototypes": False})
    federation = Lying(clients(config, SkewedLearner))
    state, report = play_round(config, federation, start())
    assert "client-1" in report.dropped
    assert np.isfinite(state.learned.reading.bias).all()


@pytest.mark.parametrize(
    ("sums", "why"),
    [
        (np.zeros(3), None),
        (np.zeros(4), "not 3 numbers"),
        (np.zeros(3, np.float32), "not 3 numbers"),
        (np.array([1, 1, math.nan]), "no numbers of images"),
        (np.array([1, 1, 2e12]), "no numbers of images"),
        (None, "does not tell the sums"),
    ],
)
def test_sums_must_be_as_many_numbers_as_were_asked_for(sums, why):
    wrong = what_is_wrong(asked("predicted", EVEN), Adapted(sums), CLASSES)
    assert wrong is None if why is None else why in wrong


def test_new_images_are_answered_through_what_was_kept():
    # b = (-log 4, 0, 0) and a site of nothing but classes 0 and 1, evenly: 0.5 0.3 0.2 becomes 0.125 0.3 of 0.425.
    learned = Learned(replace(EVEN, bias=np.array([-math.log(4), 0, 0])), None, False)
    prior = PriorState(learned=learned, mix=np.array([0.5, 0.5, 1e-9]))
    answers = prior.answers(np.log(PROBS[1:]), np.zeros((1, WIDTH)))
    assert np.exp(answers[0, :2]) == pytest.approx([0.125 / 0.425, 0.3 / 0.425], abs=1e-6)
    assert PriorState().answers(np.log(PROBS), np.zeros((2, WIDTH))) is not None
