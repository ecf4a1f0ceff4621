"""Shamir's secret sharing: enough shares reconstruct the secret, fewer reveal nothing."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.privacy.mask_session import _PRIME, SECRET, SHARE, combine, split, unmask_threshold
from fedcopl.rng import stream


def seeded(seed):
    return stream(seed, "shares").bytes


def by_place(shares):
    return dict(enumerate(shares, 1))


def test_the_prime_is_a_prime_and_above_every_secret():
    assert 2 ** (8 * SECRET) < _PRIME < 2 ** (8 * SHARE)
    odd, twos = _PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin: a composite fails most bases
        powers = [pow(base, odd * 2**i, _PRIME) for i in range(twos)]
        assert powers[0] == 1 or _PRIME - 1 in powers


def test_a_polynomial_of_degree_one_by_hand():
    # Of degree 1: f(x) = 7 + 5 x, so f(1) = 12 and f(3) = 22.
    two = {1: (12).to_bytes(SHARE), 3: (22).to_bytes(SHARE)}
    assert combine(two) == 7
    assert combine(two, at=2) == 17


@given(secret=st.binary(min_size=SECRET, max_size=SECRET), shares=st.integers(1, 9), data=st.data())
def test_any_subset_of_enough_shares_gives_the_secret(secret, shares, data):
    enough = data.draw(st.integers(1, shares))
    chosen = data.draw(st.permutations(range(1, shares + 1)))[:enough]
    made = by_place(split(secret, shares, enough, seeded(1)))
    assert combine({place: made[place] for place in chosen}).to_bytes(SECRET) == secret


def test_all_sets_of_three_of_five_agree():
    made = by_place(split(bytes(range(SECRET)), 5, 3, seeded(2)))
    assert {combine({p: made[p] for p in some}) for some in combinations(made, 3)} == {
        int.from_bytes(bytes(range(SECRET)))
    }


@given(secret=st.binary(min_size=SECRET, max_size=SECRET), other=st.integers(0, _PRIME - 1))
def test_one_share_too_few_is_consistent_with_every_secret(secret, other):
    # For any other secret there is a third share that goes with the same two: they leave everything possible.
    made = by_place(split(secret, 3, 3, seeded(3)))
    two = {1: made[1], 2: made[2]}
    through_other = {0: other.to_bytes(SHARE), **two}
    third = combine(through_other, at=3)
    assert combine({**two, 3: third.to_bytes(SHARE)}) == other


def test_shares_of_equal_secrets_differ():
    assert split(bytes(SECRET), 3, 2, seeded(4)) != split(bytes(SECRET), 3, 2, seeded(5))


@pytest.mark.parametrize(
    ("clients", "share", "enough"),
    [(2, 0.6, 2), (3, 0.6, 2), (4, 0.6, 3), (5, 0.6, 3), (10, 0.6, 6), (10, 1.0, 10), (4, 0.51, 3), (100, 0.51, 51)],
)
def test_the_threshold(clients, share, enough):
    assert unmask_threshold(clients, share) == enough


@given(st.integers(2, 500), st.floats(0.5, 1, exclude_min=True))
def test_no_two_disjoint_groups_reach_the_threshold(clients, share):
    assert 2 * unmask_threshold(clients, share) > clients
    assert unmask_threshold(clients, share) <= clients
