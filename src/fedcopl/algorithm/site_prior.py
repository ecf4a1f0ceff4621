"""The site prior, at home: in what mix do the classes occur here? It is never sent.

Expectation maximisation for label shift (Saerens et al., 2002) with a Dirichlet prior of strength a around the mix t
of all sites: with w_i(c) = p_i(c) e^{b_c}, which is how likely image i is in class c up to a factor of its own,

    q_i(c) = pi_c w_i(c) / sum_j pi_j w_i(j),        pi_c = (sum_i q_i(c) + a n t_c) / (n + a n).

The likelihood is concave in pi, so this climbs to the one maximum there is. How strong a should be is decided by the
images themselves: by how likely some of them are under the mix that the others give.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from . import BoolArray, FloatArray
from .balance import adapted

STRENGTHS = (math.inf, 3.0, 1.0, 0.3, 0.1, 0.03, 0.0)  # tried from the most cautious on: the first wins a tie
FOLDS = 5
ITERATIONS = 500
TOLERANCE = 1e-5  # of any class's share, in one iteration
CLEARLY = 0.5  # of log-likelihood: that much worse than the best so far
SMALLEST = 1e-9  # share of a class, so that what was ruled out here can still be answered


@dataclass(frozen=True)
class SitePrior:
    """What one site believes of its own mix."""

    mix: FloatArray  # pi, (C,)
    strength: float  # a; infinite: the mix of all sites is kept
    evidence: float  # sum over its images of log p(held out | pi of the others) / p(held out | t); 0 if a is infinite


def fit_site_prior(log_probs: FloatArray, bias: FloatArray, around: FloatArray) -> SitePrior:
    """pi with the strength that predicts held-out images best; `around` is the mix t of all sites."""
    return fit_site_priors(likelihood_ratios(log_probs, bias, around)[None], around[None])[0]


def fit_site_priors(ratios: FloatArray, around: FloatArray) -> list[SitePrior]:
    """The same under several readings at once, (J, n, C) and (J, C): small sites would only wait for Python."""
    return fit_priors_of_sites(ratios[None], around)[0]


def fit_priors_of_sites(ratios: FloatArray, around: FloatArray) -> list[list[SitePrior]]:
    """The same for several sites of equally many images, (K, J, n, C): each has the bits that it has alone."""
    found = evidence_of_sites(ratios, around)
    strengths = np.array(STRENGTHS)[found.argmax(axis=2)]
    mixes = np.array(
        _everywhere(around, len(ratios), 1)[:, :, 0], order="C"
    )  # whoever stores a row wants it in one piece
    is_own = ~np.isinf(strengths).all(axis=1)
    if is_own.any():
        ratios, start = ratios[is_own], _everywhere(around, int(is_own.sum()), 1)
        everything = np.ones((1, ratios.shape[2]))
        mixes[is_own] = _mixes(ratios, everything, around, strengths[is_own], start)[:, :, 0]
    return [_priors(*site) for site in zip(mixes, strengths, found, strict=True)]


def _priors(mixes: FloatArray, strengths: FloatArray, evidence: FloatArray) -> list[SitePrior]:
    """Of one site, reading by reading."""
    best = evidence.argmax(axis=1)
    return [
        SitePrior(mix, float(strength), float(known[chosen]))
        for mix, strength, known, chosen in zip(mixes, strengths, evidence, best, strict=True)
    ]


def likelihood_ratios(log_probs: FloatArray, bias: FloatArray, around: FloatArray) -> FloatArray:
    """p(x_i | c) / p(x_i) over all sites, (n, C): the posterior there over the mix there."""
    ratios: FloatArray = np.exp(adapted(log_probs, bias, around)) / around
    return ratios


def site_mix(ratios: FloatArray, around: FloatArray, strength: float) -> FloatArray:
    """pi by expectation maximisation, (C,); without an image, or with infinite strength, it is `around`."""
    everything, strengths = np.ones((1, len(ratios))), np.array([[strength]])
    mixes = _mixes(ratios[None, None], everything, around[None], strengths, _everywhere(around[None], 1, 1))
    mix: FloatArray = mixes[0, 0, 0]
    return mix


def _everywhere(around: FloatArray, sites: int, choices: int) -> FloatArray:
    """(J, C) for every site and every choice of images, (K, J, F, C)."""
    return np.broadcast_to(around[None, :, None], (sites, len(around), choices, around.shape[1]))


def _mixes(
    ratios: FloatArray,
    counted: FloatArray,
    around: FloatArray,
    strengths: FloatArray,
    start: FloatArray,
) -> FloatArray:
    """pi of K sites under J readings, each of F choices of images, (K, J, F, C).

    `counted` is 1 for an image of a choice, (F, n). Wherever it starts it ends at the same mix, only sooner if that is
    near. A site goes on under a reading until the last of its choices is there, whatever other sites and readings do.
    """
    center = _everywhere(around, len(ratios), len(counted))
    is_kept = np.isinf(strengths)
    if not counted.sum(axis=1).all() or is_kept.all():
        return center
    pull = np.where(is_kept, 0.0, strengths)[:, :, None, None]
    each = (_by_reading(array) for array in (ratios, center, pull, start))
    mix = _climbed(counted, *each).reshape(start.shape)
    held = np.maximum(mix, SMALLEST)
    shares: FloatArray = held / held.sum(axis=3, keepdims=True)
    return np.where(is_kept[:, :, None, None], center, shares)


def _by_reading(array: FloatArray) -> FloatArray:
    """Every site under every reading by itself, (K J, ...), in one piece of memory."""
    return np.ascontiguousarray(array).reshape(-1, *array.shape[2:])


def _climbed(
    counted: FloatArray, ratios: FloatArray, center: FloatArray, pull: FloatArray, start: FloatArray
) -> FloatArray:
    """The mixes after expectation maximisation, (K, F, C), before any is kept from vanishing.

    Products and sums of an array may have other bits in another layout in memory. So no intermediate is without a name
    of its own, or numpy would write the next one into a large one, and whoever is left over is copied as it lay.
    """
    images = counted.sum(axis=1)
    reached: FloatArray | None = None
    left, mix = np.arange(len(start)), start
    for _ in range(ITERATIONS):
        seen = counted.T / np.maximum(ratios @ mix.swapaxes(1, 2), SMALLEST)
        held = mix * (ratios.swapaxes(1, 2) @ seen).swapaxes(1, 2)
        share, drawn = held / images[:, None], pull * center
        total = share + drawn
        before, mix = mix, total / (1 + pull)
        reached = np.empty_like(mix, shape=start.shape) if reached is None else reached
        is_there = abs(mix - before).max(axis=(1, 2)) < TOLERANCE
        if is_there.any():
            reached[left[is_there]] = mix[is_there]
            left, (ratios, center, pull, mix) = left[~is_there], _some((ratios, center, pull, mix), ~is_there)
        if not len(left):
            break
    assert reached is not None
    reached[left] = mix
    return reached


def _some(arrays: tuple[FloatArray, ...], rows: BoolArray) -> Iterator[FloatArray]:
    """Some rows of each, in the same layout in memory."""
    for array in arrays:
        same = np.empty_like(array, shape=(int(rows.sum()), *array.shape[1:]))
        same[...] = array[rows]
        yield same


def held_out_evidence(ratios: FloatArray, around: FloatArray) -> FloatArray:
    """For each of STRENGTHS the log-likelihood of all images, each under the mix found without its fold, (J, 7).

    -inf for those that need not be tried: along the way from the most cautious to the boldest it rises, then it falls.

    Image i is in fold i mod FOLDS: no random numbers, and every fold sees all of an order by class or date.
    """
    found: FloatArray = evidence_of_sites(ratios[None], around)[0]
    return found


def evidence_of_sites(ratios: FloatArray, around: FloatArray) -> FloatArray:
    """The same of several sites, (K, J, 7)."""
    sites, readings, images, _ = ratios.shape
    if images < 2:  # nothing is left to find a mix by
        return np.zeros((sites, readings, len(STRENGTHS)))
    fold = np.arange(images) % min(FOLDS, images)
    others = (fold != np.arange(fold.max() + 1)[:, None]).astype(float)
    evidence = np.full((sites, readings, len(STRENGTHS)), -np.inf)
    mixes, going_on = _everywhere(around, sites, len(others)), np.arange(sites)
    for number, strength in enumerate(STRENGTHS):
        mixes = _mixes(ratios, others, around, np.full((len(ratios), readings), strength), mixes)
        likely = (ratios @ mixes.swapaxes(2, 3))[:, :, np.arange(images), fold]
        evidence[going_on, :, number] = np.log(np.ascontiguousarray(likely)).sum(axis=2)
        rises = ~is_past_the_best(evidence[going_on, :, : number + 1])
        if not rises.any():
            break
        if not rises.all():
            going_on, (ratios, mixes) = going_on[rises], _some((ratios, mixes), rises)
    return evidence


def is_past_the_best(evidence: FloatArray) -> BoolArray:
    """Which sites have clearly been better under every reading, and got worse twice; `evidence` is (K, J, tried).

    Weaker strengths take longest to find: they need no longer be tried.

    >>> is_past_the_best(np.array([[[0.0, 2.0, 1.5, 1.0]], [[0.0, 2.0, 1.0, 1.9]]]))
    array([ True, False])
    """
    if evidence.shape[2] < 3:
        return np.zeros(len(evidence), bool)
    is_falling = (np.diff(evidence[:, :, -3:], axis=2) < 0).all(axis=2)
    past: BoolArray = (is_falling & (evidence[:, :, -1] < evidence.max(axis=2) - CLEARLY)).all(axis=1)
    return past
