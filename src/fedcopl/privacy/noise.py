"""Differential privacy: clipping to a bounded sensitivity, and discrete Gaussian noise.

Values are rounded to a grid of 2^-bits and the noise is sampled on the same grid, because the last digits of
floating-point noise reveal the value (Mironov 2012). The discrete Gaussian of Canonne, Kamath and Steinke (2020),
sampled by their rejection method, has the same bound on Renyi divergence as the continuous one.

Precision: integers are sampled without bias. Probabilities exp(-x) are compared with uniform numbers of 53 bits, so
their absolute error is about 2^-53, and their relative error about 10^-14 unless they are tiny; values beyond 37
standard deviations never occur.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..algorithm import BoolArray, FloatArray, IntArray

_WordSource = Callable[[int], NDArray[np.uint64]]
"""Returns `count` uniform integers below 2^64."""
_MAX_SIGMA = 2.0**45  # in steps of the grid
_SLACK = 2.0**-40  # relative margin of a norm for rounding errors


def _clip(values: FloatArray, norm: float) -> FloatArray:
    """Clip a vector to the L2 norm `norm`, keeping its direction."""
    length = float(np.linalg.norm(values)) * (1 + _SLACK)
    return values if length <= norm else values * (norm / length)


def _to_grid(values: FloatArray, bits: int) -> IntArray:
    """Round towards 0 to steps of 2^-bits, so that the norm does not grow."""
    return np.trunc(np.ldexp(values, bits)).astype(np.int64)


def add_noise(values: FloatArray, norm: float, sigma: float, bits: int, words: _WordSource) -> FloatArray:
    """Clip to an L2 norm, round to the grid and add noise of standard deviation sigma; float64 sums are exact."""
    steps = _to_grid(_clip(values, norm), bits) + _discrete_gaussian(np.ldexp(sigma, bits), values.size, words)
    return np.ldexp(steps.astype(np.float64), -bits)


def _discrete_gaussian(sigma: float, count: int, words: _WordSource) -> IntArray:
    """Sample independent integers x with probability proportional to exp(-x^2 / (2 sigma^2))."""
    if not 0 < sigma <= _MAX_SIGMA:
        raise ValueError(f"a standard deviation of {sigma:g} steps is not between 0 and {_MAX_SIGMA:g}")
    samples = [np.zeros(0, np.int64)]
    while missing := count - sum(map(len, samples)):
        samples.append(_rejection_sample(sigma, 2 * missing + 16, words)[:missing])
    return np.concatenate(samples)


def _rejection_sample(sigma: float, tries: int, words: _WordSource) -> IntArray:
    """Sample a discrete Laplace of nearly the same width, and return the accepted values (rejection sampling)."""
    width = int(sigma) + 1
    laplace = _discrete_laplace(width, tries, words)
    exponent = (np.abs(laplace) - sigma * (sigma / width)) / sigma
    kept: BoolArray = _uniform(len(laplace), words) < np.exp(-0.5 * exponent * exponent)
    return laplace[kept]


def _discrete_laplace(width: int, tries: int, words: _WordSource) -> IntArray:
    """Sample at most `tries` integers x with probability proportional to exp(-|x| / width)."""
    low = _uniform_integers(width, tries, words)
    low = low[_uniform(len(low), words) < np.exp(-low / width)]
    high = np.floor(-np.log1p(-_uniform(len(low), words))).astype(np.int64)  # P(high >= k) = exp(-k)
    size = low + width * high
    negative = (words(len(size)) & np.uint64(1)).astype(np.bool_)
    signed: IntArray = np.where(negative, -size, size)
    kept: BoolArray = ~(negative & (size == 0))  # 0 must not count twice
    return signed[kept]


def _uniform_integers(limit: int, tries: int, words: _WordSource) -> IntArray:
    """Sample at most `tries` uniform integers from 0 to limit - 1; values that would cause modulo bias are rejected."""
    drawn = words(tries)
    multiple = 2**64 // limit * limit
    fair = drawn if multiple == 2**64 else drawn[drawn < np.uint64(multiple)]
    return (fair % np.uint64(limit)).astype(np.int64)


def _uniform(count: int, words: _WordSource) -> FloatArray:
    """Sample uniform numbers in [0, 1), in steps of 2^-53."""
    return np.ldexp((words(count) >> np.uint64(11)).astype(np.float64), -53)
