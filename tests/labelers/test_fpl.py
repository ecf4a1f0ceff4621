import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.labelers.base import _growing_quota, confident_images
from fedcopl.labelers.fpl import select_top

# The expected numbers come from the authors' program (BatsResearch/menghini-neurips23-code, commit b387624).
WORKED = np.array(
    [
        [0.70, 0.20, 0.10],
        [0.90, 0.05, 0.05],
        [0.80, 0.15, 0.05],
        [0.60, 0.30, 0.10],
        [0.10, 0.75, 0.15],
        [0.20, 0.55, 0.25],
        [0.45, 0.35, 0.20],
        [0.05, 0.85, 0.10],
    ]
)
RULES = ["argmax", "column", "leaderboard"]
IN_ORDER = list(range(8))


@st.composite
def cases(draw):
    shape = draw(st.integers(0, 20)), draw(st.integers(1, 5))
    # A few whole numbers bring many ties.
    values = st.one_of(st.floats(-8, 8), st.integers(-2, 2).map(float))
    return draw(hnp.arrays(np.float64, shape, elements=values)), draw(st.integers(1, 6))


def by_class(selection, classes):
    return [selection.index[selection.label == c].tolist() for c in range(classes)]


def boards(probs, per_class, rule, order=None):
    """Return the images of each class as indices of `probs`, for images in the given order."""
    order = np.arange(len(probs)) if order is None else np.array(order)
    return [order[row].tolist() for row in by_class(select_top(np.log(probs)[order], per_class, rule), probs.shape[1])]


def leaderboards_by_loop(scores, capacity):
    """Return the boards by one image after another, all boards in the order of its scores."""

    def offer(board, entry):
        if len(board) < capacity:
            board.append(entry)
            return True
        if board[-1][0] < entry[0]:
            board[:] = sorted([*board, entry], key=lambda e: (-e[0], -e[1]))[:capacity]
            return True
        return False

    all_boards = [[] for _ in scores[0]]
    for image, row in enumerate(scores):
        first, *others = sorted(range(len(row)), key=lambda c: (-row[c], c))
        if not offer(all_boards[first], (row[first], image)):
            for c in others:
                offer(all_boards[c], (row[c], image))
    return [sorted(image for _, image in board) for board in all_boards]


@pytest.mark.parametrize(
    ("per_class", "expected"), [(2, [[1, 2], [7, 4], []]), (3, [[1, 2, 0], [7, 4, 5], []])], ids=["K=2", "K=3"]
)
def test_argmax_by_hand(per_class, expected):
    assert boards(WORKED, per_class, "argmax") == expected


def test_only_confident_images_are_selected():
    # Confidences .70 .90 .80 .60 .75 .55 .45 .85: the upper half are images 1, 2, 4 and 7.
    confident = confident_images(np.log(WORKED), 0.5)
    assert confident.tolist() == [1, 2, 4, 7]
    chosen = select_top(np.log(WORKED), 3, among=confident)
    assert (chosen.index.tolist(), chosen.label.tolist()) == ([1, 2, 7, 4], [0, 0, 1, 1])


def test_some_images_are_always_confident():
    assert confident_images(np.log(np.full((3, 2), 0.5)), 0.9).tolist() == [0, 1, 2]  # all alike
    assert confident_images(np.log(WORKED), 1).tolist() == [1]
    assert confident_images(np.zeros((0, 3)), 0.5).tolist() == []


def test_column_by_hand():
    assert boards(WORKED, 2, "column") == [[1, 2], [7, 4], [5, 6]]


@pytest.mark.parametrize(
    ("order", "per_class", "expected"),
    [
        (IN_ORDER, 2, [{0, 1}, {7, 4}, {6, 3}]),  # board 0 misses image 2
        (IN_ORDER[::-1], 2, [{1, 2}, {7, 4}, {0}]),
        ([1, 7, 2, 4, 0, 3, 5, 6], 2, [{1, 2}, {7, 4}, {5, 6}]),
        (IN_ORDER, 1, [{1}, {7}, {5}]),
        (IN_ORDER, 3, [{0, 1, 2}, {7, 4, 5}, {3, 6}]),
    ],
)
def test_leaderboards_of_the_authors(order, per_class, expected):
    assert [set(board) for board in boards(WORKED, per_class, "leaderboard", order)] == expected


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (2, [{0, 1}, set(), set()]),  # they fill board 0 as (.70, .90)
        (3, [{0, 1}, {2}, {2}]),  # .80 is below the last entry, .90, and goes to both other boards
        (4, [{0, 1}, {2, 3}, {2, 3}]),
        (5, [{0, 1}, {4, 3}, {2, 3}]),  # image 4 displaces 2 on board 1
        (6, [{0, 1}, {4, 5}, {2, 3}]),  # image 5 displaces 3
        (7, [{0, 1}, {4, 5}, {6, 3}]),  # image 6 is rejected on boards 0 and 1, displaces 2 on board 2
        (8, [{0, 1}, {7, 4}, {6, 3}]),  # image 7 displaces 5
    ],
)
def test_leaderboards_step_by_step(images, expected):
    assert [set(board) for board in boards(WORKED[:images], 2, "leaderboard")] == expected


def test_equal_scores():
    probs = np.array([[0.8, 0.1, 0.1]] * 3)
    assert boards(probs, 2, "argmax") == [[0, 1], [], []]
    assert boards(probs, 2, "column") == [[0, 1]] * 3
    assert [set(board) for board in boards(probs, 2, "leaderboard")] == [{0, 1}, {2}, {2}]


def test_of_equal_scores_on_a_sorted_board_the_larger_index_stays():
    # Image 2 (.7) enters a board of two .6: sorted .7 (2), .6 (1), .6 (0), and the last is dropped.
    probs = np.array([[0.6, 0.4], [0.6, 0.4], [0.7, 0.3]])
    assert boards(probs, 2, "leaderboard")[0] == [2, 1]


@pytest.mark.parametrize("rule", RULES)
def test_saturated_images_still_rank(rule):
    log_probs = np.array([[-1e-18, -41.0], [-1e-19, -43.0], [-1e-20, -46.0]])
    assert (np.exp(log_probs[:, 0]) == 1).all()  # the probabilities are equal, their logarithms are not
    assert by_class(select_top(log_probs, 1, rule), 2)[0] == [2]


@pytest.mark.parametrize("rule", RULES)
def test_no_images(rule):
    index, label, candidates = select_top(np.zeros((0, 3)), 2, rule)
    assert (index.dtype, label.dtype, len(index), len(label), candidates) == (np.int64, np.int64, 0, 0, None)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        select_top(np.zeros((1, 1)), 0, "column")
    with pytest.raises(KeyError):
        select_top(np.zeros((1, 1)), 1, "best")


@given(cases())
def test_leaderboards_agree_with_a_loop(case):
    scores, per_class = case
    got = [sorted(board) for board in by_class(select_top(scores, per_class, "leaderboard"), scores.shape[1])]
    assert got == (leaderboards_by_loop(scores.tolist(), per_class) if len(scores) else [[]] * scores.shape[1])


@given(cases())
def test_columns_agree_with_sorting_each(case):
    scores, per_class = case
    ranked = [sorted(range(len(scores)), key=lambda i: (-scores[i, c], i)) for c in range(scores.shape[1])]
    assert by_class(select_top(scores, per_class, "column"), scores.shape[1]) == [r[:per_class] for r in ranked]


@given(cases())
def test_argmax_selects_the_most_confident_of_the_predicted_class(case):
    scores, per_class = case
    predicted = [np.flatnonzero(scores.argmax(axis=1) == c).tolist() for c in range(scores.shape[1])]
    ranked = [sorted(images, key=lambda i: (-scores[i, c], i)) for c, images in enumerate(predicted)]
    assert by_class(select_top(scores, per_class, "argmax"), scores.shape[1]) == [r[:per_class] for r in ranked]


@given(cases(), st.sampled_from(RULES))
def test_order_is_by_class_then_confidence_within_the_quota(case, rule):
    scores, per_class = case
    index, label, _ = select_top(scores, per_class, rule)
    assert (np.bincount(label, minlength=1) <= per_class).all()
    keys = list(zip(label, -scores[index, label], strict=True))
    assert keys == sorted(keys)
    assert len(set(zip(index, label, strict=True))) == len(index)


@given(cases())
def test_an_image_on_the_board_of_its_prediction_is_on_no_other_board(case):
    scores, per_class = case
    index, label, _ = select_top(scores, per_class, "leaderboard")
    on_predicted = index[label == scores.argmax(axis=1)[index]]
    assert (np.bincount(index, minlength=len(scores))[on_predicted] == 1).all()


def test_the_capacity_grows_with_each_refresh():
    # GRIP on DTD, n = 2820, C = 47, ten refreshes: 282 more images each time, 6 for each class.
    assert [_growing_quota(q, 2820, 47, refreshes=10) for q in range(10)] == list(range(6, 61, 6))
    # One client of ten, n = 282: floor(282 / 4) = 70 more images; 70, 140, 210 and 280 of 47 are 1, 2, 4 and 5.
    assert [_growing_quota(q, 282, 47, refreshes=4) for q in range(4)] == [1, 2, 4, 5]
    assert _growing_quota(0, 3, 47, refreshes=4) == 1
