"""Step 3, on the client: select the most confident images of each class, up to the quota.

Images that an expert at the site labelled come first; they are always trained on, with the expert's label.
"""

from typing import Literal, NamedTuple

import numpy as np

from . import BoolArray, FloatArray, IntArray

_Candidates = Literal["argmax", "any"]


class Selection(NamedTuple):
    """The images to train on, by class and then by confidence; an image with two labels is listed twice."""

    index: IntArray  # type: ignore[assignment]  # (m,) indices of this client's images; hides tuple.index
    label: IntArray  # (m,) their pseudo labels; with candidate sets, the classes for which they were selected
    candidates: BoolArray | FloatArray | None = None
    """(m, C) the candidate classes of each image, or soft targets; None: hard labels."""


def select(log_probs: FloatArray, quota: IntArray, candidates: _Candidates = "argmax") -> Selection:
    """Select at most quota[c] images of each class c, by class and then by confidence (ties: the lower index).

    Args:
        log_probs: The float64 log-softmax, (n, C), which still ranks images whose probabilities round to 1.
        quota: The maximum number of images of each class, (C,).
        candidates: "argmax": a class may take images predicted as that class. "any", as the paper literally says: each
            class takes the quota[c] best of all images; an image taken by several classes goes to the most probable of
            them (ties: the lower class), and the others get no replacement. In both, an image of probability 0
            (log -inf) is not taken.
    """
    scores = {"argmax": lambda log_probs, _: log_probs, "any": _best_of_each_class}[candidates](log_probs, quota)
    label, score = scores.argmax(axis=1), scores.max(axis=1)
    order = np.lexsort((-score, label))  # stable, so the lower index wins a tie
    order = order[score[order] > -np.inf]
    kept = order[rank_in_group(label[order]) < quota[label[order]]]
    return Selection(kept, label[kept])


def _best_of_each_class(log_probs: FloatArray, quota: IntArray) -> FloatArray:
    """Return the log-probabilities, (n, C), with -inf for images that are not among the quota[c] best of class c."""
    scores = np.full_like(log_probs, -np.inf)
    for c in np.flatnonzero(quota):
        best = np.argsort(-log_probs[:, c], kind="stable")[: quota[c]]  # ties: the lower index
        scores[best, c] = log_probs[best, c]
    return scores


def rank_in_group(groups: IntArray) -> IntArray:
    """Return the rank of each element within its group, from 0; elements of a group are adjacent."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


class Corrections(NamedTuple):
    """Images of one client that an expert labelled."""

    index: IntArray  # type: ignore[assignment]  # (t,) indices of this client's images, each once
    label: IntArray  # (t,) their classes


NO_CORRECTIONS = Corrections(np.zeros(0, np.int64), np.zeros(0, np.int64))


def with_corrections(selection: Selection, corrections: Corrections) -> Selection:
    """Add the corrected images to a selection, first in their class, and drop their pseudo labels.

    Corrections change the training set only, neither counts nor quotas.
    """
    if not len(corrections.index):
        return selection
    kept = ~np.isin(selection.index, corrections.index)
    index = np.concatenate([corrections.index, selection.index[kept]])
    label = np.concatenate([corrections.label, selection.label[kept]])
    order = np.argsort(label, kind="stable")
    if selection.candidates is None:
        return Selection(index[order], label[order])
    one_hot = np.eye(selection.candidates.shape[1], dtype=selection.candidates.dtype)[corrections.label]
    return Selection(index[order], label[order], np.concatenate([one_hot, selection.candidates[kept]])[order])
