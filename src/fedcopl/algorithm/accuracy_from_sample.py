"""How many labels are right, from the few that somebody looked at.

The images to look at are drawn in strata (predicted class, and within it the surer and the less sure half), each in
proportion to its size; so any beginning of the drawn order stands for all images.
"""

import math
from typing import NamedTuple

import numpy as np

from . import BoolArray, FloatArray, IntArray

Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval
LEAST = 5  # images looked at in a stratum before it counts by itself; smaller ones are joined


class AccuracyEstimate(NamedTuple):
    """The share of all images that is right, and the 95 % interval around it."""

    share: float
    low: float
    high: float
    looked_at: int
    right: int


def strata_of(label: IntArray, confidence: FloatArray) -> IntArray:
    """The stratum of each image, (n,): twice its predicted class, and one more in the surer half of that class."""
    order = np.lexsort((confidence, label))
    size = np.bincount(label, minlength=1)
    rank = np.empty(len(label), np.int64)
    rank[order] = np.arange(len(label)) - (np.cumsum(size) - size)[label[order]]
    return 2 * label + (2 * rank >= size[label])


def drawn_order(strata: IntArray, rng: np.random.Generator) -> IntArray:
    """All images in the order to look at them, (n,).

    Within a stratum of N_h images the order is random, and its j-th image gets the place (j + u_h) / N_h with a
    random u_h below 1: up to any place, every image has had the same chance, and every stratum its share.
    """
    shuffled = rng.permutation(len(strata))
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    grouped = strata[by_stratum]
    size = np.bincount(grouped, minlength=1)
    rank = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    position = (rank + rng.random(len(size))[grouped]) / size[grouped]
    drawn: IntArray = by_stratum[np.argsort(position, kind="stable")]
    return drawn


def estimate_share(strata: IntArray, looked_at: IntArray, right: BoolArray) -> AccuracyEstimate:
    """The share of right labels among all images, from the images `looked_at` (their places) that are `right` or not.

    p = sum_h W_h k_h / n_h with W_h = N_h / N, and Wilson's interval for as many images as the weighted ones are
    worth: n* = 1 / sum_h W_h^2 (N_h - n_h) / (N_h - 1) / n_h. Where all images were looked at, nothing is uncertain.
    """
    if len(looked_at) == 0:
        return AccuracyEstimate(math.nan, 0.0, 1.0, 0, 0)
    held, looked, found = _joined(strata, looked_at, right)
    weight = held / held.sum()
    share = float((weight * found / looked).sum())
    spread = float((weight**2 * (held - looked) / np.maximum(held - 1, 1) / looked).sum())
    return AccuracyEstimate(
        share, *wilson(share, 1 / spread if spread > 0 else math.inf), len(looked_at), int(right.sum())
    )


def wilson(share: float, images: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was found in so many independent images, a fraction of one or inf too."""
    if images == 0:
        return 0.0, 1.0
    shrink = Z95**2 / images
    middle = (share + shrink / 2) / (1 + shrink)
    half = math.sqrt(shrink * (share * (1 - share) + shrink / 4)) / (1 + shrink)
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def images_needed(share: float, images: int, half_width: float) -> int:
    """How many of all `images` to look at until the interval is at most so wide to either side, at this share."""
    low, high = 1, images
    while low < high:
        middle = (low + high) // 2
        bottom, top = wilson(share, _worth(middle, images))
        low, high = (low, middle) if top - bottom <= 2 * half_width else (middle + 1, high)
    return low


def _worth(looked_at: int, images: int) -> float:
    """n*, where all strata are one."""
    return math.inf if looked_at >= images else looked_at * (images - 1) / (images - looked_at)


def _joined(strata: IntArray, looked_at: IntArray, right: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """N_h, n_h and k_h. Neighbours are joined until LEAST of their images were looked at; the last take the rest."""
    kinds = int(strata.max()) + 1
    held = np.bincount(strata, minlength=kinds)
    looked = np.bincount(strata[looked_at], minlength=kinds)
    found = np.bincount(strata[looked_at[right]], minlength=kinds)
    seen = np.cumsum(looked) - looked
    starts = [0]
    for stratum in range(1, kinds):
        if seen[stratum] - seen[starts[-1]] >= LEAST and seen[-1] + looked[-1] - seen[stratum] >= LEAST:
            starts.append(stratum)
    held, looked, found = (np.add.reduceat(counts, starts) for counts in (held, looked, found))
    return held, looked, found
