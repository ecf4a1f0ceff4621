"""Whether recent images are still like those of before, found without a label.

One model sees both sets, of n and m images. Three questions, each with a number between 0 and 1:

    mix      1/2 sum_c |mean p~(c) - mean p~'(c)|: how far apart the mixes of classes are
    doubt    the share of recent images of which the model is less sure than of all but a twentieth of those before
    looks    sup_t |F(t) - F'(t)|: how far apart the distances to the nearest prototype are distributed

Chance moves all three. How far, a permutation test says: the images of both sets are dealt out anew many times, and a
number that is reached in fewer than one deal of three hundred is not chance. It must be large enough to matter, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import FloatArray, IntArray

TAIL = 0.05  # of the images before: those the model is least sure of
DEALS, RARE = 999, 0.01 / 3  # three questions, one false alarm in a hundred looks
MATTERS: Mapping[str, float] = {"mix": 0.1, "doubt": 3 * TAIL, "looks": 0.15}
MOST = 4000  # images of a set: more make the answer no clearer


@dataclass(frozen=True)
class SeenImages:
    """What the model says of a set of images."""

    posteriors: FloatArray  # p~, (n, C)
    distances: FloatArray | None = None  # D^2 to the nearest prototype, (n,); None where there are none

    def __len__(self) -> int:
        return len(self.posteriors)

    def rows(self, index: IntArray) -> "SeenImages":
        return SeenImages(self.posteriors[index], None if self.distances is None else self.distances[index])


@dataclass(frozen=True)
class StreamChange:
    """The answer to one of the questions."""

    what: str
    size: float
    chance: float  # how often chance alone makes it so large

    @property
    def is_change(self) -> bool:
        return self.chance <= RARE and self.size >= MATTERS[self.what]


def stream_changes(before: SeenImages, recent: SeenImages, random: np.random.Generator) -> list[StreamChange]:
    """The three answers; two, where there are no prototypes."""
    before, recent = (_at_most(seen, random) for seen in (before, recent))
    pooled = _together(before, recent)
    deals = [random.permutation(len(pooled)) for _ in range(DEALS)]
    asked: dict[str, Callable[[SeenImages, SeenImages], float]] = {"mix": class_prior_shift, "doubt": doubtful}
    if pooled.distances is not None:
        asked["looks"] = distances_apart
    return [
        StreamChange(what, size := request(before, recent), _chance(request, pooled, len(before), size, deals))
        for what, request in asked.items()
    ]


def class_prior_shift(before: SeenImages, recent: SeenImages) -> float:
    return float(np.abs(before.posteriors.mean(axis=0) - recent.posteriors.mean(axis=0)).sum() / 2)


def doubtful(before: SeenImages, recent: SeenImages) -> float:
    """The share of recent images below the confidence that all but a tail of those before have."""
    least = np.quantile(before.posteriors.max(axis=1), TAIL)
    return float((recent.posteriors.max(axis=1) < least).mean())


def distances_apart(before: SeenImages, recent: SeenImages) -> float:
    """The statistic of Kolmogorov and Smirnov."""
    assert before.distances is not None and recent.distances is not None
    here, there = np.sort(before.distances), np.sort(recent.distances)
    steps = np.concatenate([here, there])
    apart = np.searchsorted(here, steps, "right") / len(here) - np.searchsorted(there, steps, "right") / len(there)
    return float(np.abs(apart).max())


def classes_moved(before: SeenImages, recent: SeenImages) -> FloatArray:
    """How much more of each class there is, as a share of all images, (C,)."""
    moved: FloatArray = recent.posteriors.mean(axis=0) - before.posteriors.mean(axis=0)
    return moved


def _chance(
    request: Callable[[SeenImages, SeenImages], float],
    pooled: SeenImages,
    first: int,
    size: float,
    deals: list[IntArray],
) -> float:
    reached = sum(request(pooled.rows(deal[:first]), pooled.rows(deal[first:])) >= size for deal in deals)
    return (1 + reached) / (1 + len(deals))


def _together(before: SeenImages, recent: SeenImages) -> SeenImages:
    posteriors = np.concatenate([before.posteriors, recent.posteriors])
    if before.distances is None or recent.distances is None:
        return SeenImages(posteriors)
    return SeenImages(posteriors, np.concatenate([before.distances, recent.distances]))


def _at_most(seen: SeenImages, random: np.random.Generator) -> SeenImages:
    return seen if len(seen) <= MOST else seen.rows(np.sort(random.choice(len(seen), MOST, replace=False)))
