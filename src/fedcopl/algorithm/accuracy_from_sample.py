"""The accuracy of labels, estimated from a stratified sample that an expert reviewed.

The strata are the more and the less confident half of each predicted class. Images are drawn from each stratum in
proportion to its size, so every prefix of the drawn order represents all images.
"""

import math
from typing import NamedTuple

import numpy as np

from . import BoolArray, FloatArray, IntArray

_Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval
_MIN_STRATUM = 5  # reviewed images of a stratum; strata with fewer are merged


class AccuracyEstimate(NamedTuple):
    """The share of images whose label is right, with its 95 % confidence interval."""

    share: float  # nan if no image was reviewed
    low: float
    high: float
    reviewed: int  # number of reviewed images
    right: int  # number of reviewed images whose label is right


def strata_of(label: IntArray, confidence: FloatArray) -> IntArray:
    """Return the stratum of each image, (n,): 2 c, or 2 c + 1 in the more confident half of its predicted class c."""
    order = np.lexsort((confidence, label))
    size = np.bincount(label, minlength=1)
    rank = np.empty(len(label), np.int64)
    rank[order] = np.arange(len(label)) - (np.cumsum(size) - size)[label[order]]
    return 2 * label + (2 * rank >= size[label])


def drawn_order(strata: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the indices of all images in the order of their review, (n,).

    The order within a stratum of N_h images is random. Its j-th image has the position (j + u_h) / N_h with a random
    u_h below 1, so every image has the same chance, and every stratum its share, up to any position.
    """
    shuffled = rng.permutation(len(strata))
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    grouped = strata[by_stratum]
    size = np.bincount(grouped, minlength=1)
    rank = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    position = (rank + rng.random(len(size))[grouped]) / size[grouped]
    drawn: IntArray = by_stratum[np.argsort(position, kind="stable")]
    return drawn


def estimate_share(strata: IntArray, index: IntArray, right: BoolArray) -> AccuracyEstimate:
    """Estimate the share of right labels among all images from the reviewed ones.

    With n_h reviewed images among the N_h of a stratum, k_h of them with the right label, and W_h = N_h / N, the share
    is p = sum_h W_h k_h / n_h, with Wilson's interval for the effective sample size
    n* = 1 / sum_h W_h^2 (N_h - n_h) / (N_h - 1) / n_h. If all images were reviewed, the interval has zero width.

    Args:
        strata: The stratum of each image, (n,).
        index: The indices of the reviewed images, (m,).
        right: Whether the label of each reviewed image is right, (m,).
    """
    if len(index) == 0:
        return AccuracyEstimate(math.nan, 0.0, 1.0, 0, 0)
    sizes, reviewed, correct = _merge_strata(strata, index, right)
    weight = sizes / sizes.sum()
    share = float((weight * correct / reviewed).sum())
    variance = float((weight**2 * (sizes - reviewed) / np.maximum(sizes - 1, 1) / reviewed).sum())
    low, high = _wilson(share, 1 / variance if variance > 0 else math.inf)
    return AccuracyEstimate(share, low, high, len(index), int(right.sum()))


def _wilson(share: float, images: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share among independent images, whose effective number need not be whole."""
    if images == 0:
        return 0.0, 1.0
    shrink = _Z95**2 / images
    middle = (share + shrink / 2) / (1 + shrink)
    half = math.sqrt(shrink * (share * (1 - share) + shrink / 4)) / (1 + shrink)
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def images_needed(share: float, images: int, half_width: float) -> int:
    """Return the least number of `images` to review for a 95 % interval around `share` of at most 2 `half_width`."""
    for reviewed in range(1, images):
        low, high = _wilson(share, reviewed * (images - 1) / (images - reviewed))  # n* of one stratum with all images
        if high - low <= 2 * half_width:
            return reviewed
    return images  # all reviewed: the width is 0


def _merge_strata(strata: IntArray, index: IntArray, right: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return N_h, n_h and k_h of strata, merged with their neighbours until each has _MIN_STRATUM reviewed images."""
    strata_count = int(strata.max()) + 1
    sizes = np.bincount(strata, minlength=strata_count)
    reviewed = np.bincount(strata[index], minlength=strata_count)
    correct = np.bincount(strata[index[right]], minlength=strata_count)
    reviewed_before = np.cumsum(reviewed) - reviewed
    starts = [0]
    for stratum in range(1, strata_count):
        if (
            reviewed_before[stratum] - reviewed_before[starts[-1]] >= _MIN_STRATUM
            and reviewed_before[-1] + reviewed[-1] - reviewed_before[stratum] >= _MIN_STRATUM
        ):
            starts.append(stratum)
    sizes, reviewed, correct = (np.add.reduceat(counts, starts) for counts in (sizes, reviewed, correct))
    return sizes, reviewed, correct
