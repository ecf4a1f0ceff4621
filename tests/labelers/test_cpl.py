import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.select import Selection
from fedcopl.labelers.base import exact_quantile
from fedcopl.labelers.cpl import (
    _likely_for_the_image,
    _with_soft_targets,
    candidate_sets,
    match,
    select_candidates,
)
from fedcopl.priors.posterior import log_softmax

# Computed by hand and checked with the authors' program (vanillaer/CPL-ICML2024, commit c711980).
WORKED = np.array([[0.70, 0.20, 0.10], [0.40, 0.35, 0.25], [0.15, 0.60, 0.25], [0.30, 0.25, 0.45]])
INTRA = [[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1]]
INTER = [[1, 0, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]]
CANDIDATES = [[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]]

quarters = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@st.composite
def log_probabilities(draw):
    shape = draw(st.integers(1, 25)), draw(st.integers(1, 5))
    # A few whole numbers bring many ties.
    values = st.one_of(st.floats(-8, 8), st.integers(-2, 2).map(float))
    return log_softmax(draw(hnp.arrays(np.float64, shape, elements=values)))


@st.composite
def matchings(draw, ties=True):
    images, classes = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    distinct = draw(st.permutations(range(images * classes)))
    scores = -np.array(distinct, np.float64).reshape(images, classes) // (3 if ties else 1)
    candidates = draw(hnp.arrays(np.bool_, (images, classes)))
    return scores, candidates, draw(st.integers(0, 4))


def by_class(selection, classes):
    return [selection.index[selection.label == c].tolist() for c in range(classes)]


def sets_by_loop(probs, alpha, beta):
    """Return the candidate sets by loops over images and classes."""
    highest = [max(row) for row in probs]
    tau = sum(highest) / len(highest) if alpha == 0 else np.quantile(highest, alpha)
    sets = []
    for row in probs:
        kept, total = set(), 0.0
        for c in sorted(range(len(row)), key=lambda c: (-row[c], c)):
            if total > tau:
                break
            kept.add(c)
            total += row[c]
        sets.append({c for c in kept if row[c] >= np.quantile([r[c] for r in probs], beta)})
    return sets


def match_by_loop(scores, sets, capacity):
    """Match by Gale and Shapley, one proposal at a time; without ties the result does not depend on the order."""
    matched = [[] for _ in scores[0]]
    preferences = [sorted(candidates, key=lambda c: -row[c]) for row, candidates in zip(scores, sets, strict=True)]
    waiting = list(range(len(scores)))
    while waiting:
        image = waiting.pop()
        if not preferences[image]:
            continue
        c = preferences[image].pop(0)
        matched[c].append(image)
        if len(matched[c]) > capacity:
            worst = min(matched[c], key=lambda i: scores[i][c])
            matched[c].remove(worst)
            waiting.append(worst)
    return [sorted(images_of_class, key=lambda i: -scores[i][c]) for c, images_of_class in enumerate(matched)]


# Candidate sets


def test_the_likeliest_class_can_be_kept():
    # alpha = beta = .75: image 1 is in the upper quarter of no class and has no candidate.
    strict = candidate_sets(np.log(WORKED), 0.75, 0.75)
    assert strict.astype(int).tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    kept = candidate_sets(np.log(WORKED), 0.75, 0.75, keep_likeliest=True)
    assert kept.astype(int).tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_selection_can_be_limited_to_some_images():
    # Levels are over all images; images 1 and 2 keep their sets.
    chosen = select_candidates(np.log(WORKED), 0.75, 0.5, 1, among=np.array([1, 2]))
    assert (chosen.index.tolist(), chosen.label.tolist()) == ([1, 2], [0, 1])
    assert chosen.candidates.astype(int).tolist() == [CANDIDATES[1], CANDIDATES[2]]


def test_thresholds_by_hand():
    assert exact_quantile(WORKED.max(axis=1), 0.75) == pytest.approx(0.625)  # .60 + .25 * (.70 - .60)
    assert exact_quantile(WORKED, 0.5) == pytest.approx([0.35, 0.30, 0.25])
    assert exact_quantile(WORKED, 0.75) == pytest.approx([0.475, 0.4125, 0.30])


def test_candidates_by_hand():
    assert _likely_for_the_image(WORKED, 0.75).tolist() == INTRA
    assert (np.array(INTRA, bool) & np.array(INTER, bool)).tolist() == np.array(CANDIDATES, bool).tolist()
    assert candidate_sets(np.log(WORKED), 0.75, 0.5).tolist() == CANDIDATES


def test_the_class_that_exceeds_the_threshold_is_included():
    # Row 2: .60 <= tau = .625, so .25 is in. With alpha = .5, tau = .525, it is out; no other row changes.
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert candidate_sets(np.log(WORKED), 0.5, 0.5).tolist() == expected


def test_a_row_may_be_left_empty():
    # t = (.475, .4125, .30): row 1 reaches none of them.
    expected = [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert candidate_sets(np.log(WORKED), 0.75, 0.75).tolist() == expected
    assert select_candidates(np.log(WORKED), 0.75, 0.75, 16).index.tolist() == [0, 2, 3]


def test_alpha_zero_is_the_mean():
    # tau = (.70 + .40 + .60 + .45) / 4 = .5375. The lowest, .40, would leave row 3 with its first class only.
    assert _likely_for_the_image(WORKED, 0.0).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_alpha_one_is_the_highest_confidence_which_equals_itself():
    # tau = .70, the first probability of row 0: .70 <= .70 includes the second class.
    log_probs = np.log(WORKED)
    assert candidate_sets(log_probs, 1.0, 0.0).tolist() == [[1, 1, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1]]


def test_no_images_have_no_candidates():
    assert candidate_sets(np.zeros((0, 3)), 0.75, 0.5).shape == (0, 3)
    index, label, candidates = select_candidates(np.zeros((0, 3)), 0.75, 0.5, 2)
    assert (len(index), len(label), candidates.shape) == (0, 0, (0, 3))


@pytest.mark.parametrize(("level", "images"), [(0.07, 101), (0.28, 101), (0.57, 101), (0.95, 101), (0.99, 201)])
def test_a_quantile_on_a_value_is_that_value(level, images):
    values = np.random.default_rng(0).random(images)
    place = round(level * (images - 1))
    assert exact_quantile(values, level) == np.sort(values)[place]
    assert (values >= exact_quantile(values, level)).sum() == images - place


def test_numpys_quantile_may_miss_the_value():
    # 0.07 * 100 is 7.000000000000001, so NumPy's quantile is not the value.
    values = np.random.default_rng(0).random(101)
    assert np.quantile(values, 0.07) > np.sort(values)[7]


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(1, 3)), elements=st.floats(0, 1)), st.data())
def test_quantiles_are_numpys_and_exact_on_values(values, data):
    level = data.draw(st.floats(0, 1))
    assert np.allclose(exact_quantile(values, level), np.quantile(values, level, axis=0), rtol=1e-9, atol=1e-12)
    place = data.draw(st.integers(0, len(values) - 1))
    assert (exact_quantile(values, place / max(len(values) - 1, 1)) == np.sort(values, axis=0)[place]).all()


@given(log_probabilities(), quarters, quarters)
def test_sets_agree_with_a_loop(log_probs, alpha, beta):
    got = [set(np.flatnonzero(row)) for row in candidate_sets(log_probs, alpha, beta)]
    assert got == sets_by_loop(np.exp(log_probs).tolist(), alpha, beta)


@given(log_probabilities(), st.floats(0, 1), st.floats(0, 1))
def test_candidates_reach_the_threshold_of_their_class(log_probs, alpha, beta):
    probs = np.exp(log_probs)
    sets = candidate_sets(log_probs, alpha, beta)
    assert (probs >= exact_quantile(probs, beta))[sets].all()
    assert (sets <= candidate_sets(log_probs, alpha, 0.0)).all()


@given(log_probabilities(), st.floats(0, 1))
def test_beta_zero_leaves_only_the_first_filter(log_probs, alpha):
    sets = candidate_sets(log_probs, alpha, 0.0)
    assert np.array_equal(sets, _likely_for_the_image(np.exp(log_probs), alpha))
    assert sets[np.arange(len(sets)), log_probs.argmax(axis=1)].all()
    assert (sets <= candidate_sets(log_probs, 1.0, 0.0)).all()  # alpha = 1 gives the largest sets


# Not for alpha = 0: a mean depends on the order of its terms, in the last digit.
@given(log_probabilities(), st.floats(0.01, 1), st.floats(0, 1), st.randoms())
def test_sets_do_not_depend_on_the_order_of_images(log_probs, alpha, beta, random):
    order = random.sample(range(len(log_probs)), len(log_probs))
    assert np.array_equal(candidate_sets(log_probs[order], alpha, beta), candidate_sets(log_probs, alpha, beta)[order])


# Matching


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (1, [[0], [2], [3]]),  # image 1 is rejected for 0, then for 2, and is left out
        (2, [[0, 1], [2], [3]]),
        (0, [[], [], []]),
    ],
)
def test_matching_by_hand(capacity, expected):
    assert by_class(select_candidates(np.log(WORKED), 0.75, 0.5, capacity), 3) == expected


def test_a_matched_image_keeps_its_whole_set():
    index, _, candidates = select_candidates(np.log(WORKED), 0.75, 0.5, 2)
    assert candidates.tolist() == [CANDIDATES[i] for i in index]


@pytest.mark.parametrize(("capacity", "expected"), [(1, [[2], [3], [4]]), (2, [[2, 1], [3, 0], [4]])])
def test_displacement_by_hand(capacity, expected):
    probs = [[0.50, 0.45, 0.05], [0.55, 0.40, 0.05], [0.60, 0.35, 0.05], [0.48, 0.50, 0.02], [0.10, 0.30, 0.60]]
    sets = np.array([[1, 1, 0]] * 4 + [[0, 1, 1]], bool)
    assert by_class(match(np.log(probs), sets, capacity), 3) == expected


def test_of_equal_probabilities_the_earlier_proposal_wins():
    # Image 0 is rejected for image 1, and proposes to class 1 with .40, equal to that of image 2, which is there.
    log_probs = np.log([[0.5, 0.4, 0.1], [0.6, 0.3, 0.1], [0.3, 0.4, 0.3]])
    sets = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0]], bool)
    assert by_class(match(log_probs, sets, 1), 3) == [[1], [2], []]


def test_of_equal_images_the_lower_index_is_matched():
    assert by_class(match(np.log([[0.6, 0.4]] * 3), np.ones((3, 2), bool), 1), 2) == [[0], [1]]


def test_a_candidate_of_probability_zero_can_be_matched():
    log_probs = np.array([[-np.inf, 0.0], [-np.inf, 0.0]])
    assert by_class(match(log_probs, np.array([[True, False], [True, True]]), 1), 2) == [[0], [1]]


@given(matchings(ties=False))
def test_matching_agrees_with_gale_and_shapley(case):
    scores, candidates, capacity = case
    sets = [np.flatnonzero(row).tolist() for row in candidates]
    assert by_class(match(scores, candidates, capacity), scores.shape[1]) == match_by_loop(
        scores.tolist(), sets, capacity
    )


@given(matchings())
def test_each_image_has_one_class_and_capacities_hold(case):
    scores, candidates, capacity = case
    index, label, sets = match(scores, candidates, capacity)
    assert (np.bincount(label, minlength=1) <= capacity).all()
    assert len(np.unique(index)) == len(index)
    assert candidates[index, label].all() and np.array_equal(sets, candidates[index])
    keys = list(zip(label, -scores[index, label], strict=True))
    assert keys == sorted(keys)


@given(matchings())
def test_matching_is_stable(case):
    scores, candidates, capacity = case
    index, label, _ = match(scores, candidates, capacity)
    got = dict(zip(index.tolist(), label.tolist(), strict=True))
    lowest = [scores[index[label == c], c].min(initial=np.inf) for c in range(scores.shape[1])]
    room = np.bincount(label, minlength=scores.shape[1]) < capacity
    for image, c in zip(*np.nonzero(candidates), strict=True):
        image_prefers = image not in got or scores[image, c] > scores[image, got[image]]
        class_prefers = room[c] or (capacity > 0 and scores[image, c] > lowest[c])
        assert not (image_prefers and class_prefers)


@given(matchings(ties=False), st.randoms())
def test_matching_does_not_depend_on_the_order_of_images(case, random):
    scores, candidates, capacity = case
    order = np.array(random.sample(range(len(scores)), len(scores)))
    shuffled = by_class(match(scores[order], candidates[order], capacity), scores.shape[1])
    assert [order[images_of_class].tolist() for images_of_class in shuffled] == by_class(
        match(scores, candidates, capacity), scores.shape[1]
    )


# Soft targets


def test_soft_targets_by_hand():
    # .40 / .75, .35 / .75; .60 / .85, .25 / .85, in the order of the selection.
    expected = {0: [1, 0, 0], 1: [0.533333, 0.466667, 0], 2: [0, 0.705882, 0.294118], 3: [0, 0, 1]}
    chosen = _with_soft_targets(np.log(WORKED), match(np.log(WORKED), np.array(CANDIDATES, bool), 2))
    assert len(chosen.index) == 4
    for image, soft in zip(chosen.index, chosen.candidates, strict=True):
        assert soft == pytest.approx(expected[image], abs=1e-6)


def test_soft_targets_of_saturated_images_sum_to_one():
    log_probs = np.array([[0.0, -800.0, -801.0]])
    chosen = _with_soft_targets(log_probs, Selection(np.array([0]), np.array([1]), np.array([[False, True, True]])))
    assert chosen.candidates[0] == pytest.approx([0, 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))])
