"""What the estimation decides from given totals: class prior, feature scale, strength and temperature, by hand.

No images here: the totals are written down, so that each one falls on a known side of the threshold of 0.06 nats per
image. 100 images, two classes, features of one dimension.
"""

import math

import numpy as np
import pytest

from fedcopl.priors.estimation import Estimation, Settings
from fedcopl.priors.label_shift import STRENGTHS

PREDICTED = np.array([60.0, 40.0])  # by zero-shot CLIP, of 100 images
BALANCED = np.array([[50.0, 50.0], [60.0, 40.0]])  # each model predicts its own class prior: no bias is left to remove
MOMENTS = np.array([100.0, *PREDICTED, 20.0, 100.0])  # n, predictions, sum of features, sum of squares
HALFWAY = 100 * np.sqrt([0.6, 0.4]) / np.sqrt([0.6, 0.4]).sum()  # geometric mean of both class priors
CLASS_SUMS = np.array([[50.0, 30.0], [50.0, -10.0]])  # N_c and S_c


def evidence(*best, at=-1):
    """Nats of all images together: `best` of each model at one strength, nothing at the others."""
    rows = np.zeros((len(best), len(STRENGTHS)))
    rows[:, at] = best
    return rows


def before_choice(**settings):
    """The estimation without prototypes, when it asks for the evidence of its class priors."""
    estimation = Estimation(Settings(2, 1, prototypes=False, **settings))
    balanced = BALANCED if settings.get("label_shift") is False else np.stack([*BALANCED, HALFWAY])
    for total in (PREDICTED, *[balanced.ravel()] * 5):
        estimation.add(total)
    assert [one.kind for one in estimation.steps[-1]] == ["evidence"]
    return estimation


def before_choice_with_prototypes():
    """The estimation with prototypes, when it asks for the evidence of class priors and feature scales."""
    estimation = Estimation(Settings(2, 1))
    for total in (MOMENTS, *[BALANCED.ravel()] * 4, np.stack([CLASS_SUMS] * 2).ravel()):
        estimation.add(total)
    estimation.add(np.concatenate([BALANCED.ravel(), np.full(16, 50.0)]))
    assert [one.kind for one in estimation.steps[-1]] == ["evidence", "agreement"]
    return estimation


def asked_about(estimation):
    """The first model of the next step."""
    return estimation.steps[-1][0].models[0]


def test_both_class_priors_begin_without_the_bias_of_the_predictions():
    estimation = Estimation(Settings(2, 1, prototypes=False))
    estimation.add(PREDICTED)
    uniform, predicted, halfway = estimation.steps[-1][0].models
    assert halfway.class_prior == pytest.approx(HALFWAY / 100)
    assert uniform.class_prior == pytest.approx([0.5, 0.5]) and predicted.class_prior == pytest.approx([0.6, 0.4])
    assert uniform.logit_bias == pytest.approx(-np.log([0.6, 0.4]))


@pytest.mark.parametrize(
    ("uniform", "predicted", "chosen"), [(10, 15, [0.5, 0.5]), (10, 17, [0.6, 0.4]), (17, 10, [0.5, 0.5])]
)
def test_the_class_prior_is_uniform_unless_that_is_clearly_worse(uniform, predicted, chosen):
    # 0.10 and 0.15 nats per image differ by less than 0.06, 0.10 and 0.17 by more.
    estimation = before_choice()
    estimation.add(evidence(uniform, predicted, 0).ravel())
    assert asked_about(estimation).class_prior == pytest.approx(chosen)


@pytest.mark.parametrize(("predicted", "chosen"), [(5, [0.5, 0.5]), (7, [0.6, 0.4])])
def test_agreement_of_the_views_counts_in_the_choice_of_the_class_prior(predicted, chosen):
    # Evidence is equal. At the larger scale the views agree by 0.00 nats per image, and by 0.05 or 0.07.
    estimation = before_choice_with_prototypes()
    estimation.add(np.concatenate([evidence(10, 10).ravel(), [0, 0, 0, predicted]]))
    assert asked_about(estimation).class_prior == pytest.approx(chosen)


@pytest.mark.parametrize(("small", "large", "chosen"), [(1, 9, 0.1), (1, 10, 0.2), (10, 1, 0.1)])
def test_features_count_more_only_if_the_views_clearly_agree_more(small, large, chosen):
    # 0.01 and 0.09 nats per image differ by 0.08, 0.01 and 0.10 by 0.09: the threshold is 0.085.
    estimation = before_choice_with_prototypes()
    estimation.add(np.concatenate([evidence(30, 0).ravel(), [small, large, 0, 0]]))
    assert asked_about(estimation).feature_scale == chosen
    assert asked_about(estimation).prototypes is None  # those of text alone are made anew


def test_features_count_less_with_few_images_of_a_class():
    """8 images of 2 classes are 4 per class, a quarter of 16: the scale 0.1 becomes 0.025."""
    estimation = Estimation(Settings(2, 1))
    share = 0.08
    totals = (MOMENTS, *[BALANCED.ravel()] * 4, np.stack([CLASS_SUMS] * 2).ravel())
    for total in (*totals, np.concatenate([BALANCED.ravel(), np.full(16, 50.0)])):
        estimation.add(share * total)
    estimation.add(np.concatenate([evidence(30, 0).ravel(), np.zeros(4)]) * share)
    assert asked_about(estimation).feature_scale == pytest.approx(0.025)


@pytest.mark.parametrize(("nats", "strength"), [(5, math.inf), (7, STRENGTHS[3])])
def test_clients_have_class_priors_of_their_own_only_by_clear_evidence(nats, strength):
    estimation = before_choice()
    estimation.add(evidence(nats, 0, 0, at=3).ravel())
    assert asked_about(estimation).strength == strength
    # Without it nothing tells a long tail from a bias: the bias is removed halfway.
    assert asked_about(estimation).class_prior == pytest.approx(HALFWAY / 100 if nats == 5 else [0.5, 0.5])


def after_choice_of_scale(found, **settings):
    """The outcome, given the evidence at each of five temperatures."""
    estimation = before_choice(**settings)
    estimation.add(evidence(*([50, 0] if settings.get("label_shift") is False else [50, 0, 0])).ravel())
    for _ in range(2):
        estimation.add(np.full(10, 50.0))
    estimation.add(found.ravel())
    return estimation.outcome


@pytest.mark.parametrize(("second", "scale"), [(49, 0.7), (48, 1.0)])
def test_the_lowest_scale_with_nearly_the_best_evidence_is_taken(second, scale):
    # At 0.50 nats per image 6 % of a half may be missing: 0.485 is enough.
    outcome = after_choice_of_scale(evidence(50, second, 30, 20, 10, at=4))
    assert outcome.text_scale == pytest.approx(scale)
    assert outcome.strength == STRENGTHS[4]
    # log 0.6/0.4 was the difference of the biases, and each step found predictions in proportion.
    assert outcome.logit_bias == pytest.approx(scale * np.array([-1, 1]) * math.log(1.5) / 2)


def test_all_scales_are_tried_with_the_bias_scaled_alike():
    estimation = before_choice()
    estimation.add(evidence(50, 0, 0).ravel())
    models = estimation.steps[-1][0].models
    assert [model.text_scale for model in models] == [1.0, 0.7, 0.5, 0.35, 0.25]
    assert [float(np.ptp(model.logit_bias)) for model in models] == pytest.approx(
        [scale * math.log(1.5) for scale in (1.0, 0.7, 0.5, 0.35, 0.25)]
    )


def test_without_clear_evidence_nothing_is_scaled_and_no_client_has_its_own_prior():
    outcome = after_choice_of_scale(evidence(1, 2, 3, 4, 5, at=2))
    assert outcome.text_scale == 1.0 and outcome.strength == math.inf


def test_label_shift_can_be_switched_off():
    assert after_choice_of_scale(evidence(50, 0, 0, 0, 0), label_shift=False).strength == math.inf


@pytest.mark.parametrize(("chosen", "expected"), [(0, [0.5, 0.5]), (1, [0.7, 0.3])])
def test_a_class_prior_that_is_not_uniform_is_estimated_anew_in_em(chosen, expected):
    # The class sums then say 70 and 30 images. The uniform class prior was chosen by evidence, and stays.
    estimation = before_choice_with_prototypes()
    nats = np.roll([20.0, 0.0], chosen)
    estimation.add(np.concatenate([evidence(*nats).ravel(), np.zeros(4)]))
    estimation.add(np.array([[70.0, 40.0], [30.0, -20.0]]).ravel())
    assert asked_about(estimation).class_prior == pytest.approx(expected)
    # (40 + 2 * 0.2) / 72 and (-20 + 2 * 0.2) / 32 are the class means, drawn to the common mean 0.2.
    made = asked_about(estimation).prototypes
    assert made.totals / made.counts[:, None] / made.whiten[0, 0] == pytest.approx(
        np.array([[40.4 / 72], [-19.6 / 32]])
    )


def test_a_class_that_nothing_is_predicted_as_keeps_a_small_share():
    # 1 % of a uniform share: 0.005 of 1.005.
    estimation = Estimation(Settings(2, 1, prototypes=False))
    estimation.add(np.array([100.0, 0.0]))
    assert estimation.steps[-1][0].models[1].class_prior == pytest.approx([1 / 1.005, 0.005 / 1.005])


def test_totals_are_split_in_the_order_of_their_statistics():
    # Evidence comes before agreement: 2 * 6 numbers, then 4.
    estimation = before_choice_with_prototypes()
    assert estimation.size(7) == 16
    assert estimation.images == 100
