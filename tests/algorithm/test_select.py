import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.select import select
from fedcopl.priors.posterior import log_softmax


@st.composite
def cases(draw):
    images, classes = draw(st.integers(0, 25)), draw(st.integers(1, 5))
    # A few whole numbers bring many ties.
    values = st.one_of(st.floats(-8, 8), st.integers(-2, 2).map(float))
    logits = draw(hnp.arrays(np.float64, (images, classes), elements=values))
    quota = draw(hnp.arrays(np.int64, classes, elements=st.integers(0, 10)))
    return log_softmax(logits), quota


def slow_argmax(log_probs, quota):
    """One image at a time, one class at a time."""
    chosen = []
    for c, allowed in enumerate(quota):
        mine = [i for i, row in enumerate(log_probs) if max(range(len(row)), key=lambda j: (row[j], -j)) == c]
        mine.sort(key=lambda i: (-log_probs[i][c], i))
        chosen += [(i, c) for i in mine[:allowed]]
    return chosen


def slow_any(log_probs, quota):
    wanted_by = {}
    for c, allowed in enumerate(quota):
        ranking = sorted(range(len(log_probs)), key=lambda i: (-log_probs[i][c], i))
        for i in ranking[:allowed]:
            wanted_by.setdefault(i, []).append(c)
    label = {i: min(rivals, key=lambda c: (-log_probs[i][c], c)) for i, rivals in wanted_by.items()}
    return sorted(label.items(), key=lambda pair: (pair[1], -log_probs[pair[0]][pair[1]], pair[0]))


def pairs(selection):
    return list(zip(selection.index.tolist(), selection.label.tolist(), strict=True))


def test_by_hand():
    log_probs = np.log([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    # Class 0 is predicted for images 1 (0.9), 3 (0.7) and 0 (0.6): the best two. Class 1 has only image 2.
    assert pairs(select(log_probs, np.array([2, 5]))) == [(1, 0), (3, 0), (2, 1)]


def test_any_by_hand():
    log_probs = np.log([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.8, 0.1, 0.1]])
    # Class 0 picks images 2 and 0. Class 1 picks 1 (0.35). Class 2 picks 1 (0.25), and loses it to class 1.
    # Image 1 is predicted as class 0, so "argmax" would never label it 1.
    quota = np.array([2, 1, 1])
    assert pairs(select(log_probs, quota, "any")) == [(2, 0), (0, 0), (1, 1)]
    assert pairs(select(log_probs, quota)) == [(2, 0), (0, 0)]


def test_a_class_that_loses_an_image_gets_no_replacement():
    log_probs = np.log([[0.4, 0.6], [0.1, 0.9], [0.3, 0.7]])
    # Class 0 picks image 0, class 1 images 1, 2 and 0. Image 0 goes to class 1, and class 0 stays without.
    assert pairs(select(log_probs, np.array([1, 3]), "any")) == [(1, 1), (2, 1), (0, 1)]
    # With 1 for class 1, image 0 goes to class 0, and image 2 is not selected.
    assert pairs(select(log_probs, np.array([1, 1]), "any")) == [(0, 0), (1, 1)]


def test_image_without_class_is_left_out():
    log_probs = np.log([[0.39, 0.6, 0.01], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])
    # Classes 0 and 1 pick image 0, and 1 gets it; class 2 picks image 2.
    # Class 0 has room left, but image 1 was not its pick.
    assert pairs(select(log_probs, np.array([1, 1, 1]), "any")) == [(0, 1), (2, 2)]


def test_ties_go_to_the_lower_image():
    log_probs = np.log([[0.3, 0.7], [0.7, 0.3], [0.7, 0.3], [0.7, 0.3]])
    for candidates in ("argmax", "any"):
        assert pairs(select(log_probs, np.array([2, 0]), candidates)) == [(1, 0), (2, 0)]


def test_tie_between_classes_goes_to_the_lower_class():
    log_probs = np.log([[0.2, 0.4, 0.4]])
    for candidates in ("argmax", "any"):
        assert pairs(select(log_probs, np.array([0, 1, 1]), candidates)) == [(0, 1)]


@pytest.mark.parametrize("candidates", ["argmax", "any"])
def test_saturated_images_still_rank(candidates):
    log_probs = np.array([[-1e-18, -41.0], [-1e-20, -46.0], [-1e-19, -43.0]])
    assert (np.exp(log_probs[:, 0]) == 1).all()  # the probabilities are equal, their logarithms are not
    assert pairs(select(log_probs, np.array([2, 0]), candidates)) == [(1, 0), (2, 0)]


def test_an_impossible_class_takes_no_image():
    with np.errstate(divide="ignore"):
        log_probs = np.log([[1.0, 0.0], [1.0, 0.0]])
    assert pairs(select(log_probs, np.array([0, 2]), "any")) == []


@pytest.mark.parametrize("candidates", ["argmax", "any"])
def test_select_has_no_candidate_sets(candidates):
    assert select(np.log([[0.3, 0.7]]), np.array([1, 1]), candidates).candidates is None


def test_an_unknown_option_is_refused():
    with pytest.raises(KeyError):
        select(np.zeros((1, 1)), np.array([1]), "best")


@given(cases())
def test_argmax_agrees_with_a_loop(case):
    log_probs, quota = case
    assert pairs(select(log_probs, quota)) == slow_argmax(log_probs.tolist(), quota.tolist())


@given(cases())
def test_any_agrees_with_a_loop(case):
    log_probs, quota = case
    assert pairs(select(log_probs, quota, "any")) == slow_any(log_probs.tolist(), quota.tolist())


@given(cases(), st.sampled_from(["argmax", "any"]))
def test_quotas_hold_and_no_image_is_selected_twice(case, candidates):
    log_probs, quota = case
    index, label, _ = select(log_probs, quota, candidates)
    assert (np.bincount(label, minlength=len(quota)) <= quota).all()
    assert len(np.unique(index)) == len(index)


@given(cases())
def test_selects_most_confident_up_to_quota(case):
    log_probs, quota = case
    index, label, _ = select(log_probs, quota)
    predicted, best = log_probs.argmax(axis=1), log_probs.max(axis=1)
    for c, allowed in enumerate(quota):
        kept, mine = index[label == c], np.flatnonzero(predicted == c)
        assert len(kept) == min(allowed, len(mine)) and np.isin(kept, mine).all()
        left = np.setdiff1d(mine, kept)
        assert best[left].max(initial=-np.inf) <= best[kept].min(initial=np.inf)
