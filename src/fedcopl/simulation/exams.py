"""All clients' labelled test images, to be asked about any model: in this process, or in those that have them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..algorithm.metrics import Score
from ..federation.adaptation import PriorState
from ..federation.learner import Prompts
from ..methods.learner import ClipExam, score_everywhere

ExamAnswers = tuple[NDArray[np.int64], NDArray[np.int64]]
"""What was predicted, and what is true, image by image."""


@dataclass(frozen=True)
class Sat:
    """One exam to be sat: by which model, through what is known beforehand. None: plain CLIP."""

    prompts: Prompts | None
    prior: PriorState

    def by(self, exam: ClipExam) -> ExamAnswers:
        return exam.answers(self.prompts, self.prior)


@dataclass(frozen=True)
class SatByAll:
    """Some clients' exams, all to be sat by every model."""

    clients: Sequence[str]
    models: Sequence[Prompts]
    prior: PriorState

    def of(self, exams: Mapping[str, ClipExam]) -> list[Score]:
        return score_everywhere([exams[client] for client in self.clients], self.models, self.prior)


class Exams(Protocol):
    """Whoever has the exams."""

    @property
    def clients(self) -> Sequence[str]:
        """Whose there are."""
        ...

    def answers(self, sat: Mapping[str, Sat]) -> dict[str, ExamAnswers]:
        """What is answered in each of some clients' exams."""
        ...

    def everywhere(self, models: Sequence[Prompts], prior: PriorState) -> list[Score]:
        """How many of all clients' test images each of these models gets right, of how many."""
        ...


@dataclass(frozen=True)
class ExamsHere:
    """In this process."""

    exams: Mapping[str, ClipExam]

    @property
    def clients(self) -> Sequence[str]:
        return tuple(self.exams)

    def answers(self, sat: Mapping[str, Sat]) -> dict[str, ExamAnswers]:
        return {client: one.by(self.exams[client]) for client, one in sat.items()}

    def everywhere(self, models: Sequence[Prompts], prior: PriorState) -> list[Score]:
        return SatByAll(self.clients, models, prior).of(self.exams)


def scored(answers: ExamAnswers) -> Score:
    predicted, truth = answers
    return int((predicted == truth).sum()), len(truth)
