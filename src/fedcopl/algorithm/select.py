"""Step 3, on the client: keep the surest images of each class, as many as the quota allows.

What a site's own expert said comes first: those images are always trained on, with the label that was given.
"""

from typing import Literal, NamedTuple

import numpy as np

from . import BoolArray, FloatArray, IntArray

Candidates = Literal["argmax", "any"]


class Selection(NamedTuple):
    """The images to train on, by class and then surest first; a rule that gives an image two labels lists it twice."""

    index: IntArray  # type: ignore[assignment]  # (m,) positions among this client's images; hides tuple.index
    label: IntArray  # (m,) the pseudo-label of each; with candidate sets, the class in whose pool it ended
    candidates: BoolArray | FloatArray | None = None
    """(m, C) the classes each may have, or how likely each of them is; None where the label is the answer."""


def select(log_probs: FloatArray, quota: IntArray, candidates: Candidates = "argmax") -> Selection:
    """At most quota[c] images of each class c, by class and then surest first (ties: lower index).

    log_probs is (n, C), the float64 log-softmax: where probabilities round to 1, their logarithms still rank.
    candidates says which images a class may take: those predicted as that class ("argmax"), or all ("any",
    the paper to the letter: each class picks its quota[c] best of all images, and an image picked by
    several goes to the one with the highest probability, the lower class on a tie; the others
    get no replacement). A class of probability 0 (log -inf) takes no image.
    """
    scores = {"argmax": _everything, "any": _picked}[candidates](log_probs, quota)
    label, score = scores.argmax(axis=1), scores.max(axis=1)
    order = np.lexsort((-score, label))  # stable, so the lower index wins a tie
    order = order[score[order] > -np.inf]
    kept = order[rank_in_group(label[order]) < quota[label[order]]]
    return Selection(kept, label[kept])


def _everything(log_probs: FloatArray, quota: IntArray) -> FloatArray:
    """Every image is a candidate, with the scores it has."""
    return log_probs


def _picked(log_probs: FloatArray, quota: IntArray) -> FloatArray:
    """The scores, and -inf where image x is not among the quota[c] best of class c."""
    scores = np.full_like(log_probs, -np.inf)
    for c in np.flatnonzero(quota):
        best = _best(log_probs[:, c], int(quota[c]))
        scores[best, c] = log_probs[best, c]
    return scores


def _best(scores: FloatArray, wanted: int) -> IntArray:
    """The positions of the `wanted` highest scores, the lower index on a tie."""
    if wanted >= len(scores):
        return np.arange(len(scores))
    lowest = np.partition(scores, -wanted)[-wanted]
    reaching = np.flatnonzero(scores >= lowest)  # more than wanted only if some are equal to the lowest
    return reaching[np.argsort(-scores[reaching], kind="stable")[:wanted]]


def rank_in_group(groups: IntArray) -> IntArray:
    """The place of each element within its group, from 0; equal groups lie next to each other, in order."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


class Corrections(NamedTuple):
    """Images of one client whose label an expert gave."""

    index: IntArray  # type: ignore[assignment]  # (t,) positions among this client's images, each once
    label: IntArray  # (t,)


NO_CORRECTIONS = Corrections(np.zeros(0, np.int64), np.zeros(0, np.int64))


def with_corrections(selection: Selection, corrections: Corrections) -> Selection:
    """The selection with the told images in it, first in their class, and with no other label.

    Quotas do not count them, and neither do the estimates: only what is trained on changes.
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
