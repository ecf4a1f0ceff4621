"""Fake learners, test sets and transports that are small enough to calculate by hand."""

from collections.abc import Mapping

import numpy as np

from fedcopl.config import RunConfig
from fedcopl.federation.client import Client
from fedcopl.federation.learner import NO_PRIOR
from fedcopl.federation.server import ServerState, is_finished, run_round
from fedcopl.messages import Reply, Request
from fedcopl.rng import stream
from fedcopl.simulation.simulate import LocalTransport

CLASSES, WIDTH = 3, 4
NO_PRIORS = {"logit_bias": False, "label_shift": False, "prototypes": False}  # the protocol of the paper
START = {"visual": np.zeros((2, 3), np.float32), "text": np.zeros((1, 3), np.float32)}


def run(config, transport, state, after_round=lambda state, report: None):
    """Run the remaining rounds as `run.loop.run_rounds` does, without a run folder; return the last state."""
    while not is_finished(config, state):
        state, report = run_round(config, transport, state)
        after_round(state, report)
    return state


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale each row to length one, as CLIP's features are."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class FakeLearner:
    """Returns fixed probabilities; training adds 1 to the visual prompt and the client's number to the text prompt."""

    def __init__(self, number: int = 0, images: int = 12):
        self.number = number
        self.log_probs = np.log(stream(0, "fake", number).dirichlet(np.ones(CLASSES), size=images))
        self.predict_calls: list = []  # the prompts of each call of `log_probabilities`
        self.train_calls: list = []

    def initial(self):
        return START

    def log_probabilities(self, prompts):
        self.predict_calls.append(prompts)
        return self.log_probs

    def features(self):
        return unit_rows(stream(0, "fake features", self.number).normal(size=(len(self.log_probs), WIDTH)))

    def class_features(self):
        return np.eye(CLASSES, WIDTH)

    def build_memory(self, selection):
        return {}

    def log_probabilities_of(self, prompts, index):
        return self.log_probs[index]

    def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
        self.train_calls.append(prompts)
        return {**prompts, "visual": prompts["visual"] + 1, "text": prompts["text"] + self.number}, 0.5


class NoisyLearner(FakeLearner):
    """Training depends on the client, the round and the received prompts, so that tests detect mixed-up replies."""

    def __init__(self, number: int):
        super().__init__(number, images=10 + 7 * number)

    def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
        noise = stream(0, "noise", self.number, round)
        moved = {name: value * 0.9 + noise.normal(size=value.shape) for name, value in prompts.items()}
        return {name: value.astype(np.float32) for name, value in moved.items()}, float(len(selection.index))


class CoupledLearner(NoisyLearner):
    """The trained visual prompt depends on the text prompt, as in CLIP."""

    def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
        moved, loss = super().train(prompts, selection, round, lr_factor, adjustment)
        return moved | {"visual": moved["visual"] + prompts["text"].mean()}, loss


class SkewedLearner(FakeLearner):
    """Skewed class prior and a model with a logit bias; the features separate the classes better than the model."""

    def __init__(self, number: int, images: int = 60):
        super().__init__(number, images)
        label = stream(0, "label", number).choice(CLASSES, images, p=np.roll([0.8, 0.15, 0.05], number))
        scores = stream(0, "scores", number).normal(size=(images, CLASSES)) + 1.5 * np.eye(CLASSES)[label]
        scores += [0.7, 0, -0.7]
        self.log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        noise = stream(0, "features", number).normal(size=(images, WIDTH))
        self._features = unit_rows(2 * np.eye(WIDTH)[label] + noise)

    def features(self):
        return self._features


class FakeTestSet:
    def __init__(self, correct: int, examples: int):
        self.result = correct, examples

    def score(self, prompts, prior=NO_PRIOR):
        return (0, self.result[1]) if prompts is None else self.result


class FlakyFederation(LocalTransport):
    """Loses, delays or replaces replies, each named by (client, type of the request, round).

    A request in `lost` never reaches its client; the client computes its reply to a request in `late`, but the server
    does not get the reply; a reply in `spoiled` is replaced.
    """

    def __init__(self, clients: Mapping[str, Client]):
        super().__init__(clients)
        self.lost: set[tuple[str, str, int]] = set()
        self.late: set[tuple[str, str, int]] = set()
        self.spoiled: dict[tuple[str, str, int], Reply] = {}
        self.requested: list[tuple[str, str, int]] = []

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        keys = {client: (client, type(message).__name__, message.round) for client, message in requests.items()}
        self.requested += keys.values()
        replies = super().request(
            {client: message for client, message in requests.items() if keys[client] not in self.lost}
        )
        in_time = {client: reply for client, reply in replies.items() if keys[client] not in self.late}
        return {client: self.spoiled.get(keys[client], reply) for client, reply in in_time.items()}


def clients(config: RunConfig, kind=FakeLearner, count: int = 3) -> dict[str, Client]:
    return {f"client-{i}": Client(kind(i), config, FakeTestSet(6 + i, 12)) for i in range(count)}


def start(aggregate: str = "visual") -> ServerState:
    names = {"visual": ["visual"], "text": ["text"], "both": ["visual", "text"], "none": []}[aggregate]
    return ServerState(0, {name: START[name] for name in names}, CLASSES, width=WIDTH)
