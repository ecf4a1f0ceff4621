"""The order in which images are shown, and the position in it, as part of the address."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from ..algorithm.accuracy_from_sample import drawn_order, strata_of
from ..rng import stream
from .images import LabelHistory

Numbers = NDArray[np.int64]
SAMPLE, ANSWERED = "sample", "answered"
ORDERS: Mapping[str, str] = {
    SAMPLE: "Random sample",
    "doubtful": "Least confident first",
    "sure": "Most confident first",
    "changed": "Changed most often",
    ANSWERED: "Reviewed",
}
KEPT = 64  # orders held in memory; of 100,000 images each takes 0.8 MB


class Views:
    """The numbers of the images in each order, all of them or those of one class."""

    def __init__(self, predictions: LabelHistory, plan_round: int | None):
        self.predictions = predictions
        planned = (
            predictions.rounds.index(plan_round) if plan_round in predictions.rounds else len(predictions.rounds) - 1
        )
        self.plan_round = predictions.rounds[planned]
        self.strata = strata_of(predictions.labels[planned], predictions.log_probability[planned])
        self._kept = lru_cache(maxsize=KEPT)(self._make)

    def numbers(self, order: str, label: int | None = None) -> Numbers:
        return self._kept(order, label)

    def _make(self, order: str, label: int | None) -> Numbers:
        if label is None:
            return self._whole(order)
        whole = self.numbers(order)
        of_class: Numbers = whole[self.predictions.label[whole] == label]
        return of_class

    def _whole(self, order: str) -> Numbers:
        if order == SAMPLE:
            return drawn_order(self.strata, stream(0, "review"))
        doubt = self.predictions.confidence
        sorted_by = {"doubtful": (doubt,), "sure": (-doubt,), "changed": (doubt, -self.predictions.changes)}
        return np.lexsort(sorted_by[order])


MOST_DIGITS = 9  # of a number in an address


@dataclass(frozen=True)
class Position:
    """An order, the class it is narrowed down to, and the position in it."""

    order: str = SAMPLE
    label: int | None = None
    at: int | None = None  # None: where there is something to do
    tab: str = ""

    @classmethod
    def read(cls, fields: Mapping[str, str], classes: int) -> "Position":
        """From an address or a form; what makes no sense is left out."""
        order = fields.get("order", SAMPLE)
        order = order if order in ORDERS else SAMPLE
        label = whole_number(fields.get("class"))
        fits = label is not None and label < classes and order != SAMPLE  # the sample is of all classes or of no use
        tab = fields.get("tab", "")
        tab = tab if re.fullmatch(r"[0-9a-f]{8}", tab) else secrets.token_hex(4)
        return cls(order, label if fits else None, whole_number(fields.get("at")), tab)

    def link(self, **changes: Any) -> str:
        """The address of this place, or of one that differs from it."""
        return f"/?{replace(self, **changes).query()}"

    def query(self) -> str:
        fields = {"order": self.order, "class": self.label, "at": self.at, "tab": self.tab}
        return urlencode({name: value for name, value in fields.items() if value is not None})


def whole_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None
