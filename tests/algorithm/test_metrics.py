import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.metrics import (
    cosine_distance,
    coverage,
    distribution_similarity,
    drift_diversity,
    label_accuracy,
    macro_accuracy,
    mean_set_size,
    recall_per_class,
)

tables = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(-10, 10).map(lambda x: round(x, 3)),
)


def test_macro_accuracy_by_hand():
    assert macro_accuracy([(1, 2), (9, 10)]) == pytest.approx((0.5 + 0.9) / 2)


def test_a_client_without_test_images_is_left_out():
    assert macro_accuracy([(1, 2), (0, 0), (2, 2)]) == 0.75


def test_drift_by_hand():
    # |(3, 0)|^2 + |(0, 4)|^2 + |(1, 0)|^2 = 9 + 16 + 1 = 26; the sum is (4, 4), 32.
    assert drift_diversity([np.array([3.0, 0]), np.array([0, 4.0]), np.array([1.0, 0])]) == pytest.approx(26 / 32)


@given(st.integers(1, 8), hnp.arrays(np.float32, (2, 3), elements=st.floats(1, 9, width=32)))
def test_drift_of_equal_updates_is_one_over_k(clients, update):
    assert drift_diversity([update] * clients) == pytest.approx(1 / clients)


@given(st.integers(1, 8), st.floats(1e-3, 1e3))
def test_drift_of_orthogonal_updates_of_equal_length_is_one(clients, length):
    assert drift_diversity(list(length * np.eye(clients))) == pytest.approx(1)


def test_drift_at_the_edges():
    assert drift_diversity([np.zeros(3)] * 4) == 0.25  # all updates are 0, so equal
    assert drift_diversity([np.array([1.0]), np.array([-1.0])]) == math.inf
    with pytest.raises(ValueError, match="at least one update"):
        drift_diversity([])


def test_cosine_distance_by_hand():
    # Pairs: (1,0)-(0,2) 1 - 0; (1,0)-(-3,0) 1 + 1; (0,2)-(-3,0) 1 - 0: mean 4/3.
    updates = [np.array([1.0, 0]), np.array([0, 2.0]), np.array([-3.0, 0])]
    assert cosine_distance(updates) == pytest.approx(4 / 3)


@given(tables)
def test_cosine_distance_agrees_with_the_loop_over_pairs(table):
    moved = [row for row in table if np.linalg.norm(row) > 0]
    assume(len(moved) >= 2)
    pairs = [1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(moved, 2)]
    assert cosine_distance(list(table)) == pytest.approx(np.mean(pairs), abs=1e-9)


@given(tables)
def test_drift_agrees_with_its_formula(table):
    assume(np.linalg.norm(table.sum(axis=0)) > 1e-3)
    expected = sum(np.linalg.norm(row) ** 2 for row in table) / np.linalg.norm(table.sum(axis=0)) ** 2
    assert drift_diversity(list(table)) == pytest.approx(expected)


def test_cosine_distance_at_the_edges():
    one = np.array([1.0, 2.0])
    assert cosine_distance([one]) == 0.0
    assert cosine_distance([one, np.zeros(2)]) == 0.0  # a zero update has no direction
    assert cosine_distance([one, np.zeros(2), -one]) == pytest.approx(2)


def test_float32_updates_are_measured_in_float64():
    # 16 equal directions of float32 leave no more than float64's rounding.
    updates = [np.float32(0.1) * np.arange(1, 2000, dtype=np.float32)] * 16
    assert cosine_distance(updates) < 1e-12


def test_label_accuracy():
    assert label_accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75
    assert label_accuracy(np.array([], np.int64), np.array([], np.int64)) is None


def test_recall_per_class_by_hand():
    # Class 0: 2 of 3 correct. Class 1: its one image is wrong. Class 2: absent. Class 3: correct.
    got = recall_per_class(np.array([0, 0, 2, 0, 3]), np.array([0, 0, 0, 1, 3]), 4)
    assert np.allclose(got, [2 / 3, 0, np.nan, 1], equal_nan=True)


def test_coverage_and_set_size_by_hand():
    # Sets {0}, {0, 1}, {1, 2}, {2} of true labels 0, 2, 1, 2: three of four hold it; 6 classes in 4 sets.
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]], bool)
    assert coverage(sets, np.array([0, 2, 1, 2])) == 0.75
    assert mean_set_size(sets) == 1.5


def test_nothing_selected_has_no_coverage():
    assert coverage(np.zeros((0, 3), bool), np.array([], np.int64)) is None
    assert mean_set_size(np.zeros((0, 3), bool)) is None


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 20), st.just(2)), elements=st.integers(0, 4)))
def test_coverage_of_single_labels_is_accuracy(pairs):
    labels, truth = pairs.T
    assert coverage(np.eye(5, dtype=bool)[labels], truth) == label_accuracy(labels, truth)


def test_distribution_similarity_by_hand():
    # (3 * 4 + 4 * 3) / (5 * 5)
    assert distribution_similarity(np.array([3, 4, 0]), np.array([4, 3, 0])) == pytest.approx(24 / 25)


def test_distribution_similarity_at_the_edges():
    some = np.array([3, 0, 1])
    assert distribution_similarity(some, np.array([0, 7, 0])) == 0.0  # no class in common
    assert distribution_similarity(some, np.zeros(3, np.int64)) == 0.0
    assert distribution_similarity(np.ones(3), np.ones(3)) == 1.0  # 3 / sqrt(3)^2 is a little more in float64
    # 50,000 images in one class: no overflow of small integers.
    assert distribution_similarity(np.array([50_000], np.uint16), np.array([50_000], np.uint16)) == pytest.approx(1)


histograms = hnp.arrays(np.int64, 4, elements=st.integers(0, 1000))


@given(histograms, histograms, st.integers(1, 50))
def test_distribution_similarity_is_between_0_and_1_and_independent_of_size(a, b, factor):
    assume(a.any() and b.any())
    got = distribution_similarity(a, b)
    assert 0 <= got <= 1
    assert distribution_similarity(b, factor * a) == pytest.approx(got)
    assert distribution_similarity(a, factor * a) == pytest.approx(1)
