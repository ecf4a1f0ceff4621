"""Clipping and noise, against the exact probabilities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chisquare, kstest

from fedcopl.privacy.noise import _MAX_SIGMA, _clip, _discrete_gaussian, _to_grid, _uniform_integers, add_noise
from fedcopl.rng import stream


def words(*name):
    generator = stream(7, "words", *name)
    return lambda count: generator.integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 2.5, 11.3])
def test_the_discrete_gaussian_has_its_exact_probabilities(sigma):
    count = 200_000
    drawn = _discrete_gaussian(sigma, count, words(int(10 * sigma)))
    reach = int(12 * sigma) + 2
    places = np.arange(-reach, reach + 1)
    expected = np.exp(-(places**2) / (2 * sigma**2))
    expected *= count / expected.sum()  # the sum over all integers; the probability beyond 12 sigma is below 10^-30
    common = expected >= 20
    observed = np.bincount(drawn + reach, minlength=len(places))
    rest = [observed[~common].sum()], [expected[~common].sum()]
    counts, frequencies = (np.concatenate(pair) for pair in ((observed[common], rest[0]), (expected[common], rest[1])))
    kept = frequencies > 0.5
    assert chisquare(counts[kept], frequencies[kept] * counts[kept].sum() / frequencies[kept].sum()).pvalue > 1e-4
    assert counts[~kept].sum() <= 5


def test_wide_noise_is_a_gaussian_on_a_fine_grid():
    # 2^32 times a sigma of 1.7: the difference from a continuous one is far below what 100,000 numbers can show.
    sigma = 2.0**32 * 1.7
    drawn = _discrete_gaussian(sigma, 100_000, words(1))
    assert kstest(drawn / sigma, "norm").pvalue > 1e-4
    assert abs(np.mean(drawn % 2) - 0.5) < 0.01  # the last binary digit is as likely 0 as 1
    assert abs(np.mean(drawn[:-1] * drawn[1:] / sigma**2)) < 0.02  # neighbours know nothing of each other


def test_shares_of_the_noise_add_up_to_its_variance():
    parts = [_discrete_gaussian(50 / np.sqrt(5), 50_000, words(2, part)) for part in range(5)]
    assert kstest((np.sum(parts, axis=0) + stream(0, "jitter").uniform(-0.5, 0.5, 50_000)) / 50, "norm").pvalue > 1e-4


def test_noise_is_determined_by_the_random_words():
    one, other, third = (_discrete_gaussian(3, 10, words(name)) for name in (1, 1, 2))
    assert one.tolist() == other.tolist() != third.tolist()
    assert _discrete_gaussian(3, 0, words(1)).shape == (0,)


@pytest.mark.parametrize("sigma", [0.0, -1.0, _MAX_SIGMA * 2, float("nan")])
def test_impossible_standard_deviations_are_refused(sigma):
    with pytest.raises(ValueError, match="standard deviation"):
        _discrete_gaussian(sigma, 1, words(1))


def test_integers_are_sampled_without_bias():
    # 2^64 is 2 2/3 times the limit: without rejection 3/4 of all numbers would be below 2^62 instead of 2/3.
    drawn = _uniform_integers(3 * 2**61, 40_000, words(3))
    assert (drawn < 2**62).mean() == pytest.approx(2 / 3, abs=0.02)
    assert len(drawn) == pytest.approx(40_000 * 3 / 4, rel=0.03)


finite = st.floats(-1e6, 1e6)


@given(arrays(np.float64, st.integers(0, 20), elements=finite), st.floats(1e-3, 1e3))
def test_no_norm_exceeds_the_clip(values, norm):
    clipped = _clip(values, norm)
    steps = [int(step) for step in _to_grid(clipped, 16)]
    assert sum(step * step for step in steps) <= (norm * 2**16) ** 2  # in whole numbers: no rounding in the check
    length = np.linalg.norm(values)
    if length <= norm * (1 - 1e-9):
        assert clipped is values
    else:
        assert clipped == pytest.approx(values * (norm / length), rel=1e-9)


def test_clipping_by_hand():
    assert _clip(np.array([3.0, 4.0]), 10).tolist() == [3, 4]
    assert _clip(np.array([3.0, 4.0]), 1).tolist() == pytest.approx([0.6, 0.8])
    assert _to_grid(np.array([0.99, -0.99, 0.5]), 1).tolist() == [1, -1, 1]  # halves, cut towards 0


def test_noise_lies_on_the_grid_and_around_the_clipped_values():
    values = np.full(10_000, 0.03)  # of length 3
    out = add_noise(values, 1.0, 0.5, 20, words(4))
    assert (np.ldexp(out, 20) == np.rint(np.ldexp(out, 20))).all()
    assert out.mean() == pytest.approx(0.01, abs=0.03)
    assert out.std() == pytest.approx(0.5, rel=0.05)
