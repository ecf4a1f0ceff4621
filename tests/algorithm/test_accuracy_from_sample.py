"""Accuracy from a stratified sample, against textbook formulas, SciPy and many drawn samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedcopl.algorithm.accuracy_from_sample import _wilson, drawn_order, estimate_share, images_needed, strata_of
from fedcopl.rng import stream


@pytest.mark.parametrize(("right", "images"), [(0, 1), (1, 1), (7, 10), (46, 50), (50, 50), (0, 30), (930, 1000)])
def test_wilson_is_scipys(right, images):
    reference = binomtest(right, images).proportion_ci(0.95, method="wilson")
    assert _wilson(right / images, images) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_at_the_ends():
    assert _wilson(0.7, 0) == (0.0, 1.0)
    assert _wilson(0.7, math.inf) == (0.7, 0.7)


def test_strata_are_the_halves_of_each_class():
    label = np.array([2, 0, 2, 2, 0, 2])
    confidence = np.array([0.9, 0.3, 0.5, 0.4, 0.8, 0.6])
    # class 0: 0.3 | 0.8; class 2: 0.4 0.5 | 0.6 0.9; nothing is predicted as class 1
    assert strata_of(label, confidence).tolist() == [5, 0, 4, 4, 1, 5]


def test_a_class_with_one_image_has_one_stratum():
    assert strata_of(np.array([0]), np.array([0.5])).tolist() == [0]


def test_without_images_the_order_is_empty():
    assert drawn_order(strata_of(np.zeros(0, np.int64), np.zeros(0)), stream(0, "test")).tolist() == []


strata_lists = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@given(strata_lists, st.integers(0, 2**32 - 1))
def test_every_prefix_of_the_order_is_in_proportion(strata, seed):
    strata = np.array(strata)
    order = drawn_order(strata, stream(seed, "test"))
    assert sorted(order) == list(range(len(strata)))
    size = np.bincount(strata, minlength=6)
    for length in range(len(strata) + 1):
        count = np.bincount(strata[order[:length]], minlength=6)
        # each stratum's next position is (count + u) / size; no stratum can be a whole image ahead of another
        ahead = [(count[h] - 1) / size[h] for h in range(6) if size[h]]
        behind = [(count[h] + 1) / size[h] for h in range(6) if size[h]]
        assert max(ahead) <= min(behind)


def test_every_image_has_the_same_chance():
    strata = np.repeat([0, 1, 2], [6, 3, 1])
    chosen = np.zeros(10)
    rng = stream(3, "test")
    for _ in range(4000):
        chosen[drawn_order(strata, rng)[:4]] += 1
    # 4 of 10 each: the deviation of a count of 4000 draws is at most sqrt(4000 * 0.24) = 31; the first four are not
    # drawn up to one fixed place but to one fixed number, which shifts the chances by a few per cent
    assert chosen / 4000 == pytest.approx(np.full(10, 0.4), abs=0.06)


def test_the_weights_worked_by_hand():
    # 80 images in one stratum, 20 in the other; 5 of each were reviewed, 5 and 2 of them right
    strata = np.repeat([0, 1], [80, 20])
    reviewed = np.array([0, 1, 2, 3, 4, 80, 81, 82, 83, 84])
    right = np.array([True] * 5 + [True, True, False, False, False])
    estimate = estimate_share(strata, reviewed, right)
    assert estimate.share == pytest.approx(0.8 * 1 + 0.2 * 2 / 5)
    effective_size = 1 / (0.8**2 * 75 / 79 / 5 + 0.2**2 * 15 / 19 / 5)
    assert (estimate.low, estimate.high) == pytest.approx(_wilson(0.88, effective_size))
    assert (estimate.reviewed, estimate.right) == (10, 7)


def test_small_strata_are_joined_with_their_neighbours():
    # 3, 0, 2 and 5 reviewed: the first three count as one of 60 images, the last as one of 40
    strata = np.repeat([0, 1, 2, 3], [30, 10, 20, 40])
    reviewed = np.array([0, 1, 2, 40, 41, 60, 61, 62, 63, 64])
    right = np.array([True, True, False, True, False, True, True, True, True, True])
    assert estimate_share(strata, reviewed, right).share == pytest.approx(0.6 * 3 / 5 + 0.4)


def test_one_stratum_is_wilson_with_the_correction_for_few_images():
    estimate = estimate_share(np.zeros(101, np.int64), np.arange(20), np.arange(20) < 18)
    assert estimate[:3] == pytest.approx((0.9, *_wilson(0.9, 20 * 100 / 81)))


def test_interval_is_empty_if_all_images_are_reviewed():
    strata = np.repeat([0, 1, 2], [7, 1, 9])
    estimate = estimate_share(strata, np.arange(17), np.arange(17) % 4 > 0)
    assert estimate[:3] == pytest.approx((12 / 17, 12 / 17, 12 / 17))


def test_interval_is_0_to_1_if_no_image_is_reviewed():
    estimate = estimate_share(np.zeros(5, np.int64), np.zeros(0, np.int64), np.zeros(0, bool))
    assert math.isnan(estimate.share)
    assert estimate[1:] == (0.0, 1.0, 0, 0)


@given(strata_lists, st.data())
def test_the_share_lies_in_its_interval_and_both_in_0_to_1(strata, data):
    strata = np.array(strata)
    order = drawn_order(strata, stream(data.draw(st.integers(0, 99)), "test"))
    reviewed = order[: data.draw(st.integers(1, len(strata)))]
    right = np.array(data.draw(st.lists(st.booleans(), min_size=len(reviewed), max_size=len(reviewed))))
    estimate = estimate_share(strata, reviewed, right)
    assert 0 <= estimate.low <= estimate.share + 1e-12
    assert estimate.share - 1e-12 <= estimate.high <= 1


@pytest.mark.parametrize("reviews", [30, 120])
def test_the_interval_covers_the_true_accuracy_in_95_percent(reviews):
    """Less confident images are more often wrong, and the classes differ in size."""
    rng = stream(7, "coverage", reviews)
    label = rng.choice(8, 600, p=rng.dirichlet(np.ones(8)))
    confidence = rng.random(600)
    right = rng.random(600) < 0.55 + 0.45 * confidence
    strata = strata_of(label, confidence)
    estimates = [
        estimate_share(strata, first, right[first])
        for first in (drawn_order(strata, rng)[:reviews] for _ in range(800))
    ]
    covered = np.mean([estimate.low <= right.mean() <= estimate.high for estimate in estimates])
    assert covered >= 0.93  # 800 trials: three deviations below 0.95 is 0.927
    assert np.mean([estimate.share for estimate in estimates]) == pytest.approx(right.mean(), abs=0.008)


def test_reviewing_only_low_confidence_is_biased():
    # The same population, reviewed in the order of confidence.
    rng = stream(8, "coverage")
    confidence = rng.random(600)
    right = rng.random(600) < 0.55 + 0.45 * confidence
    strata = strata_of(np.zeros(600, np.int64), confidence)
    least_confident = np.argsort(confidence)[:60]
    assert np.mean(right[least_confident]) < right.mean() - 0.1
    drawn = drawn_order(strata, rng)[:60]
    estimate = estimate_share(strata, drawn, right[drawn])
    assert estimate.low <= right.mean() <= estimate.high


@pytest.mark.parametrize(("share", "images", "half_width"), [(0.9, 5000, 0.05), (0.5, 300, 0.1), (1.0, 50, 0.01)])
def test_images_needed_is_the_least_sufficient_number(share, images, half_width):
    needed = images_needed(share, images, half_width)

    def width(reviews):
        effective_size = math.inf if reviews == images else reviews * (images - 1) / (images - reviews)
        low, high = _wilson(share, effective_size)
        return high - low

    assert width(needed) <= 2 * half_width
    assert width(needed - 1) > 2 * half_width
