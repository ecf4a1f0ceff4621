"""Balance, site prior, prototypes, and what is decided by evidence; the numbers are worked by hand unless said."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcopl.algorithm.balance import LONGEST_STEP, adapted, even_mix, is_balanced, predicted_mix, rebalanced
from fedcopl.algorithm.evidence import (
    SHARPNESSES,
    TEMPERINGS,
    USUAL_TEMPERING,
    choose_sharpness,
    choose_sureness,
    choose_tempering,
    common_mix,
    expected_right,
    is_far_from_even,
    is_telling,
    is_uneven,
    is_worth_training,
)
from fedcopl.algorithm.priors import Reading, View, clustered_by, learn, looked_at, predicted_by
from fedcopl.algorithm.prototypes import (
    KAPPA,
    ClassSums,
    class_sums,
    distances,
    feature_sums,
    make_prototypes,
    sphere_share,
)
from fedcopl.algorithm.site_prior import (
    STRENGTHS,
    fit_site_prior,
    fit_site_priors,
    held_out_evidence,
    likelihood_ratios,
    site_mix,
)
from one_site import explained_by, shown_by


def logs(probs):
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, np.float64))


def log_softmax(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def drawn(seed, images, classes, *, sharp=3.0, mix=None):
    """Posteriors that are calibrated under equal shares, of images whose classes have this mix, and those classes.

    A class c is drawn, then scores with log-likelihood ratios N(sharp e_c, sharp): these are exactly
    the posteriors under equal shares.
    """
    rng = np.random.default_rng(seed)
    label = rng.choice(classes, size=images, p=mix)
    return log_softmax(rng.normal(size=(images, classes)) * math.sqrt(sharp) + sharp * np.eye(classes)[label]), label


class InProcess:
    """Sums over clients in one process."""

    def __init__(self, clients):
        self.clients = clients  # (log_probs, features)
        self.views = [View.of(log_probs) for log_probs, _ in clients]

    def features(self):
        return total(feature_sums(features, full=True) for _, features in self.clients)

    def predicted(self, readings):
        return total(predicted_by(view, readings) for view in self.views)

    def explained(self, readings):
        return total(explained_by(view, readings) for view in self.views)

    def classes_of(self, reading):
        return self._class_sums(shown_by, reading)

    def clusters_of(self, reading):
        return self._class_sums(clustered_by, reading)

    def _class_sums(self, by, reading):
        shown = [by(view, features, reading) for view, (_, features) in zip(self.views, self.clients, strict=True)]
        self.own = [own for _, own in shown]
        return total(sums for sums, _ in shown)

    def look_at(self, prototypes):
        each = zip(self.views, self.clients, self.own, strict=True)
        self.views = [looked_at(view, features, prototypes, own) for view, (_, features), own in each]


def total(parts):
    first, *others = parts
    return sum(others, start=first)


# Balance


def test_one_step_by_hand():
    # Two images, b = 0, equal shares: m = (0.9 + 0.7, 0.1 + 0.3) = (1.6, 0.4), shares 0.8 and 0.2 where 0.5 are due.
    predicted = predicted_mix(logs([[0.9, 0.1], [0.7, 0.3]]), np.zeros(2), even_mix(2))
    assert predicted == pytest.approx([1.6, 0.4])
    # b = (-log 1.6, -log 0.4), and less its mean: half the difference, log(4) / 2 = log 2 either way.
    assert rebalanced(np.zeros(2), predicted, even_mix(2)) == pytest.approx([-math.log(2), math.log(2)])


def test_a_known_mix_is_balanced_to():
    # Predicted 0.8 and 0.2, wanted 0.8 and 0.2: nothing to move.
    assert rebalanced(np.zeros(2), np.array([1.6, 0.4]), np.array([0.8, 0.2])) == pytest.approx([0, 0])
    assert is_balanced(np.array([1.6, 0.4]), np.array([0.8, 0.2]))
    assert not is_balanced(np.array([1.6, 0.4]), even_mix(2))


def test_balance_is_reached_and_undoes_a_bias():
    log_probs, _ = drawn(0, 3000, 4)
    leaning = log_probs + np.array([1.5, 0.0, -1.0, 0.5])
    bias = balanced([log_softmax(leaning)], steps=60)
    assert predicted_mix(leaning, bias, even_mix(4)) / 3000 == pytest.approx(np.full(4, 0.25), abs=0.0126)
    # Sampled labels are equal shares up to about 1 in 50; so is the bias that is found.
    assert bias - bias.mean() == pytest.approx(-np.array([1.25, -0.25, -1.25, 0.25]), abs=0.2)


def balanced(log_probs, *, steps=10):
    bias = np.zeros(log_probs[0].shape[1])
    mix = even_mix(len(bias))
    for _ in range(steps):
        bias = rebalanced(bias, total(predicted_mix(rows, bias, mix) for rows in log_probs), mix)
    return bias


def test_a_class_that_nobody_predicts_moves_by_bounded_steps():
    # exp(-inf) = 0: its share is 0, its step log 0; the other one's is log 2, within the bound.
    bias = rebalanced(np.zeros(2), np.array([5.0, 0.0]), even_mix(2))
    assert bias[1] - bias[0] == pytest.approx(LONGEST_STEP + math.log(2))
    saturated = logs([[1.0, 0.0], [1.0, 0.0]])
    assert np.isfinite(balanced([saturated], steps=50)).all()


def test_no_image_and_noisy_sums_are_survived():
    assert rebalanced(np.array([1.0, -1.0]), np.zeros(2), even_mix(2)).tolist() == [1.0, -1.0]
    assert np.isfinite(rebalanced(np.zeros(3), np.array([4.0, -1.0, 2.0]), even_mix(3))).all()
    assert predicted_mix(np.zeros((0, 3)), np.zeros(3), even_mix(3)).tolist() == [0, 0, 0]


def test_there_is_an_answer_though_everything_was_ruled_out():
    # The image can only be class 0, the site holds only class 1.
    answer = adapted(logs([[1.0, 0.0]]), np.zeros(2), np.array([0.0, 1.0]))
    assert np.isfinite(answer).all() and np.exp(answer).sum() == pytest.approx(1)


@pytest.mark.parametrize("classes", [2, 1000])
def test_few_and_many_classes(classes):
    log_probs, _ = drawn(1, 200, classes, sharp=12.0)
    bias = balanced([log_probs], steps=20)
    prior = fit_site_prior(log_probs, bias, even_mix(classes))
    assert np.isfinite(bias).all() and bias.mean() == pytest.approx(0, abs=1e-9)
    assert prior.mix.sum() == pytest.approx(1) and (prior.mix > 0).all()


# Site prior


def test_the_mix_of_a_confusion_free_model_is_counted():
    # Three images surely of class 0 and one of class 1: a = 0 gives the shares 3/4 and 1/4.
    ratios = likelihood_ratios(logs([[1, 0], [1, 0], [1, 0], [0, 1]]), np.zeros(2), even_mix(2))
    assert site_mix(ratios, even_mix(2), 0.0) == pytest.approx([0.75, 0.25])
    # a = 1: as many images again, in equal shares: (3 + 2) / 8 and (1 + 2) / 8.
    assert site_mix(ratios, even_mix(2), 1.0) == pytest.approx([5 / 8, 3 / 8])
    # around another mix: (3 + 4 * 0.9) / 8.
    around = np.array([0.9, 0.1])
    assert site_mix(likelihood_ratios(logs([[1, 0], [1, 0], [1, 0], [0, 1]]), np.zeros(2), around), around, 1.0)[
        0
    ] == pytest.approx(6.6 / 8)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([0.03, 0.3, 1.0]))
def test_em_finds_the_maximum_of_an_independent_search(seed, classes, strength):
    """The posterior of pi up to a constant: sum_i log sum_c pi_c r_i(c) + a n sum_c t_c log pi_c, by scipy's search."""
    mix = np.random.default_rng(seed).dirichlet(np.ones(classes))
    log_probs, _ = drawn(seed, 40, classes, mix=mix)
    around = even_mix(classes)
    ratios = likelihood_ratios(log_probs, np.zeros(classes), around)

    def loss(free):
        pi = np.exp(free - free.max())
        pi = pi / pi.sum()
        return -(np.log(ratios @ pi).sum() + strength * len(ratios) * (around * np.log(pi)).sum())

    found = scipy.optimize.minimize(loss, np.zeros(classes), method="BFGS", options={"gtol": 1e-8}).x
    expected = np.exp(found - found.max())
    assert site_mix(ratios, around, strength) == pytest.approx(expected / expected.sum(), abs=2e-4)


def test_more_images_less_error():
    mix = np.array([0.6, 0.3, 0.1, 0.0])
    errors = []
    for images in (30, 300, 3000):
        found = [fit_site_prior(drawn(seed, images, 4, mix=mix)[0], np.zeros(4), even_mix(4)).mix for seed in range(10)]
        errors.append(np.mean([abs(pi - mix).sum() for pi in found]))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.06


def test_a_uniform_site_with_a_calibrated_model_stays_uniform():
    for seed in range(5):
        prior = fit_site_prior(drawn(seed, 400, 5)[0], np.zeros(5), even_mix(5))
        assert abs(prior.mix - 0.2).max() < 0.05


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_permuting_classes_permutes_the_answer(seed, order):
    log_probs, _ = drawn(seed, 50, 4, mix=[0.7, 0.2, 0.1, 0.0])
    order = list(order)
    bias = balanced([log_probs])
    one = fit_site_prior(log_probs, bias, even_mix(4))
    other = fit_site_prior(log_probs[:, order], balanced([log_probs[:, order]]), even_mix(4))
    assert balanced([log_probs[:, order]]) == pytest.approx(bias[order])
    assert other.strength == one.strength
    assert other.mix == pytest.approx(one.mix[order], abs=1e-6)


def test_classes_nobody_holds_are_all_but_ruled_out():
    log_probs, _ = drawn(3, 300, 4, sharp=6.0, mix=[0.5, 0.5, 0.0, 0.0])
    prior = fit_site_prior(log_probs, np.zeros(4), even_mix(4))
    assert prior.strength < 0.3 and prior.mix[2:].sum() < 0.1 and prior.evidence > 0


def test_one_class_seen():
    log_probs, _ = drawn(4, 100, 3, mix=[1.0, 0.0, 0.0])
    assert fit_site_prior(log_probs, np.zeros(3), even_mix(3)).mix[0] > 0.9


@pytest.mark.parametrize("rows", [[], [[0.4, 0.6]], [[1.0, 0.0]]])
def test_no_image_and_one_image_teach_nothing(rows):
    log_probs = logs(rows).reshape(len(rows), 2)
    prior = fit_site_prior(log_probs, np.zeros(2), even_mix(2))
    assert (prior.strength, prior.evidence) == (math.inf, 0.0)
    assert prior.mix.tolist() == [0.5, 0.5]


def one_at_a_time(ratios, around):
    """The site prior as the formulas say it: fold by fold, strength by strength, image by image."""
    folds = min(5, len(ratios))
    evidence = [0.0] * len(STRENGTHS)
    for number, strength in enumerate(STRENGTHS):
        for fold in range(folds):
            mix = site_mix(np.delete(ratios, np.s_[fold::folds], axis=0), around, strength)
            evidence[number] += sum(np.log(row @ mix) for row in ratios[fold::folds])
    best = int(np.argmax(evidence))
    return site_mix(ratios, around, STRENGTHS[best]), evidence


@pytest.mark.parametrize(("images", "classes"), [(2, 2), (7, 3), (60, 4), (301, 10)])
def test_several_readings_at_once_are_as_one_at_a_time(images, classes):
    mixes = np.random.default_rng(images).dirichlet(np.ones(classes), 3)
    ratios = [
        likelihood_ratios(drawn(seed, images, classes, mix=mix)[0], np.zeros(classes), even_mix(classes))
        for seed, mix in enumerate(mixes)
    ]
    around = np.tile(even_mix(classes), (3, 1))
    evidence = held_out_evidence(np.stack(ratios), around)
    for each, found, prior in zip(ratios, evidence, fit_site_priors(np.stack(ratios), around), strict=True):
        mix, expected = one_at_a_time(each, around[0])
        tried = np.isfinite(found)
        assert found[tried] == pytest.approx(np.array(expected)[tried], abs=1e-3 * images)
        assert all(np.array(expected)[~tried] < max(expected))
        assert prior.evidence == pytest.approx(max(expected), abs=1e-3 * images)
        assert prior.mix == pytest.approx(mix, abs=2e-3)


@given(st.integers(2, 30), st.integers(0, 99))
def test_a_mix_under_a_reading_does_not_depend_on_what_else_is_asked(images, seed):
    """To the bit: a site climbs under each reading for as long as that one needs, and no longer."""
    log_probs, _ = drawn(seed, images, 4)
    biases = np.array([[0.0, 0, 0, 0], [2, -1, 0, -1], [-6, 2, 2, 2]])
    around = np.tile(even_mix(4), (3, 1))
    ratios = np.stack([likelihood_ratios(log_probs, bias, even_mix(4)) for bias in biases])
    for of_images, mix, prior in zip(ratios, around, fit_site_priors(ratios, around), strict=True):
        assert (prior.mix == site_mix(of_images, mix, prior.strength)).all()


def test_held_out_evidence_by_hand():
    # Two sure images of class 0, each a fold: the mix of the other with strength a is (1 + a/2) / (1 + a) for class 0,
    # and an image sure of class 0 is p / t = 2 times as likely there: log(2 (1 + a/2) / (1 + a)) each.
    ratios = likelihood_ratios(logs([[1, 0], [1, 0]]), np.zeros(2), even_mix(2))
    expected = [0 if math.isinf(a) else 2 * math.log((2 + a) / (1 + a)) for a in STRENGTHS]
    assert held_out_evidence(ratios[None], even_mix(2)[None])[0] == pytest.approx(expected)


def test_strength_is_infinite_where_there_is_no_skew_to_speak_of_and_small_where_there_is():
    # The held-out likelihood of a mix that is nothing but noise is below that of equal shares.
    strengths = [fit_site_prior(drawn(seed, 100, 10)[0], np.zeros(10), even_mix(10)).strength for seed in range(20)]
    assert np.median(strengths) >= 1
    skewed = [
        fit_site_prior(drawn(seed, 100, 10, mix=[0.5, 0.5] + [0] * 8)[0], np.zeros(10), even_mix(10)).strength
        for seed in range(20)
    ]
    assert np.median(skewed) <= 0.1


# Prototypes


def test_means_and_spread_by_hand():
    # One dimension, classes at 0 and 4 with two images each, 1 to either side: F = 8, G = 1 + 1 + 9 + 25 = 36.
    features = np.array([[-1.0], [1.0], [3.0], [5.0]])
    own = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    sums = class_sums(features, own)
    assert (sums.images.tolist(), sums.total.tolist()) == ([2, 2], [[0], [8]])
    whole = feature_sums(features, full=True)
    assert (whole.images, whole.total.tolist(), whole.square.tolist()) == (4, [8], [[36]])
    # Within: (36 - 0 - 64 / 2) / 4 = 1. Means drawn to the common 2 as by kappa = 2 images: (0 + 4) / 4, (8 + 4) / 4.
    made = make_prototypes(whole, sums)
    assert made.total / made.images[:, None] == pytest.approx(np.array([[1.0], [3.0]]))
    # A new image at 0: (0 - 1)^2 and (0 - 3)^2, times (2 + 2) / (2 + 2 + 1).
    assert distances(made, np.array([[0.0]])) == pytest.approx(np.array([[0.8, 7.2]]))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.booleans())
def test_an_image_is_judged_without_its_own_share(seed, full):
    rng = np.random.default_rng(seed)
    features, own = rng.normal(size=(12, 3)), rng.dirichlet(np.ones(4), size=12)
    whole, sums = feature_sums(features, full=full), class_sums(features, own)
    made = make_prototypes(whole, sums)
    # The common mean and the spread stay as they are; only the class means are made without image 5.
    less = class_sums(features[[5]], own[[5]])
    without = type(made)(made.images - less.images, made.total - less.total @ made.whiten, made.whiten)
    assert distances(made, features, own)[5] == pytest.approx(distances(without, features[[5]])[0])


def test_a_sphere_where_only_the_size_of_the_spread_is_known():
    rng = np.random.default_rng(0)
    features, own = rng.normal(size=(200, 5)), rng.dirichlet(np.ones(3), size=200)
    one = make_prototypes(feature_sums(features, full=False), class_sums(features, own))
    assert one.whiten == pytest.approx(np.eye(5) * one.whiten[0, 0])


def test_the_spread_is_shrunk_the_less_the_more_images():
    values = np.array([5.0, 1.0, 0.5, 0.1])
    shares = [sphere_share(values, images) for images in (5, 50, 500)]
    assert 1 >= shares[0] > shares[1] > shares[2] > 0
    assert sphere_share(np.ones(4), 100) == 1.0


def test_empty_classes_and_identical_images_give_numbers():
    features = np.tile([[0.6, 0.8]], (5, 1))
    own = np.tile([[1.0, 0.0, 0.0]], (5, 1))
    made = make_prototypes(feature_sums(features, full=True), class_sums(features, own))
    assert np.isfinite(distances(made, features, own)).all()


# Only sums matter


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 11))
def test_two_clients_tell_together_what_one_with_all_images_tells(seed, first):
    rng = np.random.default_rng(seed)
    log_probs, features = log_softmax(rng.normal(size=(12, 3))), rng.normal(size=(12, 4))
    own = np.exp(log_probs)
    reading = Reading(rng.normal(size=3), even_mix(3))
    parts = [slice(0, first), slice(first, 12)]
    whole = class_sums(features, own)
    summed = total(class_sums(features[part], own[part]) for part in parts)
    assert summed.images == pytest.approx(whole.images) and summed.total == pytest.approx(whole.total)
    square = total(feature_sums(features[part], full=True) for part in parts)
    assert square.square == pytest.approx(feature_sums(features, full=True).square)
    predicted = total(predicted_by(View.of(log_probs[part]), [reading]) for part in parts)
    assert predicted == pytest.approx(predicted_by(View.of(log_probs), [reading]))


# Evidence


def test_evidence_tells_nothing_below_a_twentieth_nat_an_image():
    assert not is_telling(9.9, 10)
    assert not is_telling(49.0, 1000)
    assert is_telling(50.0, 1000)


def test_the_bluntest_that_explains_almost_as_well():
    # 100 images, best 100: one nat each, so 5 % may be given up: 95.
    evidence = np.array([100.0, 97, 95, 94, 0, 0, 0])
    assert choose_sharpness(evidence, 100) == SHARPNESSES[2]
    # Half a nat each: 2.5 % of 100 may be given up.
    assert choose_sharpness(evidence, 200) == SHARPNESSES[0]
    assert choose_sharpness(np.array([1.0, 2, 3, 2, 1, 0, 0]), 100) is None


def test_tau_rises_while_it_is_worth_while():
    assert choose_tempering(np.array([100.0, 104.0, 200.0, 300.0]), 100) == TEMPERINGS[0]
    assert choose_tempering(np.array([100.0, 105.0, 110.0, 200.0]), 100) == TEMPERINGS[1]
    assert choose_tempering(np.array([100.0, 120.0, 130.0, 136.0]), 100) == TEMPERINGS[2]
    assert choose_tempering(np.array([100.0, 120.0, 130.0, 137.0]), 100) == TEMPERINGS[3]
    assert choose_tempering(np.array([1.0, 2.0, 3.0, 2.0]), 100) == USUAL_TEMPERING


def test_equal_shares_are_given_up_only_for_more_evidence():
    assert is_uneven(100.0, 106.0, 100)
    assert not is_uneven(100.0, 102.0, 100)  # 3 % asked for
    assert not is_uneven(20.0, 24.0, 100)  # five nats asked for
    assert not is_uneven(0.0, 9.0, 100)


def test_every_class_keeps_a_share():
    assert common_mix(np.array([6.0, 2.0])) == pytest.approx([0.75, 0.25])
    assert common_mix(np.array([5.0, -1.0])) == pytest.approx([1 / 1.005, 0.005 / 1.005])
    assert common_mix(np.zeros(4)) == pytest.approx(np.full(4, 0.25))


def test_no_surer_than_two_opinions_agree():
    assert choose_sureness(np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]), 0.75) == SHARPNESSES[2]
    assert choose_sureness(np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]), 0.95) == 1.0
    assert choose_sureness(np.full(7, 0.9), 0.1) == SHARPNESSES[-1]


def test_labels_worth_training_on():
    posteriors = logs([[0.95, 0.05], [0.1, 0.9], [0.5, 0.5]])
    right = expected_right(posteriors, np.array([0, 1]), np.array([0, 1]))
    assert right == pytest.approx(1.85)
    assert is_worth_training(right, 2)  # 92.5 % where 90 are asked for
    assert not is_worth_training(1.7, 2)
    assert not is_worth_training(0.0, 0)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_the_sites_tell_how_sharp_posteriors_should_be(factor):
    """Posteriors that are three times too sharp are found out by the sites' evidence, calibrated ones are left."""
    rng = np.random.default_rng(5)
    mixes = rng.dirichlet(np.full(6, 0.3), size=5)
    sites = [log_softmax(factor * drawn(site, 300, 6, mix=mix)[0]) for site, mix in enumerate(mixes)]
    learned = learn(InProcess([(rows, np.zeros((300, 2))) for rows in sites]), 6, known_mix=None, prototypes=False)
    # 1/3 lies between 0.35 and 0.25; a little blunter than the best is meant.
    assert learned.reading.text in ((0.7, 1.0) if factor == 1 else (0.25, 0.35))


@pytest.mark.parametrize(("last", "expected"), [(1.0, False), (0.1, True)])
def test_an_uneven_world_is_noticed_and_an_even_one_is_not(last, expected):
    # The same skew at six sites, at each for the next class: together the classes are equally common, unless each is
    # rarer than the one before, the last a tenth of the first. The model itself has no bias.
    skew = np.array([0.6, 0.2, 0.1, 0.05, 0.05, 0.0])
    held = np.stack([np.roll(skew, place) for place in range(6)]) * last ** (np.arange(6) / 5)
    mixes = held / held.sum(axis=1, keepdims=True)
    sites = [drawn(site, 300, 6, mix=mix)[0] for site, mix in enumerate(mixes)]
    learned = learn(InProcess([(rows, np.zeros((300, 2))) for rows in sites]), 6, prototypes=False)
    assert learned.is_uneven is expected


def test_what_is_far_from_equal_shares():
    # Two classes 0.7 : 0.3 are 0.2 away. Chance alone brings sqrt(2 / (2 pi n)): 0.018 at n = 1,000, 0.178 at n = 10.
    assert is_far_from_even(np.array([0.7, 0.3]), 1000)  # sqrt(0.15^2 + 0.018^2) = 0.151
    assert not is_far_from_even(np.array([0.7, 0.3]), 10)  # sqrt(0.15^2 + 0.178^2) = 0.233
    assert not is_far_from_even(np.array([0.64, 0.36]), 1000)


@pytest.mark.parametrize(("last", "expected"), [(1.0, False), (0.1, True)])
def test_a_long_tail_that_all_sites_share_is_seen_in_how_images_cluster(last, expected):
    # No skew between the sites: posteriors cannot tell it from a lean of the model, which has none here.
    rng = np.random.default_rng(11)
    shares = last ** (np.arange(6) / 5)
    means = rng.normal(size=(6, 8)) * 2
    clients, truth = [], []
    for site in range(4):
        log_probs, label = drawn(30 + site, 200, 6, mix=shares / shares.sum())
        clients.append((log_probs, means[label] + rng.normal(size=(200, 8))))
        truth.append(label)
    federation = InProcess(clients)
    learned = learn(federation, 6)
    assert learned.is_uneven is expected
    rows, found = np.concatenate([rows for rows, _ in clients]), np.concatenate([features for _, features in clients])
    answers = learned.answers(rows, found, learned.reading.mix).argmax(axis=1)
    truth = np.concatenate(truth)
    assert (answers == truth).mean() > (rows.argmax(axis=1) == truth).mean()


def test_where_sites_do_not_differ_classes_are_balanced_half_way_to_what_is_predicted():
    sites = [drawn(50 + site, 300, 3, mix=(0.7, 0.2, 0.1))[0] for site in range(4)]
    learned = learn(InProcess([(rows, np.zeros((300, 2))) for rows in sites]), 3, prototypes=False)
    predicted = np.exp(np.concatenate(sites)).mean(axis=0)
    half = np.sqrt(predicted / 3)
    assert learned.reading.mix == pytest.approx(half / half.sum(), abs=1e-12)
    answered = np.exp(learned.answers(np.concatenate(sites), np.zeros((1200, 2)), learned.reading.mix)).mean(axis=0)
    assert answered == pytest.approx(learned.reading.mix, rel=0.05)  # what counts as balanced


def test_where_sites_differ_their_evidence_decides_and_nothing_is_halved():
    mixes = [(0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8)]
    sites = [drawn(60 + site, 300, 3, mix=mix)[0] + np.log([2.0, 1.0, 1.0]) for site, mix in enumerate(mixes)]
    learned = learn(InProcess([(log_softmax(rows), np.zeros((300, 2))) for rows in sites]), 3, prototypes=False)
    assert learned.reading.mix == pytest.approx(even_mix(3))


def test_prototypes_help_where_text_is_weak_and_images_are_clear():
    rng = np.random.default_rng(7)
    means = rng.normal(size=(5, 8)) * 2
    skew = np.array([0.6, 0.2, 0.1, 0.1, 0.0])  # at each site for the next class: together they are equally common
    clients, truth = [], []
    for site in range(5):
        log_probs, label = drawn(20 + site, 150, 5, sharp=1.0, mix=np.roll(skew, site))
        clients.append((log_probs, means[label] + rng.normal(size=(150, 8))))
        truth.append(label)
    by_text = np.mean([(rows.argmax(1) == label).mean() for (rows, _), label in zip(clients, truth, strict=True)])
    federation = InProcess(clients)
    learned = learn(federation, 5)
    assert learned.prototypes is not None
    answers = [
        learned.answers(rows, features, view.site_prior(learned.reading).mix)
        for (rows, features), view in zip(clients, federation.views, strict=True)
    ]
    right = np.mean([(rows.argmax(1) == label).mean() for rows, label in zip(answers, truth, strict=True)])
    assert right > by_text + 0.15


def test_answers_need_no_other_image():
    rng = np.random.default_rng(8)
    federation = InProcess([(drawn(site, 60, 3)[0], rng.normal(size=(60, 4))) for site in range(3)])
    learned = learn(federation, 3)
    log_probs, features = drawn(9, 5, 3)[0], rng.normal(size=(5, 4))
    together = learned.answers(log_probs, features, even_mix(3))
    alone = [learned.answers(log_probs[[i]], features[[i]], even_mix(3))[0] for i in range(5)]
    assert np.exp(together).sum(axis=1) == pytest.approx(np.ones(5))
    assert together == pytest.approx(np.array(alone))


def test_degenerate_federations_come_to_an_end():
    saturated = logs([[1.0, 0.0, 0.0]] * 10)
    for clients in (
        [(saturated, np.ones((10, 4)))],
        [(np.zeros((0, 3)), np.zeros((0, 4))), (saturated, np.ones((10, 4)))],
        [(logs([[0.2, 0.3, 0.5]]), np.ones((1, 4)))],
        [(saturated, np.ones((10, 4))), (logs([[0.0, 1.0, 0.0]] * 10), -np.ones((10, 4)))],
    ):
        federation = InProcess(clients)
        learned = learn(federation, 3)
        for (rows, features), view in zip(clients, federation.views, strict=True):
            mix = view.site_prior(learned.reading).mix
            assert np.isfinite(learned.answers(rows, features, mix)).all()


def test_class_sums_of_no_image():
    sums = class_sums(np.zeros((0, 4)), np.zeros((0, 3)))
    assert isinstance(sums, ClassSums) and sums.total.shape == (3, 4) and KAPPA > 0
