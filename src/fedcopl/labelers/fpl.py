"""FPL, the most confident images of each class (Menghini et al., NeurIPS 2023), in three readings of that rule.

UPL (`upl.py`) is the rule "argmax" without a refresh.
"""

from typing import Literal

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..algorithm.select import Selection, select
from .base import PerClassLabeler

_Rule = Literal["argmax", "column", "leaderboard"]
_Ranked = tuple[float, int]  # score, image: they sort by score, and on a tie by image


class FPL(PerClassLabeler):
    """Takes the same number of the most confident images for every class."""

    title = "FPL"
    summary = "each client trains on its most confident images of each class"

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return the most confident images of each class, by the rule of `labels.fpl_rule`."""
        among = self.eligible_images(log_probs)
        return select_top(log_probs, int(quota[0]), self.config.labels.fpl_rule, among=among)

    def labels_per_image(self, classes: int) -> int:
        """Return the number of classes: some rules select an image for several."""
        return classes


def select_top(
    log_probs: FloatArray, per_class: int, rule: _Rule = "argmax", *, among: IntArray | None = None
) -> Selection:
    """Return at most per_class (K) images for each class, by class and then most confident first.

    Args:
        log_probs: log p, (n, C), in float64: where probabilities round to 1, their logarithms still rank.
        per_class: K.
        rule: "argmax": the K most confident of the images predicted as the class, one label per image; "column": the K
            most confident of all images for every class, so that an image may have several labels; "leaderboard": the
            authors' program, which depends on the order of the images. Ties go to the lower index.
        among: The images to choose from, by index; None: all.

    Raises:
        ValueError: per_class is below 1.
    """
    if per_class < 1:
        raise ValueError(f"per_class must be at least 1, not {per_class}")
    choose = {"argmax": _argmax, "column": _column, "leaderboard": _leaderboards}[rule]
    if among is None:
        return choose(log_probs, per_class)
    chosen = choose(log_probs[among], per_class)
    return chosen._replace(index=among[chosen.index])


def _argmax(log_probs: FloatArray, per_class: int) -> Selection:
    return select(log_probs, np.full(log_probs.shape[1], per_class))


def _column(log_probs: FloatArray, per_class: int) -> Selection:
    best = np.argsort(-log_probs, axis=0, kind="stable")[:per_class]
    return Selection(best.T.ravel(), np.repeat(np.arange(log_probs.shape[1]), len(best)))


def _leaderboards(log_probs: FloatArray, per_class: int) -> Selection:
    """Add each image in turn to the board of its predicted class; if it is rejected there, to all other boards.

    A board appends an image while it has room, and later if its last entry scores less: then it is sorted, and its
    lowest entry is dropped. Before the first sorting the last entry need not be the lowest, so the K most confident may
    be missed, as in the authors' program; one image may be on several boards. Equal scores are rejected; sorting puts
    the larger index first (the authors': the larger file path).
    """
    boards: list[list[_Ranked]] = [[] for _ in range(log_probs.shape[1])]
    # The score to beat on each board: that of its last entry, and nothing while there is room.
    bar = np.full(len(boards), np.nan)
    for image, scores in enumerate(log_probs):
        best = int(scores.argmax())
        beaten = ~(scores <= bar)  # also where bar is nan
        for c in [best] if beaten[best] else np.flatnonzero(beaten):
            bar[c] = _admit(boards[c], (float(scores[c]), image), per_class)
    index = [image for board in boards for _, image in sorted(board, reverse=True)]
    label = np.repeat(np.arange(len(boards)), [len(board) for board in boards])
    return Selection(np.array(index, np.int64), label)


def _admit(board: list[_Ranked], entry: _Ranked, capacity: int) -> float:
    """Put the entry on the board, and return the score that the next one has to beat (nan: none)."""
    full = len(board) == capacity
    board.append(entry)
    if full:
        board.sort(reverse=True)
        board.pop()
    return board[-1][0] if len(board) == capacity else np.nan
