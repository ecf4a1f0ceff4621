"""FPL, on the client: the surest images of each class become its training data, in the three readings of that.

Menghini et al. (NeurIPS 2023). UPL (Huang et al., 2022) is the rule "argmax" without a refresh.
"""

from typing import Literal

import numpy as np

from . import FloatArray
from .select import Selection, select

Rule = Literal["argmax", "column", "leaderboard"]
Ranked = tuple[float, int]  # score, image: they sort by score, and on a tie by image


def select_top(log_probs: FloatArray, per_class: int, rule: Rule = "argmax") -> Selection:
    """At most per_class (K) images for each class, by class and then surest first.

    log_probs is (n, C), the float64 log-softmax: where probabilities round to 1, their logarithms still rank.
    argmax       the K surest of the images predicted as that class: one label per image (ties: lower index).
    column       the K surest of all images: min(K, n) for every class, so an image may have several labels
                 (ties: lower index).
    leaderboard  the authors' program, which depends on the order of the images; see `_leaderboards`.
    """
    if per_class < 1:
        raise ValueError(f"a class must be allowed at least one image, not {per_class}")
    return {"argmax": _argmax, "column": _column, "leaderboard": _leaderboards}[rule](log_probs, per_class)


def grown_capacity(refresh_index: int, images: int, classes: int, refreshes: int = 4) -> int:
    """GRIP's growing K: at refresh q, an even share of the first q + 1 parts of the images, at least 1.

    K_q = max(1, floor((q + 1) floor(n / refreshes) / C)), about n / C at the last refresh.
    """
    return max(1, (refresh_index + 1) * (images // refreshes) // classes)


def _argmax(log_probs: FloatArray, per_class: int) -> Selection:
    return select(log_probs, np.full(log_probs.shape[1], per_class))


def _column(log_probs: FloatArray, per_class: int) -> Selection:
    best = np.argsort(-log_probs, axis=0, kind="stable")[:per_class]
    return Selection(best.T.ravel(), np.repeat(np.arange(log_probs.shape[1]), len(best)))


def _leaderboards(log_probs: FloatArray, per_class: int) -> Selection:
    """Each image in turn goes to the board of its predicted class; if that has no place for it, to all others.

    A board takes an image at its end while there is room, and afterwards when its last entry scores less: then it
    is sorted, and its lowest entry is dropped for good. Before the first sorting the last entry need not be the
    lowest, so the K surest may be missed, as in the authors' program; one image may stand on several boards.
    Equal scores never displace; where a board is sorted, they stand by larger index first (the
    authors': larger file path).
    """
    boards: list[list[Ranked]] = [[] for _ in range(log_probs.shape[1])]
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


def _admit(board: list[Ranked], entry: Ranked, capacity: int) -> float:
    """Put the entry on the board, and return the score that the next one has to beat (nan: none)."""
    full = len(board) == capacity
    board.append(entry)
    if full:
        board.sort(reverse=True)
        board.pop()
    return board[-1][0] if len(board) == capacity else np.nan
