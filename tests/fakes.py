"""Stand-ins small enough to follow by hand: plain classes, no mock library."""

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
    """Run the rounds that are left as `run.loop.run_rounds` does, without a folder; return the last state."""
    while not is_finished(config, state):
        state, report = run_round(config, transport, state)
        after_round(state, report)
    return state


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """CLIP's features have length one."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class FakeLearner:
    """Probabilities are fixed, training adds 1 to the visual prompt and the client's number to the text prompt."""

    def __init__(self, number: int = 0, images: int = 12):
        self.number = number
        self.log_probs = np.log(stream(0, "fake", number).dirichlet(np.ones(CLASSES), size=images))
        self.asked_with: list = []  # the prompts of every question about probabilities
        self.trained_with: list = []

    def initial(self):
        return START

    def log_probabilities(self, prompts):
        self.asked_with.append(prompts)
        return self.log_probs

    def features(self):
        return unit_rows(stream(0, "fake features", self.number).normal(size=(len(self.log_probs), WIDTH)))

    def class_features(self):
        return np.eye(CLASSES, WIDTH)

    def remember(self, selection):
        return {}

    def log_probabilities_of(self, prompts, index):
        return self.log_probs[index]

    def train(self, prompts, selection, round, lr_factor=1.0, beside=None):
        self.trained_with.append(prompts)
        return {**prompts, "visual": prompts["visual"] + 1, "text": prompts["text"] + self.number}, 0.5


class NoisyLearner(FakeLearner):
    """Training depends on the client, the round and what it was sent, so a mixed-up reply shows."""

    def __init__(self, number: int):
        super().__init__(number, images=10 + 7 * number)

    def train(self, prompts, selection, round, lr_factor=1.0, beside=None):
        noise = stream(0, "noise", self.number, round)
        moved = {name: value * 0.9 + noise.normal(size=value.shape) for name, value in prompts.items()}
        return {name: value.astype(np.float32) for name, value in moved.items()}, float(len(selection.index))


class EntwinedLearner(NoisyLearner):
    """As with CLIP, what the visual prompt learns depends on the text prompt."""

    def train(self, prompts, selection, round, lr_factor=1.0, beside=None):
        moved, loss = super().train(prompts, selection, round, lr_factor, beside)
        return moved | {"visual": moved["visual"] + prompts["text"].mean()}, loss


class SkewedLearner(FakeLearner):
    """Images mostly of one class, seen by a model that leans; their features tell the classes apart better."""

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


class FakeExam:
    def __init__(self, correct: int, examples: int):
        self.result = correct, examples

    def score(self, prompts, prior=NO_PRIOR):
        return (0, self.result[1]) if prompts is None else self.result


class FlakyFederation(LocalTransport):
    """Loses the answers listed in `lost` as (client, kind of question, round), and spoils those in `spoiled`.

    Of those in `lost` the client never heard the question; those in `late` it has worked out, and they come too late.
    """

    def __init__(self, clients: Mapping[str, Client]):
        super().__init__(clients)
        self.lost: set[tuple[str, str, int]] = set()
        self.late: set[tuple[str, str, int]] = set()
        self.spoiled: dict[tuple[str, str, int], Reply] = {}
        self.asked: list[tuple[str, str, int]] = []

    def request(self, questions: Mapping[str, Request]) -> dict[str, Reply]:
        keys = {client: (client, type(message).__name__, message.round) for client, message in questions.items()}
        self.asked += keys.values()
        replies = super().request(
            {client: message for client, message in questions.items() if keys[client] not in self.lost}
        )
        in_time = {client: reply for client, reply in replies.items() if keys[client] not in self.late}
        return {client: self.spoiled.get(keys[client], reply) for client, reply in in_time.items()}


def clients(config: RunConfig, kind=FakeLearner, count: int = 3) -> dict[str, Client]:
    return {f"client-{i}": Client(kind(i), config, FakeExam(6 + i, 12)) for i in range(count)}


def start(aggregate: str = "visual") -> ServerState:
    names = {"visual": ["visual"], "text": ["text"], "both": ["visual", "text"], "none": []}[aggregate]
    return ServerState(0, {name: START[name] for name in names}, CLASSES, width=WIDTH)
