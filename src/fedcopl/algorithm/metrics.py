"""Metrics of a run: accuracy, client drift and quality of the pseudo labels."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import BoolArray, FloatArray, IntArray

Score = tuple[int, int]  # correctly classified images, all test images


def macro_accuracy(scores: Sequence[Score]) -> float:
    """Return the unweighted mean accuracy over all clients with test images: the paper's accuracy."""
    shares = [correct / examples for correct, examples in scores if examples > 0]
    return math.fsum(shares) / len(shares)


def drift_diversity(updates: Sequence[NDArray[Any]]) -> float:
    """Return the diversity of the updates m_k = P_k^r - P^{r-1}: xi = sum_k |m_k|^2 / |sum_k m_k|^2.

    It is 1/K if all updates are equal (also if all are 0), 1 if they are orthogonal and of equal length, and infinite
    if their sum is 0.
    """
    if not updates:
        raise ValueError("drift needs at least one update")
    squares, square_of_sum = _squares(updates)
    if squares == 0:
        return 1 / len(updates)
    return squares / square_of_sum if square_of_sum > 0 else math.inf


def cosine_distance(updates: Sequence[NDArray[Any]]) -> float:
    """Return the mean of 1 - cos(m_i, m_j) over all pairs of clients.

    Zero updates have no direction and are left out; with fewer than two others the distance is 0.
    """
    norms = [float(np.linalg.norm(np.asarray(update, np.float64))) for update in updates]
    moved = sum(norm > 0 for norm in norms)
    if moved < 2:
        return 0.0
    directions = (
        np.asarray(update, np.float64) / norm for update, norm in zip(updates, norms, strict=True) if norm > 0
    )
    # |sum e|^2 = sum |e|^2 + 2 * (sum of cos over pairs), in linear time
    squares, square_of_sum = _squares(directions)
    return max(0.0, 1 - (square_of_sum - squares) / (moved * (moved - 1)))


def _squares(vectors: Iterable[NDArray[Any]]) -> tuple[float, float]:
    """Return sum |v|^2 and |sum v|^2, with one vector in memory at a time."""
    squares, total = 0.0, np.zeros(())
    for vector in vectors:
        vector = np.asarray(vector, np.float64)
        squares += float(np.vdot(vector, vector))
        total = total + vector
    return squares, float(np.vdot(total, total))


def label_accuracy(labels: IntArray, truth: IntArray) -> float | None:
    """Return the share of correct pseudo labels, (m,); None if m = 0."""
    return float(np.mean(labels == truth)) if len(labels) else None


def coverage(candidates: BoolArray, truth: IntArray) -> float | None:
    """Return the share of candidate sets, (m, C), that contain the true label, (m,); None if m = 0.

    Larger sets cover more, so read it with `mean_set_size`; it is not comparable with `label_accuracy`.
    """
    return float(np.mean(candidates[np.arange(len(truth)), truth])) if len(truth) else None


def mean_set_size(candidates: BoolArray) -> float | None:
    """Return the mean number of classes in the candidate sets, (m, C); None if m = 0."""
    return float(candidates.sum(axis=1).mean()) if len(candidates) else None


def distribution_similarity(counts_a: IntArray, counts_b: IntArray) -> float:
    """Return the cosine of two label histograms, both (C,): <a, b> / (|a| |b|).

    It is 1 if they are proportional and 0 if they have no class in common or one is empty.
    """
    a, b = np.asarray(counts_a, np.float64), np.asarray(counts_b, np.float64)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, float(a @ b) / norms) if norms > 0 else 0.0


def recall_per_class(predicted: IntArray, truth: IntArray, classes: int) -> FloatArray:
    """Return the recall of each class, (C,); nan for a class without images."""
    present = np.bincount(truth, minlength=classes)
    correct = np.bincount(truth[predicted == truth], minlength=classes)
    recall: FloatArray = np.divide(correct, present, out=np.full(classes, np.nan), where=present > 0)
    return recall
