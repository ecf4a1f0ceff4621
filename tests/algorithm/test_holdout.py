"""The rules of the hold-out check, computed by hand."""

import math

import numpy as np
import pytest

from fedcopl.algorithm.holdout import (
    LARGEST_LOSS,
    Evidence,
    HoldoutVerdict,
    _prediction_shift,
    compare_models,
    compare_training,
    evidence,
    is_held_out,
    is_less_confident,
    next_lr_factor,
)

LABELS = np.array([0, 0, 1, 1])


def log_probs(*first):
    """Return log p of two classes, of which the first has these probabilities."""
    return np.log([[p, 1 - p] for p in first])


CONFIDENT = log_probs(0.8, 0.8, 0.2, 0.2)


def test_holdout_is_every_fifth_image():
    assert np.flatnonzero(is_held_out(12, 0.2)).tolist() == [4, 9]
    assert np.flatnonzero(is_held_out(10, 0.5)).tolist() == [1, 3, 5, 7, 9]
    assert is_held_out(1000, 0.3).sum() == 300


def test_holdout_of_share_zero_is_empty():
    assert not is_held_out(100, 0.0).any()
    assert is_held_out(0, 0.2).shape == (0,)
    assert not is_held_out(4, 0.2).any()  # too few to hold one out


def test_evidence_is_a_sum_over_the_holdout():
    # Reference labels have probabilities .5 and .25; the second is not the predicted class.
    result = evidence(log_probs(0.5 + 1e-12, 0.25), np.array([0, 0]))
    assert result == (2.0, pytest.approx(math.log(2) + math.log(4)), 1.0)


def test_more_confident_model_is_no_harm():
    verdict = compare_models(CONFIDENT, log_probs(0.9, 0.9, 0.1, 0.1), LABELS)
    assert verdict.harm == ""
    assert verdict.before.loss == pytest.approx(-4 * math.log(0.8))
    assert verdict.after.loss == pytest.approx(-4 * math.log(0.9))
    assert verdict.shift == 0


def test_less_confident_model_is_harm():
    assert compare_models(CONFIDENT, log_probs(0.7, 0.7, 0.3, 0.3), LABELS).harm == "less confident"


def test_a_hundredth_of_a_nat_is_no_harm():
    four = Evidence(4.0, 1.0, 4.0)
    assert not is_less_confident(four, Evidence(4.0, 1.039, 4.0))
    assert is_less_confident(four, Evidence(4.0, 1.041, 4.0))
    assert is_less_confident(four, Evidence(4.0, math.nan, 4.0))
    assert not is_less_confident(Evidence(), Evidence())  # no images


def test_two_changed_predictions_are_harm():
    # The loss falls from 4 x .69 to 2 x .73 + 2 x .0001, while two predictions change.
    before = log_probs(0.51, 0.51, 0.49, 0.49)
    after = log_probs(0.48, 0.9999, 0.52, 0.0001)
    assert compare_models(before, after, LABELS).harm == "changed predictions"
    assert compare_models(before, log_probs(0.48, 0.9999, 0.48, 0.0001), LABELS).harm == ""  # one may change


def test_large_prediction_shift_is_harm():
    # The shift alone: a model that contradicted the reference labels is now confident of them.
    before = log_probs(0.4, 0.4, 0.4, 0.4)
    after = log_probs(0.9, 0.9, 0.9, 0.4)
    labels = np.zeros(4, np.int64)
    assert _prediction_shift(before, after) == 0.75
    assert compare_models(before, after, labels).harm == "class shift"


def test_prediction_shift_is_total_variation():
    # before: half and half; after: three of four in the first class.
    assert _prediction_shift(CONFIDENT, log_probs(0.9, 0.9, 0.9, 0.1)) == 0.25
    assert _prediction_shift(CONFIDENT, CONFIDENT) == 0


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_nan_is_harm_with_finite_evidence(broken):
    after = CONFIDENT.copy()
    after[0, 0] = broken
    verdict = compare_models(CONFIDENT, after, LABELS)
    assert verdict.harm == "not finite"
    assert verdict.after == (4.0, 4 * LARGEST_LOSS, 0.0)


def test_labels_that_do_not_generalise_are_harm():
    # The loss falls, as for a wrong model that becomes less confident; one prediction of four is right.
    before, after = log_probs(0.1, 0.1, 0.9, 0.1), log_probs(0.4, 0.4, 0.6, 0.1)
    assert compare_models(before, after, LABELS).harm == ""
    verdict = compare_training(before, after, LABELS)
    assert verdict.harm == "no generalisation"
    assert isinstance(verdict, HoldoutVerdict)
    assert compare_training(CONFIDENT, log_probs(0.9, 0.9, 0.1, 0.1), LABELS).harm == ""


def test_lr_factor_halves_and_recovers_in_four_rounds():
    once = next_lr_factor(1.0, harmed=True)
    assert once == 0.5
    for _ in range(4):
        once = next_lr_factor(once, harmed=False)
    assert once == pytest.approx(1)
    assert next_lr_factor(1.0, harmed=False) == 1
