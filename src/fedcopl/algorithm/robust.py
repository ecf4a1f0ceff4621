"""Robust aggregation: averages that a few Byzantine clients cannot steer, and limits relative to the other clients.

The rules; all but `mean` give every client the same weight, whatever number of images it reports:

    mean      Eq. 4, weighted by images: one Byzantine client can move it anywhere
    trimmed   the elementwise mean without the highest and lowest fifth, at least one each (Yin et al., 2018)
    median    the elementwise median (Yin et al., 2018)
    krum      the update with the smallest distances to its nearest others (Blanchard et al., 2017)

With one or two clients the outlier cannot be identified: each rule is the mean, and nothing is clipped.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import BoolArray, FloatArray, IntArray
from .aggregate import NamedArrays, flattened, weighted_mean

_RobustRule = Literal["mean", "trimmed", "median", "krum"]
MIN_CLIENTS = 3  # clients; with fewer, no outlier can be identified
_TRIMMED = 0.2  # share of the clients that is trimmed on each side
_MAX_RATIO = 10.0  # of an update or a weight to the median of the other clients
_MIN_COMPARED = 5  # clients, to compare their class means, responses and evidence
_MIN_CLASSES, _MIN_CLASS = 2, 5.0  # least number of compared classes of a client, and of images in each
_MIN_FIT, _MAX_RATIO_TO_NEAREST = 0.1, 2.0  # in the demo, swapped classes fit at most 0.06 and have ratios from 2.9
_RESPONSE_SLACK = 1e-6  # share of a client's images, for rounding errors
_MIN_RESPONSE = 0.02  # least change of a client's sums with the logit bias, relative to the median over clients
_MAX_RANGES = 2.0  # ranges outside the others' evidence; with 1.0 a third of the honest clients of the demo are clipped
_MIN_LIMIT = 3.0  # of an update, in norms of the sent array: with good priors most updates are tiny


def robust_mean(rule: _RobustRule, parts: Sequence[NamedArrays], weights: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Aggregate the clients' named arrays; the weights, numbers of images, are used by `mean` only."""
    if rule == "mean" or len(parts) < MIN_CLIENTS or not parts[0]:
        return weighted_mean(parts, weights)
    if rule == "krum":
        return dict(parts[_nearest_to_others([flattened(part) for part in parts])])
    stacks = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    if rule == "median":
        return {name: np.median(stack.astype(np.float64), axis=0).astype(stack.dtype) for name, stack in stacks.items()}
    trimmed = _trim_count(len(parts))
    return {
        name: np.sort(stack.astype(np.float64), axis=0)[trimmed:-trimmed].mean(axis=0).astype(stack.dtype)
        for name, stack in stacks.items()
    }


def _trim_count(clients: int) -> int:
    """Return the number of values trimmed on each side.

    >>> [_trim_count(clients) for clients in (2, 3, 5, 10, 20)]
    [0, 1, 1, 2, 4]
    """
    return 0 if clients < MIN_CLIENTS else max(1, int(_TRIMMED * clients))


def _nearest_to_others(updates: Sequence[FloatArray]) -> int:
    """Return the client chosen by Krum: smallest sum of squared distances to its n - f - 2 nearest, f = (n - 3) // 2.

    Ties are broken by the sorted distances, then by the values.
    """
    rows = np.stack(updates)
    squared = [((rows - row) ** 2).sum(axis=1) for row in rows]
    neighbours = len(rows) - max(0, (len(rows) - 3) // 2) - 2
    ordered = [np.sort(np.delete(row, number)) for number, row in enumerate(squared)]
    return min(
        range(len(rows)), key=lambda number: (ordered[number][:neighbours].sum(), *ordered[number], *rows[number])
    )


def bounded_weights(weights: Sequence[int]) -> list[int]:
    """Clip each weight to _MAX_RATIO times the median of the other non-zero weights.

    >>> bounded_weights([5, 10, 100]), bounded_weights([5, 10, 10**9]), bounded_weights([1, 99])
    ([5, 10, 75], [5, 10, 75], [1, 99])
    """
    limits = _limits(np.array(weights, np.float64))
    return [int(min(weight, limit)) for weight, limit in zip(weights, limits, strict=True)]


def bounded_counts(counts: IntArray) -> IntArray:
    """Scale down each client's counts, (K, C), whose sum exceeds its bounded weight; they are rounded down."""
    sizes = np.abs(counts).sum(axis=1).tolist()
    rows = zip(counts, sizes, bounded_weights(sizes), strict=True)
    return np.stack([row if limit == size else row * limit // size for row, size, limit in rows])


def update_excess(parts: Sequence[NamedArrays], start: NamedArrays) -> list[dict[str, float]]:
    """Return the length of each client's update of each array, divided by the maximum length; above 1 it is too long.

    The maximum is _MAX_RATIO times the median length of the other clients' non-zero updates, or _MIN_LIMIT times the
    norm of the array in `start` if that is more.
    """
    excess: list[dict[str, float]] = [{} for _ in parts]
    for name, value in start.items():
        origin = value.astype(np.float64)
        lengths = np.array([float(np.linalg.norm(part[name].astype(np.float64) - origin)) for part in parts])
        maximum = np.maximum(_limits(lengths), _MIN_LIMIT * float(np.linalg.norm(origin)))
        for client_excess, ratio in zip(excess, (lengths / maximum).tolist(), strict=True):
            client_excess[name] = ratio
    return excess


def clip_update(part: NamedArrays, start: NamedArrays, excess: Mapping[str, float]) -> NamedArrays:
    """Clip a client's updates to the maximum lengths; returns the same object if none is too long."""
    if max(excess.values(), default=0.0) <= 1:
        return part
    return {name: _shortened(value, start[name], excess[name]) for name, value in part.items()}


def swapped_classes(sums: FloatArray) -> list[int]:
    """Return the clients whose class means are closer to other classes, by the medians of the other clients' means.

    The most obvious client is left out of the medians before the others are compared again. No client is returned if
    half of them would be, or if there are fewer than _MIN_COMPARED: then the Byzantine ones cannot be identified.

    Args:
        sums: (K, J, C, 1 + d): N_c and S_c of each client under each of J models; all models have to agree.
    """
    swapped: list[int] = []
    while len(sums) >= _MIN_COMPARED and 2 * len(swapped) < len(sums):
        remaining = [client for client in range(len(sums)) if client not in swapped]
        ratios = np.min([_distance_ratios(sums[remaining, model]) for model in range(sums.shape[1])], axis=0)
        worst = int(np.argmax(ratios))
        if ratios[worst] < _MAX_RATIO_TO_NEAREST:
            return sorted(swapped)
        swapped.append(remaining[worst])
    return []


def _distance_ratios(sums: FloatArray) -> FloatArray:
    """Return each client's ratio, (K,), of the distances of its class means to their own and to the nearest class.

    A class is represented by the median of the other clients' means. Distances are squared and weighted by images. The
    ratio is 1 if class means of a tenth of the images or more are nearest to their own class, or if too few classes
    have _MIN_CLASS images: by chance a small one resembles another.

    Args:
        sums: (K, C, 1 + d): N_c and S_c of each client.
    """
    counts, means = sums[..., 0], sums[..., 1:] / np.maximum(sums[..., :1], 1e-9)
    has_class = counts >= _MIN_CLASS
    classes = range(counts.shape[1])
    # (K, C, C): from each class mean of a client to the median of each class over the other clients
    distances = np.stack([_distances_to_median(means, means[:, c], has_class[:, c]) for c in classes], axis=2)
    to_own, to_nearest = distances[:, classes, classes], distances.min(axis=2)
    compared = has_class & np.isfinite(to_own)
    weights = np.where(compared, counts, 0.0)
    fits = (weights * (to_own == to_nearest)).sum(axis=1) >= _MIN_FIT * weights.sum(axis=1)
    own_sum, nearest_sum = ((weights * np.where(compared, to, 0.0)).sum(axis=1) for to in (to_own, to_nearest))
    too_few = compared.sum(axis=1) < _MIN_CLASSES
    return np.where(fits | too_few, 1.0, own_sum / np.maximum(nearest_sum, 1e-12))


def _distances_to_median(means: FloatArray, one_class: FloatArray, has_class: BoolArray) -> FloatArray:
    """Return the squared distances, (K, C), from each client's class means, (K, C, d), to the median of one class.

    For each client it is the coordinate-wise median of the other clients' means of that class. The distances are inf if
    no other client has images of the class.

    Args:
        means: The means of all classes at each client, (K, C, d).
        one_class: The means of the one class, (K, d).
        has_class: Whether each client has images of the one class, (K,).
    """
    ordered, number = np.sort(one_class[has_class], axis=0), int(has_class.sum())
    medians = np.full(one_class.shape, np.inf)
    if number:
        medians[~has_class] = np.median(ordered, axis=0)
    if number > 1:  # the median of all but one, from the sorted values: sorting once for each client would take K^2
        ranks = one_class[has_class].argsort(axis=0, kind="stable").argsort(axis=0)
        low, high = (np.where(ranks <= middle, middle + 1, middle) for middle in ((number - 2) // 2, (number - 1) // 2))
        medians[has_class] = (np.take_along_axis(ordered, low, axis=0) + np.take_along_axis(ordered, high, axis=0)) / 2
    distances: FloatArray = ((means - medians[:, None]) ** 2).sum(axis=2)
    return distances


def inconsistent_posterior_sums(biases: FloatArray, sums: FloatArray) -> list[int]:
    """Return the clients whose posterior sums under different logit biases no set of images can have.

    The sums N of softmax(z_i + b) over images are the gradient of a convex function of b, so (b - b') . (N - N') >= 0
    for any two biases. No posterior changes by a larger factor than the bias allows: N_c lies between N'_c times
    exp(b_c - b'_c - max) and N'_c times exp(b_c - b'_c - min), with the extremes of b - b' over all classes. A client
    whose sums hardly change while those of the others do is returned, too. No client is returned if half or more of
    at least MIN_CLIENTS would be.

    Args:
        biases: (M, C), logit bias plus log class prior of M models that are otherwise equal.
        sums: (K, M, C), of each client.
    """
    sizes = np.maximum(sums.sum(axis=2).max(axis=1), 1e-9)
    inconsistent = np.zeros(len(sums), bool)
    response = np.zeros(len(sums))  # largest change of each client's sums between two biases, relative to its images
    for i, j in zip(*np.triu_indices(len(biases), 1), strict=True):  # all pairs of biases
        bias_change, change = biases[i] - biases[j], sums[:, i] - sums[:, j]
        slack = _RESPONSE_SLACK * sizes[:, None]
        inconsistent |= change @ bias_change < -slack[:, 0] * (1 + np.ptp(bias_change))
        inconsistent |= (sums[:, i] > sums[:, j] * np.exp(bias_change - bias_change.min()) + slack).any(axis=1)
        inconsistent |= (sums[:, i] < sums[:, j] * np.exp(bias_change - bias_change.max()) - slack).any(axis=1)
        response = np.maximum(response, np.abs(change).sum(axis=1) / sizes)
    if len(sums) >= _MIN_COMPARED:
        inconsistent |= response < _MIN_RESPONSE * np.median(response)
    return [] if 2 * inconsistent.sum() >= len(sums) >= MIN_CLIENTS else np.flatnonzero(inconsistent).tolist()


def clip_evidence(values: FloatArray) -> FloatArray:
    """Clip each client's evidence per image, (K, ...), to the others' range, widened by _MAX_RANGES times its width.

    The range leaves out the highest and lowest `_trim_count` - 1 values, so that `_trim_count` Byzantine clients cannot
    support each other. With fewer than _MIN_COMPARED clients nothing is clipped.
    """
    if len(values) < _MIN_COMPARED:
        return values
    trimmed = _trim_count(len(values))
    ordered = np.sort(values, axis=0)  # the others' range starts one place later for a client that is itself extreme
    low = np.where(values <= ordered[trimmed - 1], ordered[trimmed], ordered[trimmed - 1])
    high = np.where(values >= ordered[-trimmed], ordered[-trimmed - 1], ordered[-trimmed])
    margin = _MAX_RANGES * (high - low)
    clipped: FloatArray = np.clip(values, low - margin, high + margin)
    return clipped


def trimmed_total(values: Sequence[float]) -> float:
    """Return the sum without the `_trim_count` highest and lowest values, so that no single client determines it."""
    trimmed = _trim_count(len(values))
    return float(sum(sorted(values)[trimmed : len(values) - trimmed]))


def _limits(sizes: FloatArray) -> FloatArray:
    """Return _MAX_RATIO times the median of the other clients' non-zero sizes, (K,); inf for fewer than two of them."""
    nonzero = sizes > 0
    ordered, count = np.sort(sizes[nonzero]), int(nonzero.sum())
    limits = np.full(len(sizes), np.inf)
    if count + 1 >= MIN_CLIENTS:
        limits[~nonzero] = _MAX_RATIO * np.median(ordered)
    if count >= MIN_CLIENTS:
        rank = np.searchsorted(ordered, sizes[nonzero])  # of equal sizes, any one may be left out
        below, above = (count - 2) // 2, (count - 1) // 2  # positions of the median among the others
        medians = (ordered[below + (below >= rank)] + ordered[above + (above >= rank)]) / 2
        limits[nonzero] = _MAX_RATIO * medians
    return limits


def _shortened(value: NDArray[Any], start: NDArray[Any], excess: float) -> NDArray[Any]:
    """Return a trained array with its update, the difference from `start`, divided by `excess` if that is above 1."""
    if excess <= 1:
        return value
    origin = start.astype(np.float64)
    clipped: NDArray[Any] = (origin + (value.astype(np.float64) - origin) / excess).astype(value.dtype)
    return clipped
