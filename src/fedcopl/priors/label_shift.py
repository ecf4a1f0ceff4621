"""Label-shift estimation: a client's class prior without labels, and the evidence for it."""

import math

import numpy as np

from ..algorithm import FloatArray
from .posterior import TINY

STRENGTHS = (math.inf, 1.0, 0.3, 0.1, 0.03, 0.0)  # grid for the common prior's strength, in units of n_k
FOLDS = 5  # of a client's images, for held-out evidence
STEPS, TOLERANCE = 100, 1e-4  # of EM
_MIN_SHARE = 1e-9  # least share of a class in a client's class prior


def label_shift(
    ratios: FloatArray,
    class_prior: FloatArray,
    strength: float,
    mask: FloatArray | None = None,
    start: FloatArray | None = None,
) -> FloatArray:
    """Estimate a class prior by EM (Saerens et al., 2002), with `strength` times n pseudo-counts from the common prior.

    Args:
        ratios: p(x | c) / p(x), (n, C).
        class_prior: The common class prior, (C,).
        strength: The weight of the common prior, in units of n; inf returns the common prior.
        mask: 1 for the images used in each of F fits, else 0, (F, n); None: one fit to all images.
        start: Initial values, (F, C); None: the common prior.

    Returns:
        The class prior, (C,), or (F, C) if `mask` is given.
    """
    masks = np.ones((1, len(ratios))) if mask is None else mask
    pi = np.tile(class_prior, (len(masks), 1)) if start is None else start
    for _ in range(0 if math.isinf(strength) or not len(ratios) else STEPS):
        weights = masks / np.maximum(pi @ ratios.T, TINY)
        new = (pi * (weights @ ratios) / masks.sum(axis=1, keepdims=True) + strength * class_prior) / (1 + strength)
        converged, pi = bool(np.abs(new - pi).max() < TOLERANCE), new
        if converged:
            break
    pi = np.maximum(pi, _MIN_SHARE)
    pi = pi / pi.sum(axis=1, keepdims=True)
    estimate: FloatArray = pi[0] if mask is None else pi
    return estimate


def shift_evidence(ratios: FloatArray, class_prior: FloatArray, min_strength: float = 0.0) -> FloatArray:
    """Return the held-out log-likelihood ratio of a client's class prior against the common one, (len(STRENGTHS),).

    It is sum_i log sum_c pi(c) ratio_i(c), with pi estimated without the fold of image i; 0 with fewer than two images.

    Args:
        ratios: p(x | c) / p(x), (n, C).
        class_prior: The common class prior, (C,).
        min_strength: Smaller strengths of the common prior are raised to this.
    """
    images = len(ratios)
    if images < 2:
        return np.zeros(len(STRENGTHS))
    fold = np.arange(images) % min(FOLDS, images)
    mask = (fold != np.arange(fold.max() + 1)[:, None]).astype(np.float64)
    evidence, pi = [], np.tile(class_prior, (len(mask), 1))
    for strength in STRENGTHS:
        pi = label_shift(ratios, class_prior, max(strength, min_strength), mask, pi)
        evidence.append(np.log(np.maximum((ratios * pi[fold]).sum(axis=1), TINY)).sum())
    return np.array(evidence)
