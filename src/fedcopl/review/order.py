"""In which order the images are shown. Each order is worked out once; a page is a slice of it."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..algorithm.accuracy_from_sample import drawn_order, strata_of
from ..rng import stream
from .image_source import Beliefs

Numbers = NDArray[np.int64]
SAMPLE, ANSWERED = "sample", "answered"
ORDERS: Mapping[str, str] = {
    SAMPLE: "Random sample",
    "doubtful": "Least sure first",
    "sure": "Surest first",
    "changed": "Changed most often",
    ANSWERED: "Answered",
}
KEPT = 64  # orders held in memory; of 100,000 images each takes 0.8 MB


class Views:
    """The numbers of the images in each order, all of them or those of one class."""

    def __init__(self, beliefs: Beliefs, plan_round: int | None):
        self.beliefs = beliefs
        planned = beliefs.rounds.index(plan_round) if plan_round in beliefs.rounds else len(beliefs.rounds) - 1
        self.plan_round = beliefs.rounds[planned]
        self.strata = strata_of(beliefs.labels[planned], beliefs.log_probability[planned])
        self._kept = lru_cache(maxsize=KEPT)(self._make)

    def numbers(self, order: str, label: int | None = None) -> Numbers:
        return self._kept(order, label)

    def _make(self, order: str, label: int | None) -> Numbers:
        if label is None:
            return self._whole(order)
        whole = self.numbers(order)
        of_class: Numbers = whole[self.beliefs.label[whole] == label]
        return of_class

    def _whole(self, order: str) -> Numbers:
        if order == SAMPLE:
            return drawn_order(self.strata, stream(0, "review"))
        doubt = self.beliefs.confidence
        sorted_by = {"doubtful": (doubt,), "sure": (-doubt,), "changed": (doubt, -self.beliefs.changes)}
        return np.lexsort(sorted_by[order])
