import numpy as np
import pytest

from fedcopl.algorithm.choosing import balanced, rank_correlation, ranks, scores, signals

SURE = np.log(np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]]))
UNSURE = np.log(np.array([[0.6, 0.4], [0.4, 0.6], [0.4, 0.6], [0.4, 0.6]]))


def test_signals_by_hand():
    # SURE is balanced as it is: 2 of 2, and the mean of .9 .8 .9 .8 is .85. Changed, one of its four answers differs.
    changed = SURE.copy()
    changed[0] = changed[0, ::-1]
    first, second = signals([SURE, UNSURE], [changed, UNSURE])
    assert first.confidence == pytest.approx(0.85)
    assert second.stability == 1
    # Answers 0 0 1 1 and 0 1 1 1, whatever the balance does to the second: three of four alike.
    assert first.agreement == second.agreement == 0.75


def test_balance_takes_a_lean_away():
    # Odds of e^2 for the first class in every image; what is left of each image is its own.
    own = np.log(np.array([[0.7, 0.3], [0.3, 0.7], [0.8, 0.2], [0.2, 0.8]]))
    leaning = own + np.array([2.0, 0.0])
    answers = balanced(leaning - np.log(np.exp(leaning).sum(axis=1, keepdims=True)))
    assert np.allclose(np.exp(answers), np.exp(own), atol=0.05)  # balance is 5 % give or take


def test_ranks_share_what_is_equal():
    assert ranks(np.array([3.0, 1.0, 3.0, 7.0])).tolist() == [1.5, 0, 1.5, 3]


def test_rank_correlation_by_hand():
    # 1 - 6 sum d^2 / (n (n^2 - 1)) with d = 0, 1, 1, 0: 1 - 12 / 60.
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))


def test_the_best_by_all_signals_has_the_score_one():
    found = signals([SURE, UNSURE, UNSURE[::-1]], [SURE, UNSURE, UNSURE])
    assert scores(found).max() <= 1
    assert scores(found).argmax() == 0
