"""The site prior, at home: in what mix do the classes occur here? It is never sent.

Expectation maximisation for label shift (Saerens et al., 2002) with a Dirichlet prior of strength a around the mix t
of all sites: with w_i(c) = p_i(c) e^{b_c}, which is how likely image i is in class c up to a factor of its own,

    q_i(c) = pi_c w_i(c) / sum_j pi_j w_i(j),        pi_c = (sum_i q_i(c) + a n t_c) / (n + a n).

The likelihood is concave in pi, so this climbs to the one maximum there is. How strong a should be is decided by the
images themselves: by how likely some of them are under the mix that the others give.
"""

import math
from dataclasses import dataclass

import numpy as np

from . import FloatArray
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
    evidence = held_out_evidence(ratios, around)
    best = evidence.argmax(axis=1)
    strengths = np.array(STRENGTHS)[best]
    mixes = _mixes(ratios, np.ones((1, ratios.shape[1])), around, strengths, around[:, None])[:, 0]
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
    everything = np.ones((1, len(ratios)))
    mixes = _mixes(ratios[None], everything, around[None], np.array([strength]), around[None, None])
    mix: FloatArray = mixes[0, 0]
    return mix


def _mixes(
    ratios: FloatArray,
    counted: FloatArray,
    around: FloatArray,
    strengths: FloatArray,
    start: FloatArray,
) -> FloatArray:
    """pi under J readings, each of F choices of images, (J, F, C): `counted` is 1 for an image of a choice, (F, n).

    Wherever it starts it ends at the same mix, only sooner if that is near. They all go on until the last is there.
    """
    images = counted.sum(axis=1)
    center = np.broadcast_to(around[:, None], (len(ratios), len(counted), around.shape[1]))
    if not images.all() or np.isinf(strengths).all():
        return center
    pull = np.where(np.isinf(strengths), 0.0, strengths)[:, None, None]
    columns, mix = ratios.swapaxes(1, 2), start
    for _ in range(ITERATIONS):
        seen = counted.T / np.maximum(ratios @ mix.swapaxes(1, 2), SMALLEST)
        held = mix * (columns @ seen).swapaxes(1, 2)
        before, mix = mix, (held / images[:, None] + pull * center) / (1 + pull)
        if abs(mix - before).max() < TOLERANCE:
            break
    held = np.maximum(mix, SMALLEST)
    shares: FloatArray = held / held.sum(axis=2, keepdims=True)
    return np.where(np.isinf(strengths)[:, None, None], center, shares)


def held_out_evidence(ratios: FloatArray, around: FloatArray) -> FloatArray:
    """For each of STRENGTHS the log-likelihood of all images, each under the mix found without its fold, (J, 7).

    -inf for those that need not be tried: along the way from the most cautious to the boldest it rises, then it falls.

    Image i is in fold i mod FOLDS: no random numbers, and every fold sees all of an order by class or date.
    """
    readings, images, _ = ratios.shape
    if images < 2:  # nothing is left to find a mix by
        return np.zeros((readings, len(STRENGTHS)))
    fold = np.arange(images) % min(FOLDS, images)
    others = (fold != np.arange(fold.max() + 1)[:, None]).astype(float)
    mixes = np.broadcast_to(around[:, None], (readings, len(others), around.shape[1]))
    evidence = np.full((readings, len(STRENGTHS)), -np.inf)
    for number, strength in enumerate(STRENGTHS):
        mixes = _mixes(ratios, others, around, np.full(readings, strength), mixes)
        likely = (ratios @ mixes.swapaxes(1, 2))[:, np.arange(images), fold]
        evidence[:, number] = np.log(likely).sum(axis=1)
        if is_past_the_best(evidence[:, : number + 1]):
            break
    return evidence


def is_past_the_best(evidence: FloatArray) -> bool:
    """Whether under every reading it has clearly been better, and got worse twice: weaker ones take longest to find.

    >>> is_past_the_best(np.array([[0.0, 2.0, 1.5, 1.0]])), is_past_the_best(np.array([[0.0, 2.0, 1.0, 1.9]]))
    (True, False)
    """
    if evidence.shape[1] < 3:
        return False
    is_falling = (np.diff(evidence[:, -3:], axis=1) < 0).all(axis=1)
    return bool((is_falling & (evidence[:, -1] < evidence.max(axis=1) - CLEARLY)).all())
