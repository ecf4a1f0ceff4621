"""All images in one place: the bounds that a federation is measured against. Only a simulation can do this."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..client import Client, Exam, Learner, Prompts
from ..config import RunConfig
from ..core.select import Selection

CENTRAL = "central"


@dataclass(frozen=True)
class PooledExam:
    """All clients' exams as one."""

    exams: Mapping[str, Exam]

    def score(self, prompts: Prompts | None) -> tuple[int, int]:
        scores = [exam.score(prompts) for exam in self.exams.values()]
        return sum(correct for correct, _ in scores), sum(examples for _, examples in scores)


@dataclass(frozen=True)
class ToldTheTruth:
    """A learner whose labels are the true ones: supervised learning, the upper bound. No federation contains this."""

    learner: Learner
    truth: NDArray[np.int64]
    classes: int

    def initial(self) -> Prompts:
        return self.learner.initial()

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        certain = np.full((len(self.truth), self.classes), -np.inf)
        certain[np.arange(len(self.truth)), self.truth] = 0.0
        return certain

    def remember(self, selection: Selection) -> Prompts:
        return self.learner.remember(selection)

    def examine(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.learner.examine(prompts, index)

    def train(self, prompts: Prompts, selection: Selection, round: int, caution: float = 1.0) -> tuple[Prompts, float]:
        return self.learner.train(prompts, selection, round, caution)


def supervised(learner: Learner, truth: NDArray[np.int64], classes: int, config: RunConfig, exam: Exam) -> Client:
    """One client that trains on all its images with their true labels."""
    every_image = config.labels.model_copy(update={"global_allocation": False})
    return Client(ToldTheTruth(learner, truth, classes), config.model_copy(update={"labels": every_image}), exam)
