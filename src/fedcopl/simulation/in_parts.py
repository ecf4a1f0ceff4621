"""A client's answer in two parts, which different processes may give: so none waits while another still trains.

The first part ends within training, after some epochs. For the second the client goes through its steps again, is told
what the model had said before, and trains on from there: the same bits as in one piece.
"""

from dataclasses import dataclass
from typing import Any

from ..federation.client import Answered, Client, ClientState
from ..federation.learner import TrainingWanted
from ..messages import Ask, Train
from ..methods.learner import ClipLearner
from ..methods.training import HalfTrained, Lesson, train_first, train_rest


@dataclass(frozen=True)
class HalfAnswered:
    """What the model said before training, and how far that has come."""

    found: tuple[Any, ...]
    training: HalfTrained


def parts_of(client: Client, ask: Ask) -> int:
    """Of how many parts an answer can be made, of which somebody else may go on with the next."""
    learner = client.learner
    if not isinstance(ask, Train) or not isinstance(learner, ClipLearner):
        return 1
    encoder = learner.model.encoder
    return learner.config.train.epochs if learner.model.method.shapes(encoder.clip, encoder.classes) else 1


def first_part(client: Client, ask: Ask, state: ClientState, epochs: int) -> Answered | HalfAnswered:
    """Up to so many epochs; the whole answer where there is nothing to train."""
    steps, found, learner = client.steps(ask, state), list[Any](), client.learner
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, TrainingWanted) and isinstance(learner, ClipLearner):
                return HalfAnswered(
                    tuple(found), train_first(learner.model, learner.config, _lesson(learner, wanted), epochs)
                )
            found.append(wanted.by(learner))
            wanted = steps.send(found[-1])
    except StopIteration as done:
        answered: Answered = done.value
        return answered


def second_part(client: Client, ask: Ask, state: ClientState, half: HalfAnswered) -> Answered:
    """From there to the end."""
    steps, learner, before = client.steps(ask, state), client.learner, iter(half.found)
    assert isinstance(learner, ClipLearner)
    try:
        wanted = next(steps)
        while not isinstance(wanted, TrainingWanted):
            wanted = steps.send(next(before))
        wanted = steps.send(train_rest(learner.model, learner.config, _lesson(learner, wanted), half.training))
        while True:
            wanted = steps.send(wanted.by(learner))
    except StopIteration as done:
        answered: Answered = done.value
        return answered


def _lesson(learner: ClipLearner, wanted: TrainingWanted) -> Lesson:
    return learner.lesson(wanted.prompts, wanted.selection, wanted.round, wanted.caution, wanted.beside)
