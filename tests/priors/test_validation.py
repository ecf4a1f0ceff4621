"""Checks on sums, and a client's checks on the totals of a malicious server."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import CLASSES as FAKE_CLASSES
from fakes import SkewedLearner
from fedcopl.config import RunConfig
from fedcopl.errors import CannotReply
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState, state_from, state_tensors
from fedcopl.messages import Adapt
from fedcopl.priors.label_shift import STRENGTHS
from fedcopl.priors.posterior import no_priors
from fedcopl.priors.statistics import Statistic
from fedcopl.priors.validation import images_of, validate_sums
from priors.synthetic_clients import CLASSES, WIDTH, clients_with, estimated, even, skewed


@given(st.integers(0, 20))
@settings(max_examples=5)
def test_sums_and_totals_of_images_are_valid(seed):
    whole = estimated(clients_with(skewed(3), seed, images=30))
    again = clients_with(skewed(3), seed, images=30)
    for step, total in zip(whole.steps, whole.totals, strict=True):
        own = [client.reply(step) for client in again]
        assert validate_sums(step, total, CLASSES, WIDTH, 90.0) is None
        assert all(validate_sums(step, one, CLASSES, WIDTH, 30.0) is None for one in own)
        assert all(validate_sums(step, total, CLASSES, WIDTH, 90.0, one) is None for one in own)


MANIPULATIONS = {
    "twice": lambda sums: 2 * sums,
    "negative": lambda sums: -sums,
    "more": lambda sums: sums + 5,
    "nan": lambda sums: np.where(np.arange(len(sums)) == 0, np.nan, sums),
}


@pytest.mark.parametrize("kind", ["moments", "predicted", "class_sums"])
@pytest.mark.parametrize("manipulation", MANIPULATIONS)
def test_manipulated_sums_are_invalid(kind, manipulation):
    whole = estimated(clients_with(even(2), images=20))
    number = next(number for number, step in enumerate(whole.steps) if step[0].kind == kind)
    step, total = whole.steps[number], whole.totals[number]
    assert validate_sums(step, total, CLASSES, WIDTH, 40.0) is None
    assert validate_sums(step, MANIPULATIONS[manipulation](total), CLASSES, WIDTH, 40.0) is not None


def test_impossible_second_moments_are_invalid():
    # Two images along the first of eight axes, and second moments along another.
    step = estimated(clients_with(even(2), images=2)).steps[0]
    square = np.zeros((WIDTH, WIDTH))
    total = np.zeros(WIDTH)
    total[0], square[1, 1] = 2.0, 4.0
    predicted = np.full(CLASSES, 4 / CLASSES)
    sums = np.concatenate([[4.0], predicted, total, square[np.triu_indices(WIDTH)], np.zeros(CLASSES)])
    assert validate_sums(step, sums, CLASSES, WIDTH, 4.0) is None  # the sum of features may cancel out
    square[2, 2], square[1, 1] = -1.0, 5.0
    sums = np.concatenate([[4.0], predicted, total, square[np.triu_indices(WIDTH)], np.zeros(CLASSES)])
    assert validate_sums(step, sums, CLASSES, WIDTH, 4.0) == "the second moments are not positive semidefinite"


def test_totals_must_contain_the_clients_features():
    # Two images along the second of two axes; this client has one image along the first, or along the second.
    step, predicted = (Statistic("moments"),), [1.0, 1.0]
    totals = np.array([2.0, *predicted, 0.0, 2.0, 0.0, 0.0, 2.0])  # n, classes, sum f, then f f^T as 11, 12, 22
    along_first = np.array([1.0, 0.5, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0])
    along_second = np.array([1.0, 0.5, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0])
    assert validate_sums(step, totals, 2, 2, None) is None
    assert validate_sums(step, totals, 2, 2, None, along_second) is None
    assert validate_sums(step, totals, 2, 2, None, along_first) == "the second moments are not positive semidefinite"


@pytest.mark.parametrize(
    ("totals", "reason"), [([3.0, 0.0], None), ([3.1, 0.0], "the feature sum of a class has a norm above")]
)
def test_class_feature_sums_have_at_most_the_norm_of_their_images(totals, reason):
    # Three images of class 0, of unit length, in two dimensions; none of class 1.
    sums = np.array([[[3.0, *totals], [0.0, 0.0, 0.0]]])
    result = validate_sums((Statistic("class_sums", (no_priors(2),)),), sums.ravel(), 2, 2, 3.0)
    assert result is None if reason is None else result.startswith(reason)


@pytest.mark.parametrize(
    ("nats", "reason"), [(1400.0, None), (1500.0, "the evidence is too large for the number of images")]
)
def test_evidence_is_limited_by_the_images(nats, reason):
    # 700 nats for each of two images.
    sums = np.zeros(len(STRENGTHS))
    sums[1] = nats
    assert validate_sums((Statistic("evidence", (no_priors(2),)),), sums, 2, 2, 2.0) == reason


@pytest.mark.parametrize(
    ("logit", "reason"), [(-200.0, None), (210.0, "the logits are too large for the number of images")]
)
@pytest.mark.parametrize("first", [[2.0, 1.5, 0.5, 0.0, 0.0, 2.0, 0.0, 0.0], [1.5, 0.5]], ids=["moments", "predicted"])
def test_logits_are_limited_by_the_images_of_the_same_step(first, logit, reason):
    # Two images, with log-probabilities down to -100 each.
    statistic = Statistic("moments") if len(first) > 2 else Statistic("predicted", (no_priors(2),))
    sums = np.array([*first, 0.0, logit])
    assert validate_sums((statistic, Statistic("logits")), sums, 2, 2, None) == reason


def test_the_first_sums_contain_the_number_of_images():
    for prototypes in (True, False):
        whole = estimated(clients_with(even(2), images=20), prototypes=prototypes)
        assert images_of(whole.steps[0], whole.totals[0], CLASSES) == 40


# A client and a malicious server


def config(**priors):
    return RunConfig.from_mapping({"priors": priors}, "test")


def first_steps(count):
    """Two clients after some steps: the honest one and its state, and the totals so far."""
    members = [Client(SkewedLearner(number), config()) for number in range(2)]
    states, totals = [ClientState(), ClientState()], []
    for step in range(count):
        message = Adapt(0, step, tuple(totals[-1:]))
        replies = [member.handle(message, state) for member, state in zip(members, states, strict=True)]
        states = [state for _, state in replies]
        totals.append(sum(reply.sums for reply, _ in replies))
    return members[0], states[0], totals


@pytest.mark.parametrize("after", [1, 2, 6])
def test_totals_without_the_clients_own_sums_are_refused(after):
    client, state, totals = first_steps(after)
    own = state.prior.sent
    with pytest.raises(CannotReply, match=f"step {after}: the totals are impossible"):
        client.handle(Adapt(0, after, (totals[-1] - 2 * own,)), state)
    reply, _ = client.handle(Adapt(0, after, (totals[-1],)), state)
    assert reply.sums is not None


@pytest.mark.parametrize(
    ("totals", "message"),
    [
        (lambda last: (last[:-1],), "have the wrong size"),
        (lambda last: (last + np.nan,), "not all sums are finite"),
        (lambda last: (), "step 3: an earlier step was missed"),
        (lambda last: (last / 2,), "impossible"),
    ],
)
def test_totals_that_do_not_fit_are_refused(totals, message):
    client, state, known = first_steps(2)
    with pytest.raises(CannotReply, match=message):
        client.handle(Adapt(0, 2, totals(known[-1])), state)


def test_a_client_that_missed_the_steps_computes_the_same_from_all_totals():
    client, _, totals = first_steps(19)
    late = Client(SkewedLearner(5), config())
    _, complete = client.handle(Adapt(0, 19, tuple(totals)), ClientState())
    _, state = late.handle(Adapt(0, 19, tuple(totals)), ClientState())
    assert (state.prior.model.logit_bias == complete.prior.model.logit_bias).all()
    assert state.prior.class_prior.shape == (FAKE_CLASSES,)


@pytest.mark.parametrize("after", [6, 7])  # the class sums are sent, and the distances to the prototypes are known
def test_the_state_between_two_steps_is_stored_and_read_back(after):
    client, state, totals = first_steps(after)
    message = Adapt(0, after, tuple(totals[-1:]))
    one, other = (client.handle(message, each)[0].sums for each in (state, state_from(state_tensors(state))))
    assert one.tobytes() == other.tobytes()
