"""Synthetic clients: Gaussian classes in a few dimensions, and a biased text classifier."""

import numpy as np

from fedcopl.priors.estimation import Estimation, PriorSettings
from fedcopl.priors.posterior import log_softmax
from fedcopl.priors.statistics import ClientScores
from fedcopl.rng import stream

CLASSES, WIDTH = 5, 8


class SyntheticClient:
    """Images of known classes; the estimation gets only their log-probabilities and features."""

    def __init__(self, number, shares, images=80, seed=0):
        draw = stream(seed, "made-up client", number)
        means = 2 * stream(seed, "means").normal(size=(CLASSES, WIDTH))
        self.labels = draw.choice(CLASSES, images, p=shares)
        features = means[self.labels] + draw.normal(size=(images, WIDTH))
        self.features = features / np.linalg.norm(features, axis=1, keepdims=True)
        scores = 2.0 * np.eye(CLASSES)[self.labels] + draw.normal(size=(images, CLASSES))
        self.log_probs = log_softmax(scores + np.linspace(1.0, -1.0, CLASSES))  # biased towards the first classes
        self.scores = ClientScores(self.log_probs)

    def reply(self, step):
        parts = []
        for statistic in step:
            part, self.scores = self.scores.compute(statistic, lambda: self.features)
            parts.append(part.ravel())
        return np.concatenate(parts)

    def accuracy(self, model):
        scores = self.scores.with_prototypes(model.prototypes, lambda: self.features)
        return float((scores.log_posteriors(model, scores.class_prior(model)).argmax(axis=1) == self.labels).mean())

    @property
    def zero_shot(self):
        return float((self.log_probs.argmax(axis=1) == self.labels).mean())


def text():
    return stream(0, "text").normal(size=(CLASSES, WIDTH))


def clients_with(shares, seed=0, images=80):
    return [SyntheticClient(number, own, images, seed) for number, own in enumerate(shares)]


def skewed(count):
    """Return class priors in which each client has another main class; overall, classes are about equally frequent."""
    return np.stack([np.roll([0.8, 0.1, 0.05, 0.03, 0.02], number) for number in range(count)])


def even(count):
    return np.full((count, CLASSES), 1 / CLASSES)


def estimated(clients, **settings):
    estimation = Estimation(PriorSettings(CLASSES, WIDTH, **settings), text())
    while estimation.outcome is None:
        estimation.add(sum(client.reply(estimation.steps[-1]) for client in clients))
    return estimation
