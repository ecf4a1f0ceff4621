"""FPL, the most confident images of each class (Menghini et al., NeurIPS 2023), in three interpretations.

UPL (`upl.py`) is the rule "argmax" without a refresh.
"""

from typing import Literal

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..algorithm.select import Selection, select
from .base import PerClassLabeler

_Rule = Literal["argmax", "column", "leaderboard"]
_Entry = tuple[float, int]  # score and image, sorted by score and then by image


class FPL(PerClassLabeler):
    """Selects the same number of most confident images of every class."""

    title = "FPL"
    summary = "each client trains on its most confident images of each class"

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return the most confident images of each class, by the rule of `labels.fpl_rule`."""
        among = self.eligible_images(log_probs)
        return select_top(log_probs, int(quota[0]), self.config.labels.fpl_rule, among=among)

    def labels_per_image(self, classes: int) -> int:
        """Return the number of classes, because some rules select an image for several classes."""
        return classes


def select_top(
    log_probs: FloatArray, per_class: int, rule: _Rule = "argmax", *, among: IntArray | None = None
) -> Selection:
    """Return at most K images of each class, by class and then by confidence.

    Args:
        log_probs: log p in float64, (n, C), which still ranks images whose probabilities round to 1.
        per_class: K.
        rule: "argmax": the K most confident of the images predicted as the class, one label per image; "column": the K
            most confident of all images for each class, so that an image may have several labels; "leaderboard": as in
            the authors' program, which depends on the order of the images. Ties go to the lower index.
        among: The indices of the images that may be selected; None: all.

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

    A board with fewer than K entries appends an image. A full board accepts it if its last entry has a lower score:
    then the board is sorted, and its lowest entry is dropped. Before the first sorting the last entry need not be the
    lowest, so some of the K most confident images may be missed, as in the authors' program; an image may be on several
    boards. Equal scores are rejected; sorting puts the larger index first (in their program, the larger file path).
    """
    boards: list[list[_Entry]] = [[] for _ in range(log_probs.shape[1])]
    last_score = np.full(len(boards), np.nan)  # of each full board; nan: not full
    for image, scores in enumerate(log_probs):
        best = int(scores.argmax())
        accepted = ~(scores <= last_score)  # also where it is nan
        for c in [best] if accepted[best] else np.flatnonzero(accepted):
            last_score[c] = _insert(boards[c], (float(scores[c]), image), per_class)
    index = [image for board in boards for _, image in sorted(board, reverse=True)]
    label = np.repeat(np.arange(len(boards)), [len(board) for board in boards])
    return Selection(np.array(index, np.int64), label)


def _insert(board: list[_Entry], entry: _Entry, capacity: int) -> float:
    """Insert an entry, and return the score of the last entry of a full board; nan if the board is not full."""
    full = len(board) == capacity
    board.append(entry)
    if full:
        board.sort(reverse=True)
        board.pop()
    return board[-1][0] if len(board) == capacity else np.nan
