import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.allocate import quota

counts = hnp.arrays(
    np.int64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.one_of(st.just(0), st.integers(0, 50_000)),
)
options = st.fixed_dictionaries(
    {
        "refresh_index": st.integers(0, 20),
        "budget": st.sampled_from(["exact", "ceil"]),
        "unseen": st.sampled_from(["grow", "none"]),
    }
)


def allocate(table, **options):
    """Return the quotas of all clients, (K, C): `quota` is elementwise and broadcasts over rows."""
    return quota(table, np.sum(table, axis=0), len(table), **options)


def reference(counts, refresh_index, budget, unseen):
    """Return Eq. 3 literally, in exact fractions."""
    clients, classes = len(counts), len(counts[0])
    totals = [sum(row[c] for row in counts) for c in range(classes)]
    m = Fraction(sum(totals), classes)
    m = Fraction(math.ceil(m)) if budget == "ceil" else m
    fallback = math.ceil(m * (refresh_index + 1) / (2 * clients)) if unseen == "grow" else 0
    return [[math.ceil(row[c] * m / totals[c]) if totals[c] else fallback for c in range(classes)] for row in counts]


# T = [4, 2, 1], S = 7.
WORKED = np.array([[3, 0, 1], [1, 2, 0]])


def test_worked_example():
    # M = 7/3. Class 0: 3/4 and 1/4 of 7/3 = 1.75, 0.58 -> 2, 1.
    # Class 1: 0 and 7/3 -> 0, 3. Class 2: 7/3 and 0 -> 3, 0.
    assert allocate(WORKED).tolist() == [[2, 0, 3], [1, 3, 0]]


def test_worked_example_with_the_budget_rounded_up():
    # M = ceil(7/3) = 3. Class 0: 2.25, 0.75 -> 3, 1. Class 1: 0, 3. Class 2: 3, 0.
    assert allocate(WORKED, budget="ceil").tolist() == [[3, 0, 3], [1, 3, 0]]


def test_whole_numbers_are_not_rounded_up():
    # u = 27 of T = 91 with M = 91 is 27 exactly. Two classes of 91: S = 182, M = 91.
    table = np.array([[27, 91], [64, 0]])
    assert allocate(table).tolist() == [[27, 91], [64, 0]]
    # In float32 the result would be 28.
    assert np.ceil(np.float32(27) / np.float32(91) * np.float32(91)) == 28


def test_another_whole_number():
    # 3 of 5 with 25 per class is 15: S = 5 + 45, two classes.
    assert allocate(np.array([[3, 45], [2, 0]])).tolist() == [[15, 25], [10, 0]]


@pytest.mark.parametrize(
    ("refresh_index", "budget", "expected"),
    [
        # K = 2, C = 3, S = 20, M = 20/3 = 6.67: 6.67 * 1/4 = 1.67 -> 2; * 2/4 = 3.33 -> 4; * 3/4 = 5 -> 5.
        (0, "exact", 2),
        (1, "exact", 4),
        (2, "exact", 5),
        # M = 7: 7/4 = 1.75 -> 2; 14/4 = 3.5 -> 4; 21/4 = 5.25 -> 6.
        (0, "ceil", 2),
        (1, "ceil", 4),
        (2, "ceil", 6),
    ],
)
def test_quota_of_unseen_class_grows(refresh_index, budget, expected):
    table = np.array([[10, 4, 0], [6, 0, 0]])
    rows = allocate(table, refresh_index=refresh_index, budget=budget)
    assert rows[:, 2].tolist() == [expected, expected]
    assert (rows[:, :2] == allocate(table, budget=budget)[:, :2]).all()


def test_quota_of_unseen_class_can_be_zero():
    assert allocate(np.array([[10, 4, 0], [6, 0, 0]]), refresh_index=5, unseen="none")[:, 2].tolist() == [
        0,
        0,
    ]


def test_no_confident_images():
    assert allocate(np.zeros((2, 3), np.int64)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_large_federations_do_not_overflow():
    # 1,000 clients, each with a million confident images of class 0 of 2: M = 10^9 / 2, a thousandth of it each.
    table = np.zeros((1000, 2), np.int64)
    table[:, 0] = 1_000_000
    assert (allocate(table, unseen="none") == [500_000, 0]).all()


def test_small_integers_are_widened():
    table = np.full((2, 2), 200, np.uint8)
    assert allocate(table).tolist() == [[200, 200], [200, 200]]


@pytest.mark.parametrize("option", [{"budget": "round"}, {"unseen": "shrink"}])
def test_an_unknown_option_is_refused(option):
    with pytest.raises(KeyError):
        allocate(WORKED, **option)


@given(counts, options)
def test_agrees_with_exact_fractions(table, chosen):
    assert allocate(table, **chosen).tolist() == reference(table.tolist(), **chosen)


@given(counts)
def test_every_seen_class_gets_its_budget_and_less_than_one_more_per_client(table):
    got, totals = allocate(table).sum(axis=0), table.sum(axis=0)
    clients, classes = table.shape
    for c in np.flatnonzero(totals):
        assert Fraction(int(table.sum()), classes) <= got[c] < Fraction(int(table.sum()), classes) + clients


@given(counts, options)
def test_quota_of_a_row_equals_that_of_the_table(table, chosen):
    totals = table.sum(axis=0)
    rows = [quota(row, totals, len(table), **chosen) for row in table]
    assert np.array_equal(rows, allocate(table, **chosen))


@given(counts, options, st.randoms())
def test_does_not_depend_on_the_order_of_clients(table, chosen, random):
    order = random.sample(range(len(table)), len(table))
    assert np.array_equal(allocate(table[order], **chosen), allocate(table, **chosen)[order])
