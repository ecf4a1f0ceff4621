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
SMALLEST = 1e-9  # share of a class, so that what was ruled out here can still be answered


@dataclass(frozen=True)
class SitePrior:
    """What one site believes of its own mix."""

    mix: FloatArray  # pi, (C,)
    strength: float  # a; infinite: the mix of all sites is kept
    evidence: float  # sum over its images of log p(held out | pi of the others) / p(held out | t); 0 if a is infinite


def fit_site_prior(log_probs: FloatArray, bias: FloatArray, around: FloatArray) -> SitePrior:
    """pi with the strength that predicts held-out images best; `around` is the mix t of all sites."""
    ratios = likelihood_ratios(log_probs, bias, around)
    evidence = held_out_evidence(ratios, around)
    best = int(evidence.argmax())
    return SitePrior(site_mix(ratios, around, STRENGTHS[best]), STRENGTHS[best], float(evidence[best]))


def likelihood_ratios(log_probs: FloatArray, bias: FloatArray, around: FloatArray) -> FloatArray:
    """p(x_i | c) / p(x_i) over all sites, (n, C): the posterior there over the mix there."""
    ratios: FloatArray = np.exp(adapted(log_probs, bias, around)) / around
    return ratios


def site_mix(ratios: FloatArray, around: FloatArray, strength: float, start: FloatArray | None = None) -> FloatArray:
    """pi by expectation maximisation, (C,); without an image, or with infinite strength, it is `around`.

    Wherever it starts it ends at the same mix, only sooner if that is near.
    """
    images = len(ratios)
    if images == 0 or math.isinf(strength):
        return around
    mix = around if start is None else start
    for _ in range(ITERATIONS):
        held = mix * (ratios.T @ (1 / np.maximum(ratios @ mix, SMALLEST)))
        before, mix = mix, (held / images + strength * around) / (1 + strength)
        if abs(mix - before).max() < TOLERANCE:
            break
    held = np.maximum(mix, SMALLEST)
    shares: FloatArray = held / held.sum()
    return shares


def held_out_evidence(ratios: FloatArray, around: FloatArray) -> FloatArray:
    """For each of STRENGTHS the log-likelihood of all images, each under the mix found without its fold.

    Image i is in fold i mod FOLDS: no random numbers, and every fold sees all of an order by class or date.
    """
    fold = np.arange(len(ratios)) % min(FOLDS, max(len(ratios), 1))
    evidence = np.zeros(len(STRENGTHS))
    for held_out in (fold == f for f in range(int(fold.max(initial=-1)) + 1)):
        mix = around
        for number, strength in enumerate(STRENGTHS):
            mix = site_mix(ratios[~held_out], around, strength, mix)
            evidence[number] += np.log(ratios[held_out] @ mix).sum()
    return evidence
