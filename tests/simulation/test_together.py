"""Many clients' answers to a question of the priors in one go: the same bits as one by one."""

from dataclasses import replace

import numpy as np
import pytest

from fedcopl.algorithm.priors import Learned, Reading, View
from fedcopl.algorithm.prototypes import class_sums, feature_sums, make_prototypes
from fedcopl.config import RunConfig
from fedcopl.errors import ClientFailed
from fedcopl.federation.adaptation import PriorState, reading_arrays
from fedcopl.federation.client import Client, ClientState
from fedcopl.messages import Adapt
from fedcopl.simulation.local_clients import LocalClients

CLASSES, WIDTH = 4, 6


class Seer:
    """Only what the priors ask of a learner."""

    def __init__(self, number, images):
        rng = np.random.default_rng(number)
        mix = rng.dirichlet(np.full(CLASSES, 0.3))
        kind = rng.choice(CLASSES, images, p=mix)
        scores = rng.normal(size=(images, CLASSES)) + 2 * np.eye(CLASSES)[kind]
        self.log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        seen = rng.normal(size=(images, WIDTH)) + np.eye(CLASSES, WIDTH)[kind]
        self.seen = seen / np.linalg.norm(seen, axis=1, keepdims=True)

    def log_probabilities(self, prompts):
        return self.log_probs

    def features(self):
        return self.seen


def clients_of(sizes):
    config = RunConfig.from_mapping({"train": {"held_out": 0}}, "test")
    return {f"site {number}": Client(Seer(number, images), config) for number, images in enumerate(sizes)}


def readings(many):
    rng = np.random.default_rng(5)
    return [
        Reading(rng.normal(size=CLASSES), rng.dirichlet(np.full(CLASSES, 9.0)), 0.7 + 0.1 * number, 0.5, 0.9)
        for number in range(many)
    ]


def questions():
    """Of each kind, in an order in which they may come."""
    everything = np.concatenate([Seer(number, 9).seen for number in range(4)])
    sums = class_sums(everything, np.full((len(everything), CLASSES), 1 / CLASSES))
    prototypes = make_prototypes(feature_sums(everything, full=True), sums)
    told = [reading_arrays(reading) for reading in readings(5)]
    learned = Learned(readings(1)[0], prototypes, False).to_arrays()
    asks = [("predicted", told[:1], {}), ("features", [], {}), ("predicted", told, {}), ("explained", told, {})]
    asks += [("clusters", told[:1], {}), ("classes", told[:1], vars(prototypes)), ("explained", told[:2], {})]
    asks += [("predicted", told[:3], vars(prototypes)), ("keep", [learned], {})]
    for step, (wanted, said, looked_at) in enumerate(asks):
        yield Adapt(0, step, wanted, WIDTH, readings=tuple(said), prototypes=looked_at)


class OneByOne(LocalClients):
    def _ask_together(self, questions):
        return None


def bits(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, PriorState | View | Learned | Reading):
        return [bits(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


@pytest.mark.parametrize("sizes", [[9] * 7, [1, 9, 2, 9, 9, 1, 30], [12]], ids=["alike", "unlike", "alone"])
def test_together_and_one_by_one_are_the_same_bits(sizes):
    together, alone = LocalClients(clients_of(sizes)), OneByOne(clients_of(sizes))
    for ask in questions():
        answers = [clients.ask(dict.fromkeys(clients.clients(), ask)) for clients in (together, alone)]
        for client in answers[0]:
            assert bits(answers[0][client].sums) == bits(answers[1][client].sums), (client, ask.wanted)
    for client in together.clients():
        assert bits(together.states[client].prior) == bits(alone.states[client].prior), client
        assert together.states[client].prior.mix.flags.c_contiguous  # or it would be stored wrongly


def test_new_priors_end_what_was_said_through_the_old_ones():
    clients = clients_of([9, 9])
    said = replace(ClientState().guard, standing=np.zeros((1, CLASSES)))
    federation = LocalClients(clients, {name: ClientState(guard=said) for name in clients})
    for ask in questions():
        federation.ask(dict.fromkeys(clients, ask))
    assert all(federation.states[name].guard.standing is None for name in clients)


def test_who_cannot_answer_is_named():
    clients = clients_of([9, 9, 9])
    federation = LocalClients(clients)
    first, second, *_ = questions()
    federation.ask({name: first for name in clients if name != "site 1"})
    with pytest.raises(ClientFailed, match="site 1"):
        federation.ask(dict.fromkeys(clients, second))
