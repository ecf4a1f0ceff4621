"""Choices of the estimation for given totals: class prior, feature scale, strength and temperature, by hand.

The totals are constants on a known side of each threshold, for 100 images, two classes and features of one dimension.
"""

import math

import numpy as np
import pytest

from fedcopl.priors.estimation import Estimation, PriorSettings
from fedcopl.priors.label_shift import STRENGTHS

PREDICTED = np.array([80.0, 20.0])  # by zero-shot CLIP, of 100 images
NO_LOGITS = np.zeros(2)  # mean logits on images of the other classes are equal
SPREAD = math.log(4) / 2  # standard deviation of the logs of both shares
RATIO = 4 ** (1 - (0.25 / SPREAD) ** 2)  # of the shrunk shares: with a spread of 0.25 it would be 1
SHRUNK = np.array([RATIO, 1]) / (RATIO + 1)
EVEN = np.array([0.5, 0.5])
MOMENTS = np.array([100.0, *PREDICTED, 20.0, 100.0])  # n, predictions, sum of features, sum of squares
CLASS_SUMS = np.array([[50.0, 30.0], [50.0, -10.0]])  # N_c and S_c


def evidence(*best, at=-1):
    """Return evidence in nats over all images: `best` of each model at one strength, 0 at the others."""
    rows = np.zeros((len(best), len(STRENGTHS)))
    rows[:, at] = best
    return rows


def before_choice(images=100):
    """Return the estimation without prototypes, at the step that requests the evidence of the class prior."""
    estimation = Estimation(PriorSettings(2, 1, prototypes=False))
    # The model then predicts its class prior, so the bias is final.
    for total in (np.concatenate([PREDICTED, NO_LOGITS]), PREDICTED, *[100 * SHRUNK] * 4):
        estimation.add(total * images / 100)
    assert [one.kind for one in estimation.steps[-1]] == ["evidence"]
    return estimation


def totals_before_choice(shrunk=SHRUNK, moments=MOMENTS, logits=NO_LOGITS, corrected=PREDICTED):
    """Return the totals with prototypes before the evidence of class priors and feature scales."""
    classes = len(shrunk)
    balanced = 100 * np.concatenate([np.full(classes, 1 / classes), shrunk])
    features = np.tile([[50.0, 30.0], [50.0, -10.0]], (classes // 2, 1)) * 2 / classes
    views = np.concatenate([balanced, np.full(8 * classes, 100 / classes)])
    return [np.concatenate([moments, logits]), corrected, *[balanced] * 3, np.stack([features] * 2).ravel(), views]


def before_choice_with_prototypes(**changed):
    """Return the estimation with prototypes, at the step that requests the evidence."""
    totals = totals_before_choice(**changed)
    estimation = Estimation(PriorSettings(len(totals[1]), 1))
    for total in totals:
        estimation.add(total)
    assert [one.kind for one in estimation.steps[-1]] == ["evidence", "agreement"]
    return estimation


def next_model(estimation):
    """Return the first model of the next step."""
    return estimation.steps[-1][0].models[0]


def test_candidates_are_the_uniform_and_the_shrunk_class_prior_with_a_balancing_bias():
    estimation = Estimation(PriorSettings(2, 1))
    estimation.add(np.concatenate([MOMENTS, NO_LOGITS]))
    estimation.add(PREDICTED)
    uniform, shrunk = estimation.steps[-1][0].models
    assert uniform.class_prior == pytest.approx(EVEN) and shrunk.class_prior == pytest.approx(SHRUNK)
    assert uniform.logit_bias == pytest.approx(-np.log([0.8, 0.2]))


def test_a_small_spread_of_shares_is_attributed_to_bias():
    # log 1.5 / 2 = 0.203 is below 0.25.
    estimation = Estimation(PriorSettings(2, 1, prototypes=False))
    for total in (np.array([60.0, 40.0, 0.0, 0.0]), np.array([60.0, 40.0])):
        estimation.add(total)
    assert [model.class_prior.tolist() for model in estimation.steps[-1][0].models] == [EVEN.tolist()]


# Four classes: the first is predicted for 55 images, each other for 15, and has larger logits on images of others by 1.
FOUR = np.array([55.0, 15.0, 15.0, 15.0])
LOGITS = np.array([45.0, 0.0, 0.0, 0.0])  # of the 45 images that are not of the first class
OFFSETS = np.array([-0.75, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(("first", "explains"), [(40.0, True), (45.0, False)])
def test_mean_logits_are_removed_if_they_explain_the_shares(first, explains):
    # One class against three: the spread is sqrt(3) / 4 of the log ratio. Without the mean logits log(55 / 15); with
    # them log 2, F = (1.299^2 / 0.693^2 - 1) * 2 = 5.0; or log(45 / 18.3), F = (1.299^2 / 0.898^2 - 1) * 2 = 2.2.
    estimation = Estimation(PriorSettings(4, 1, prototypes=False))
    estimation.add(np.concatenate([FOUR, LOGITS]))
    assert next_model(estimation).logit_bias == pytest.approx(OFFSETS)
    corrected = np.array([first, *[(100 - first) / 3] * 3])
    estimation.add(corrected)
    shares = (corrected if explains else FOUR) / 100
    ratio = shares[0] / shares[1]
    exponent = 1 - (0.25 / (math.sqrt(3) / 4 * math.log(ratio))) ** 2
    model = next_model(estimation)
    assert model.class_prior[0] / model.class_prior[1] == pytest.approx(ratio**exponent)
    assert model.logit_bias == pytest.approx((OFFSETS if explains else 0) - np.log(shares))


@pytest.mark.parametrize(("uniform", "shrunk", "chosen"), [(10, 15, EVEN), (10, 17, SHRUNK), (17, 10, EVEN)])
def test_the_class_prior_is_uniform_without_clear_evidence_for_another(uniform, shrunk, chosen):
    # 0.10 and 0.15 nats per image differ by less than 0.06, 0.10 and 0.17 by more.
    estimation = before_choice_with_prototypes()
    estimation.add(np.concatenate([evidence(uniform, shrunk).ravel(), np.zeros(4)]))
    assert next_model(estimation).class_prior == pytest.approx(chosen)


@pytest.mark.parametrize(("shrunk", "chosen"), [(5, EVEN), (7, SHRUNK)])
def test_agreement_of_the_views_counts_in_the_choice_of_the_class_prior(shrunk, chosen):
    # Evidence is equal. At the larger scale the views agree by 0.00 nats per image, and by 0.05 or 0.07.
    estimation = before_choice_with_prototypes()
    estimation.add(np.concatenate([evidence(10, 10).ravel(), [0, 0, 0, shrunk]]))
    assert next_model(estimation).class_prior == pytest.approx(chosen)


@pytest.mark.parametrize(("nats", "is_uniform"), [(0.5, True), (1.5, False)])
def test_less_evidence_suffices_if_mean_logits_explain_the_bias(nats, is_uniform):
    # 0.005 and 0.015 nats per image: the threshold is 0.01.
    moments = np.array([100.0, *FOUR, 20.0, 100.0])
    corrected = np.array([40.0, 20.0, 20.0, 20.0])
    ratio = 2 ** (1 - (0.25 / (math.sqrt(3) / 4 * math.log(2))) ** 2)
    shrunk = np.array([ratio, 1, 1, 1]) / (ratio + 3)
    estimation = before_choice_with_prototypes(shrunk=shrunk, moments=moments, logits=LOGITS, corrected=corrected)
    estimation.add(np.concatenate([evidence(0, nats).ravel(), np.zeros(4)]))
    assert next_model(estimation).class_prior == pytest.approx(np.full(4, 0.25) if is_uniform else shrunk)


@pytest.mark.parametrize(("small", "large", "chosen"), [(1, 9, 0.1), (1, 10, 0.2), (10, 1, 0.1)])
def test_the_larger_feature_scale_needs_clearly_more_agreement(small, large, chosen):
    # 0.01 and 0.09 nats per image differ by 0.08, 0.01 and 0.10 by 0.09: the threshold is 0.085.
    estimation = before_choice_with_prototypes()
    estimation.add(np.concatenate([evidence(30, 0).ravel(), [small, large, 0, 0]]))
    assert next_model(estimation).feature_scale == chosen
    assert next_model(estimation).prototypes is None  # the prototypes from text alone are computed again


def test_the_feature_scale_is_smaller_with_few_images_per_class():
    """8 images of 2 classes are 4 per class, a quarter of 16: the scale 0.1 becomes 0.025."""
    estimation = Estimation(PriorSettings(2, 1))
    for total in (*totals_before_choice(), np.concatenate([evidence(30, 0).ravel(), np.zeros(4)])):
        estimation.add(0.08 * total)
    assert next_model(estimation).feature_scale == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("images", "nats", "strength"),
    [(100, 9, math.inf), (100, 11, STRENGTHS[3]), (10_000, 500, math.inf), (10_000, 700, STRENGTHS[3])],
)
def test_client_priors_need_clear_evidence(images, nats, strength):
    # Per image 1 / sqrt(100) = 0.1, and 0.06 where that is more than 1 / sqrt(10,000).
    estimation = before_choice(images=images)
    estimation.add(evidence(nats, at=3).ravel())
    assert next_model(estimation).strength == strength
    assert next_model(estimation).class_prior == pytest.approx(SHRUNK)


def before_choice_of_scale(**settings):
    """Return the estimation with prototypes after EM, with 60 : 40 predicted images by bias alone."""
    moments = np.array([100.0, 60.0, 40.0, 20.0, 100.0])
    totals = totals_before_choice(shrunk=EVEN, moments=moments, corrected=np.array([60.0, 40.0]))
    estimation = Estimation(PriorSettings(2, 1, **settings))
    for total in (*totals, np.concatenate([evidence(50, 50).ravel(), np.zeros(4)])):
        estimation.add(total)
    for _ in range(4):
        estimation.add(CLASS_SUMS.ravel())
        estimation.add(100 * EVEN)
    return estimation


def after_choice_of_scale(nats_by_scale, **settings):
    """Return the outcome for the evidence at each of five temperatures."""
    estimation = before_choice_of_scale(**settings)
    for _ in range(2):
        estimation.add(np.full(10, 50.0))
    estimation.add(nats_by_scale.ravel())
    return estimation.outcome


@pytest.mark.parametrize(("second", "scale"), [(49, 0.7), (48, 1.0)])
def test_the_lowest_scale_with_nearly_the_best_evidence_is_chosen(second, scale):
    # At 0.50 nats per image 6 % of a half may be missing: 0.485 is enough.
    outcome = after_choice_of_scale(evidence(50, second, 30, 20, 10, at=4))
    assert outcome.text_scale == pytest.approx(scale)
    assert outcome.strength == STRENGTHS[4]
    # log 0.6/0.4 is the difference of the biases; predictions are proportional to the class prior at each step.
    assert outcome.logit_bias == pytest.approx(scale * np.array([-1, 1]) * math.log(1.5) / 2)


def test_the_bias_is_scaled_with_the_text():
    models = before_choice_of_scale().steps[-1][0].models
    assert [model.text_scale for model in models] == [1.0, 0.7, 0.5, 0.35, 0.25]
    assert [float(np.ptp(model.logit_bias)) for model in models] == pytest.approx(
        [scale * math.log(1.5) for scale in (1.0, 0.7, 0.5, 0.35, 0.25)]
    )


def test_text_alone_keeps_its_scale():
    estimation = before_choice()
    estimation.add(evidence(50).ravel())
    assert [model.text_scale for model in estimation.steps[-1][0].models] == [1.0]


def test_without_clear_evidence_scale_and_common_prior_stay():
    outcome = after_choice_of_scale(evidence(1, 2, 3, 4, 5, at=2))
    assert outcome.text_scale == 1.0 and outcome.strength == math.inf


def test_label_shift_can_be_switched_off():
    assert after_choice_of_scale(evidence(50, 0, 0, 0, 0), label_shift=False).strength == math.inf


@pytest.mark.parametrize(("chosen", "expected"), [(0, [0.5, 0.5]), (1, [0.7, 0.3])])
def test_em_estimates_a_non_uniform_class_prior_again(chosen, expected):
    # The class sums are 70 and 30 images. A uniform class prior is not estimated again.
    estimation = before_choice_with_prototypes()
    nats = np.roll([20.0, 0.0], chosen)
    estimation.add(np.concatenate([evidence(*nats).ravel(), np.zeros(4)]))
    estimation.add(np.array([[70.0, 40.0], [30.0, -20.0]]).ravel())
    assert next_model(estimation).class_prior == pytest.approx(expected)
    # (40 + 2 * 0.2) / 72 and (-20 + 2 * 0.2) / 32 are the class means, shrunk towards the common mean 0.2.
    prototypes = next_model(estimation).prototypes
    assert prototypes.totals / prototypes.counts[:, None] / prototypes.whiten[0, 0] == pytest.approx(
        np.array([[40.4 / 72], [-19.6 / 32]])
    )


@pytest.mark.parametrize(("agreement", "nats"), [([0, 0, 0, 7], 0), ([0, 0, 0, 7], 30), ([7, 7, 0, 0], 0)])
def test_em_balances_the_bias_to_the_class_prior(agreement, nats):
    # Class sums of 70 : 30, then predictions of 60 : 40. A class prior that is not uniform becomes 70 : 30.
    estimation = before_choice_with_prototypes()
    estimation.add(np.concatenate([evidence(nats, nats).ravel(), agreement]))
    before = next_model(estimation).logit_bias
    estimation.add(np.array([[70.0, 40.0], [30.0, -20.0]]).ravel())
    prior = EVEN if agreement[0] else np.array([0.7, 0.3])
    estimation.add(np.array([60.0, 40.0]))
    moved = -np.log(np.array([0.6, 0.4]) / prior)
    assert next_model(estimation).logit_bias - before == pytest.approx(moved - moved.mean())


def test_a_class_without_predictions_keeps_a_small_share():
    # 1 % of a uniform share: 0.005 of 1.005, a ratio of 200 before it is shrunk.
    estimation = Estimation(PriorSettings(2, 1, prototypes=False))
    estimation.add(np.array([100.0, 0.0, 0.0, 0.0]))
    estimation.add(np.array([100.0, 0.0]))
    first, second = next_model(estimation).class_prior
    assert first / second == pytest.approx(200 ** (1 - (0.25 / (math.log(200) / 2)) ** 2))


def test_totals_are_split_in_the_order_of_their_statistics():
    # Evidence comes before agreement: 2 * 6 numbers, then 4.
    estimation = before_choice_with_prototypes()
    assert estimation.size(7) == 16
    assert estimation.images == 100
