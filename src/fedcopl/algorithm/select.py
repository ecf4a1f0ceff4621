"""Step 3, on the client: select the most confident images of each class, as many as the quota allows.

Images that the site's own expert labelled come first: they are always trained on, with the expert's label.
"""

from typing import Literal, NamedTuple

import numpy as np

from . import BoolArray, FloatArray, IntArray

_Candidates = Literal["argmax", "any"]


class Selection(NamedTuple):
    """The images to train on, by class and then by confidence; an image with two labels is listed twice."""

    index: IntArray  # type: ignore[assignment]  # (m,) indices of this client's images; hides tuple.index
    label: IntArray  # (m,) the pseudo label of each; with candidate sets, the class for which it was selected
    candidates: BoolArray | FloatArray | None = None
    """(m, C) the candidate classes of each, or their probabilities; None without candidate sets."""


def select(log_probs: FloatArray, quota: IntArray, candidates: _Candidates = "argmax") -> Selection:
    """Select at most quota[c] images of each class c, by class and then by confidence (ties: the lower index).

    Args:
        log_probs: The float64 log-softmax, (n, C): where probabilities round to 1, their logarithms still rank.
        quota: The number of images of each class, (C,).
        candidates: Which images a class may take: those predicted as that class ("argmax"), or all ("any", the
            paper to the letter: each class picks its quota[c] best of all images, and an image picked by several goes
            to the one with the highest probability, the lower class on a tie; the others get no replacement). A class
            of probability 0 (log -inf) takes no image.
    """
    scores = {"argmax": _everything, "any": _picked}[candidates](log_probs, quota)
    label, score = scores.argmax(axis=1), scores.max(axis=1)
    order = np.lexsort((-score, label))  # stable, so the lower index wins a tie
    order = order[score[order] > -np.inf]
    kept = order[rank_in_group(label[order]) < quota[label[order]]]
    return Selection(kept, label[kept])


def _everything(log_probs: FloatArray, quota: IntArray) -> FloatArray:
    """Return the scores unchanged: every image is a candidate."""
    return log_probs


def _picked(log_probs: FloatArray, quota: IntArray) -> FloatArray:
    """Return the scores, with -inf where image x is not among the quota[c] best of class c."""
    scores = np.full_like(log_probs, -np.inf)
    for c in np.flatnonzero(quota):
        best = _best(log_probs[:, c], int(quota[c]))
        scores[best, c] = log_probs[best, c]
    return scores


def _best(scores: FloatArray, count: int) -> IntArray:
    """Return the indices of the `count` highest scores (ties: the lower index)."""
    if count >= len(scores):
        return np.arange(len(scores))
    lowest = np.partition(scores, -count)[-count]
    reaching = np.flatnonzero(scores >= lowest)  # more than `count` only if some are equal to the lowest
    return reaching[np.argsort(-scores[reaching], kind="stable")[:count]]


def rank_in_group(groups: IntArray) -> IntArray:
    """Return the rank of each element within its group, from 0; elements of a group are adjacent."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


class Corrections(NamedTuple):
    """Images of one client whose label an expert gave."""

    index: IntArray  # type: ignore[assignment]  # (t,) indices of this client's images, each once
    label: IntArray  # (t,)


NO_CORRECTIONS = Corrections(np.zeros(0, np.int64), np.zeros(0, np.int64))


def with_corrections(selection: Selection, corrections: Corrections) -> Selection:
    """Add the corrected images to a selection, before the others of their class; their pseudo labels are dropped.

    Corrections affect only the images to train on, neither quotas nor estimates.
    """
    if not len(corrections.index):
        return selection
    kept = ~np.isin(selection.index, corrections.index)
    index = np.concatenate([corrections.index, selection.index[kept]])
    label = np.concatenate([corrections.label, selection.label[kept]])
    order = np.argsort(label, kind="stable")
    if selection.candidates is None:
        return Selection(index[order], label[order])
    certain = np.eye(selection.candidates.shape[1], dtype=selection.candidates.dtype)[corrections.label]
    return Selection(index[order], label[order], np.concatenate([certain, selection.candidates[kept]])[order])
