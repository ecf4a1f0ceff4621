"""Several clients' models asked or trained side by side: a team's towers run once, to the bits that each has alone.

For clients of few images, where a pass of the towers costs more to begin than to do.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..clip.image_tokens import ENCODE_BATCH
from ..federation.learner import LookWanted, TrainingWanted, Wanted
from .learner import ClipLearner, examined
from .prompted_model import ImageSide
from .training import train

NUMBERS_AT_ONCE = 200_000  # of images before the first block: with more a team leaves the processor's cache
LARGEST_TEAM = 64  # clients

WantedOf = tuple[ClipLearner, Wanted]
"""Whose model is wanted for what."""


def found_for_each(wanted: Sequence[WantedOf]) -> list[Any]:
    """What `Wanted.by` gives each of them, who have one model in common."""
    found: dict[int, Any] = {}
    for kind in dict.fromkeys(type(what) for _, what in wanted):
        numbers = [number for number, (_, what) in enumerate(wanted) if type(what) is kind]
        for team in teams(numbers, [_images(*wanted[number]) for number in numbers], _most_images(*wanted[numbers[0]])):
            found |= zip(team, _found([wanted[number] for number in team]), strict=True)
    return [found[number] for number in range(len(wanted))]


def see_plainly(learners: Sequence[ClipLearner]) -> None:
    """Let plain CLIP look at the images of all who have few, and keep what it sees for when it is asked."""
    sides = [learner.side for learner in learners if learner.side.is_small_and_unseen]
    if sides:
        most = NUMBERS_AT_ONCE // sides[0].frozen(np.arange(1)).numel()
        for team in teams(range(len(sides)), [len(side) for side in sides], most):
            ImageSide.see_plainly([sides[number] for number in team])


def teams(numbers: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Those that go together, the largest first: at most so much in a team, unless one is larger by itself.

    >>> list(teams([10, 11, 12, 13, 14], sizes=[2, 9, 1, 4, 5], most=10))
    [[11], [14, 13], [10, 12]]
    """
    team: list[int] = []
    taken = 0
    for size, number in sorted(zip(sizes, numbers, strict=True), key=lambda one: -one[0]):
        if team and (taken + size > most or len(team) == LARGEST_TEAM):
            yield team
            team, taken = [], 0
        team.append(number)
        taken += size
    if team:
        yield team


def _index(what: Wanted) -> Any:
    return what.index if isinstance(what, LookWanted) else what.selection.index


def _images(learner: ClipLearner, what: Wanted) -> int:
    """How many are in a pass."""
    images = len(_index(what))
    return images if isinstance(what, LookWanted) else min(images, learner.config.train.batch)


def _most_images(learner: ClipLearner, what: Wanted) -> int:
    return min(ENCODE_BATCH, NUMBERS_AT_ONCE // learner.side.frozen(_index(what)[:1]).numel())


def _found(team: Sequence[WantedOf]) -> Sequence[Any]:
    if len(team) == 1:
        [(learner, what)] = team
        return [what.by(learner)]
    learners = [learner for learner, _ in team]
    looks = [what for _, what in team if isinstance(what, LookWanted)]
    if looks:
        sides = (learner.side for learner in learners)
        return examined(
            learners[0].model, [(side, what.prompts, what.index) for side, what in zip(sides, looks, strict=True)]
        )
    lessons = [
        learner.lesson(what.prompts, what.selection, what.round, what.caution, what.beside)
        for learner, what in team
        if isinstance(what, TrainingWanted)
    ]
    return train(learners[0].model, learners[0].config, lessons)
