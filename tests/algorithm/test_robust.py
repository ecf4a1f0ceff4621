"""Robust aggregation: numbers computed by hand, and properties for any updates."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcopl.algorithm.aggregate import weighted_mean
from fedcopl.algorithm.robust import (
    _MAX_RATIO,
    _distances_to_median,
    _nearest_to_others,
    _trim_count,
    bounded_counts,
    bounded_weights,
    clip_evidence,
    clip_update,
    inconsistent_posterior_sums,
    robust_mean,
    swapped_classes,
    trimmed_total,
    update_excess,
)

RULES = ["mean", "trimmed", "median", "krum"]
ROBUST = RULES[1:]
numbers = st.floats(-100, 100, width=32, allow_subnormal=False)
updates = st.lists(arrays(np.float32, (2, 2), elements=numbers), min_size=3, max_size=9)


def named(values):
    return [{"visual": np.asarray(value, np.float32)} for value in values]


def combined(rule, values, weights=None):
    return robust_mean(rule, named(values), weights or [1] * len(values))["visual"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mean", [(1 + 2 + 3 + 4 + 1000) / 5, (10 + 20 + 30 + 40 - 1000) / 5]),
        ("trimmed", [3, 20]),  # of 1 2 3 4 1000 the middle three are 2 3 4; of -1000 10 20 30 40 they are 10 20 30
        ("median", [3, 20]),
        # Squared distances: 101 between neighbours, 404 over one, 909 over two. Five sites: f = 1, the 2 nearest count:
        # 2 and 3 have 101 + 101, the others more; the third nearest is 404 for both; the fourth, the outlier, decides:
        # (1000 - 3)^2 + (-1000 - 30)^2 is 2,054,909, and (1000 - 2)^2 + (-1000 - 20)^2 is 2,036,404.
        ("krum", [2, 20]),
    ],
)
def test_by_hand(rule, expected):
    sent = [[1, 10], [2, 20], [3, 30], [4, 40], [1000, -1000]]
    assert combined(rule, sent).tolist() == expected


def test_only_the_mean_uses_reported_numbers_of_images():
    sent = [[0.0], [1.0], [5.0]]
    assert combined("mean", sent, [1, 1, 98]).tolist() == pytest.approx([4.91])
    assert [combined(rule, sent, [1, 1, 98]).tolist() for rule in ROBUST] == [[1.0]] * 3


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_the_mean_of_one_or_two_clients(rule):
    assert combined(rule, [[1.0]], [7]).tolist() == [1.0]
    assert combined(rule, [[1.0], [4.0]], [1, 2]).tolist() == [3.0]
    assert robust_mean(rule, [{}, {}, {}], [1, 1, 1]) == {}


@pytest.mark.parametrize("rule", ROBUST)
@given(updates, st.randoms())
def test_the_order_of_clients_does_not_matter(rule, sent, random):
    mixed = list(sent)
    random.shuffle(mixed)
    assert combined(rule, mixed).tolist() == combined(rule, sent).tolist()


@pytest.mark.parametrize("rule", RULES)
@given(arrays(np.float32, 3, elements=numbers), st.integers(1, 9))
def test_equal_updates_aggregate_to_themselves(rule, update, sites):
    assert combined(rule, [update] * sites) == pytest.approx(update, rel=1e-6)


@pytest.mark.parametrize("rule", ROBUST)
@given(st.data(), st.integers(3, 9))
def test_one_byzantine_client_cannot_move_the_result_out_of_the_honest_range(rule, data, sites):
    honest = data.draw(st.lists(arrays(np.float32, 4, elements=numbers), min_size=sites - 1, max_size=sites - 1))
    byzantine = data.draw(arrays(np.float32, 4, elements=st.floats(-3e4, 3e4, width=32)))
    result = combined(rule, [*honest, byzantine])
    if rule == "krum":  # the Byzantine update may be selected only if it is as near to an honest one as these are
        near = min(np.linalg.norm(byzantine - one) for one in honest)
        spread = max(np.linalg.norm(a - b) for a in honest for b in honest)
        assert any((result == one).all() for one in honest) or near <= spread * (1 + 1e-6)
        return
    assert (np.min(honest, axis=0) <= result + 1e-4).all()
    assert (result <= np.max(honest, axis=0) + 1e-4).all()


@given(st.integers(3, 30))
def test_trimming_leaves_at_least_one_value(sites):
    assert sites - 2 * _trim_count(sites) >= 1


def test_krum_selects_one_of_two_similar_updates():
    assert _nearest_to_others([np.array([0.0]), np.array([10.0]), np.array([11.0])]) == 1


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=9))
def test_no_weight_exceeds_ten_times_the_median_of_the_others(weights):
    allowed = bounded_weights(weights)
    assert all(one <= weight for one, weight in zip(allowed, weights, strict=True))
    for number, one in enumerate(allowed):
        others = [weight for other, weight in enumerate(weights) if other != number and weight]
        assert len(others) < 2 or one <= _MAX_RATIO * np.median(others)
    if min(weights) * _MAX_RATIO >= max(weights):
        assert allowed == weights


@given(st.lists(st.integers(0, 9), max_size=9))
def test_bounded_weights_agree_with_a_median_for_each_client(weights):
    def limit(number):
        others = [weight for other, weight in enumerate(weights) if other != number and weight]
        return 10 * float(np.median(others)) if len(others) >= 2 else np.inf

    allowed = [int(min(weight, limit(number))) for number, weight in enumerate(weights)]
    assert bounded_weights(weights) == allowed


def test_counts_are_scaled_to_ten_times_the_median_of_the_others():
    # 30 and 20 images at the honest clients, with median 25; 10^6 of each of two classes become 125 of each.
    counts = np.array([[10, 20], [20, 0], [10**6, 10**6]])
    assert bounded_counts(counts).tolist() == [[10, 20], [20, 0], [125, 125]]
    honest = np.array([[1, 2], [3, 4], [5, 5]])
    assert bounded_counts(honest).tolist() == honest.tolist()


def test_an_update_is_clipped_to_ten_times_the_median_of_the_others():
    start = {"visual": np.zeros(2, np.float32)}
    sent = named([[3, 4], [0, 5], [300, 400]])
    # The others moved by 5 each, so the maximum is 50; 500 are clipped to a tenth.
    too_far = update_excess(sent, start)
    assert [one["visual"] for one in too_far] == pytest.approx(
        [5 / (_MAX_RATIO * 252.5), 5 / (_MAX_RATIO * 252.5), 500 / (_MAX_RATIO * 5)]
    )
    cut = [clip_update(part, start, far) for part, far in zip(sent, too_far, strict=True)]
    assert cut[0] is sent[0] and cut[1] is sent[1]
    assert cut[2]["visual"].tolist() == [30, 40]


def test_an_update_of_up_to_three_norms_of_the_array_is_allowed():
    # The array has length 5; others moved by 1, so ten times their median is 10, and three lengths are 15.
    start = {"visual": np.array([3, 4], np.float32)}
    sent = named([[4, 4], [3, 5], [3 + 30, 4]])
    assert [one["visual"] for one in update_excess(sent, start)] == pytest.approx([1 / 155, 1 / 155, 30 / 15])


def test_zero_updates_and_a_single_other_client_set_no_limit():
    start = {"visual": np.zeros(1, np.float32)}
    assert [one["visual"] for one in update_excess(named([[0], [0], [9]]), start)] == [0, 0, 0]
    assert [one["visual"] for one in update_excess(named([[0.001], [9]]), start)] == [0, 0]


def length(part):
    return np.linalg.norm(part["visual"].astype(np.float64))  # in float32 the square of a tiny number is 0


@given(updates)
@example([np.full((2, 2), value, np.float32) for value in (1.2e-38, 1.2e-38, 100)])
def test_clipped_updates_have_the_maximum_length(sent):
    start = {"visual": np.zeros((2, 2), np.float32)}
    parts = named(sent)
    too_far = update_excess(parts, start)
    cut = [clip_update(part, start, far) for part, far in zip(parts, too_far, strict=True)]
    for part, whole, far in zip(cut, parts, too_far, strict=True):
        assert length(part) * max(far["visual"], 1) == pytest.approx(length(whole), rel=1e-4, abs=1e-6)
    if all(far["visual"] <= 1 for far in too_far):
        same = weighted_mean(cut, [1] * len(cut))["visual"].tobytes()
        assert same == weighted_mean(parts, [1] * len(parts))["visual"].tobytes()


def test_one_extreme_value_does_not_determine_a_trimmed_total():
    assert trimmed_total([-1.0, -1.0, -1.0, -1.0, 10**6]) == -3.0
    assert trimmed_total([1.0, 1.0, 1.0, 1.0, -(10**6)]) == 3.0
    assert trimmed_total([2.0, 3.0]) == 5.0


# Clients whose class sums are those of other classes.


def class_sums(clients, classes=3, images=5.0):
    """(K, 1, C, 1 + 3): `images` of each class, whose mean is the unit vector of the class that `clients` lists."""
    rows = [[[images, *(images * np.eye(classes)[c])] for c in shown] for shown in clients]
    return np.array(rows)[:, None]


RIGHT, SWAPPED = (0, 1, 2), (1, 2, 0)


def test_a_client_with_the_means_of_other_classes_is_returned():
    assert swapped_classes(class_sums([RIGHT, RIGHT, SWAPPED, RIGHT, RIGHT])) == [2]
    assert swapped_classes(class_sums([RIGHT] * 5)) == []


def test_swapped_clients_are_returned_up_to_a_minority():
    assert swapped_classes(class_sums([RIGHT, SWAPPED, RIGHT, SWAPPED, RIGHT])) == [1, 3]
    assert swapped_classes(class_sums([RIGHT, RIGHT, RIGHT, SWAPPED, SWAPPED, SWAPPED])) == []


def test_few_clients_few_classes_or_few_images_are_not_compared():
    assert swapped_classes(class_sums([RIGHT, RIGHT, SWAPPED, RIGHT])) == []  # four clients
    assert swapped_classes(class_sums([RIGHT, RIGHT, SWAPPED, RIGHT, RIGHT], images=4.0)) == []
    one = class_sums([RIGHT, RIGHT, SWAPPED, RIGHT, RIGHT])
    one[2, 0, :2] = 0  # the client has one class only
    assert swapped_classes(one) == []


def test_means_that_are_slightly_nearer_to_other_classes_are_accepted():
    # By chance each mean of the third client is a little nearer to another class: 1.1 times as far from its own.
    sums = class_sums([RIGHT] * 5, images=100.0)
    sums[2, 0, :, 1:] = 100 * np.array([[0.49, 0.51, 0], [0, 0.49, 0.51], [0.51, 0, 0.49]])
    assert swapped_classes(sums) == []


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_each_client_is_compared_with_the_median_of_the_others(clients, seed):
    rng = np.random.default_rng(seed)
    means, has = (
        rng.integers(-3, 4, (clients, 2, 3)) / 2,
        rng.random(clients) < 0.7,
    )  # few values, so that some are equal
    distances = _distances_to_median(means, means[:, 0], has)
    for client in range(clients):
        others = [means[other, 0] for other in range(clients) if has[other] and other != client]
        median = np.median(others, axis=0) if others else np.full(3, np.inf)
        assert distances[client].tolist() == ((means[client] - median) ** 2).sum(axis=1).tolist()


def test_one_class_similar_to_another_is_accepted():
    # Two of three classes fit: 67 % of its images.
    assert swapped_classes(class_sums([RIGHT, RIGHT, (0, 1, 1), RIGHT, RIGHT])) == []


def test_one_model_under_which_the_classes_fit_is_enough():
    both = np.concatenate([class_sums([RIGHT, RIGHT, SWAPPED, RIGHT, RIGHT]), class_sums([RIGHT] * 5)], axis=1)
    assert swapped_classes(both) == []


# Posterior sums under several logit biases, and evidence.

BIASES = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [3.0, -2.0, 0.5]])


def posterior_sums(scores, biases=BIASES):
    """(M, C): the sums of the posteriors of images with these scores, (n, C)."""
    shifted = np.exp(scores[None] + biases[:, None] - scores.max(axis=1)[None, :, None])
    return (shifted / shifted.sum(axis=2, keepdims=True)).sum(axis=1)


scores_of_images = arrays(np.float64, st.tuples(st.integers(1, 8), st.just(3)), elements=st.floats(-30, 30))


@given(scores_of_images, arrays(np.float64, (4, 3), elements=st.floats(-8, 8)))
def test_the_sums_of_any_images_under_any_biases_are_possible(scores, biases):
    assert inconsistent_posterior_sums(biases, posterior_sums(scores, biases)[None]) == []


def test_impossible_sums_are_returned():
    images = np.array([[2.0, 0.0, -1.0], [0.5, 0.3, 0.0], [0.0, 1.0, 0.5], [-1.0, 0.0, 2.0]])
    honest = posterior_sums(images)
    # The sums of the next class fall where their own bias rises.
    assert inconsistent_posterior_sums(BIASES, np.stack([honest, np.roll(honest, 1, axis=1), honest])) == [1]
    # Of 4 images 2.9 cannot become one without their class's bias falling.
    jump = honest.copy()
    jump[1] = [0.0, 4.0, 0.0]
    assert inconsistent_posterior_sums(BIASES, np.stack([honest, honest, jump])) == [2]


def test_sums_that_fall_with_a_rising_bias_are_returned():
    # Within what the bias allows each class (0.95 > exp(0.9 - 1), 1.05 < exp(1 - 0.9)), but (b - b') (N - N') = -0.09.
    biases = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 0.9, -1.0, -0.9]])
    assert inconsistent_posterior_sums(biases, np.array([[[1.0, 1.0, 1.0, 1.0], [1.0, 0.95, 1.0, 1.05]]])) == [0]
    assert inconsistent_posterior_sums(biases, np.array([[[1.0, 1.0, 1.0, 1.0], [1.0, 1.05, 1.0, 0.95]]])) == []


def test_a_client_that_does_not_respond_is_returned_among_at_least_five():
    honest = posterior_sums(np.array([[2.0, 0.0, -1.0], [0.5, 0.3, 0.0], [0.0, 1.0, 0.5]]))
    frozen = np.tile([3.0, 0.0, 0.0], (3, 1))
    assert inconsistent_posterior_sums(BIASES, np.stack([honest, honest, frozen, honest, honest])) == [2]
    assert inconsistent_posterior_sums(BIASES, np.stack([honest, honest, frozen, honest])) == []  # four clients
    assert inconsistent_posterior_sums(BIASES, np.stack([frozen] * 5)) == []  # a model that is certain of every image


def test_evidence_is_clipped_to_the_range_of_the_others():
    # The range of the others is 0 to 3, without trimming: from -2 * 3 to 3 + 2 * 3.
    assert clip_evidence(np.array([[0.0], [1.0], [2.0], [3.0], [-20.0]]))[:, 0].tolist() == [0, 1, 2, 3, -6]
    assert clip_evidence(np.array([[0.0], [1.0], [2.0], [3.0], [20.0]]))[:, 0].tolist() == [0, 1, 2, 3, 9]
    # Of ten one more is trimmed on each side, so that two cannot support each other: from 1 - 2 * 6 to 7 + 2 * 6.
    two = np.array([[float(number)] for number in range(8)] + [[90.0], [91.0]])
    assert clip_evidence(two)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 19, 19]
    assert clip_evidence(np.array([[0.0], [1.0], [2.0], [99.0]]))[:, 0].tolist() == [0, 1, 2, 99]  # too few
