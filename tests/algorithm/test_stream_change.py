"""Numbers worked by hand, and that chance alone is not taken for a change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.algorithm.stream_change import (
    DEALS,
    SeenImages,
    StreamChange,
    class_prior_shift,
    classes_moved,
    distances_apart,
    doubtful,
    stream_changes,
)


def seen(rows, distances=None):
    return SeenImages(np.array(rows, float), None if distances is None else np.array(distances, float))


def test_mixes_apart_is_half_the_sum_of_the_differences():
    before, recent = seen([[1, 0, 0], [0, 1, 0]]), seen([[0, 0, 1], [0, 1, 0]])
    assert class_prior_shift(before, recent) == 0.5  # |0.5 - 0| + |0.5 - 0.5| + |0 - 0.5|, halved
    assert classes_moved(before, recent).tolist() == [-0.5, 0, 0.5]


def test_distances_apart_is_the_widest_gap_between_the_two_curves():
    before, recent = seen([[1]] * 4, [1, 2, 3, 4]), seen([[1]] * 4, [3, 4, 5, 6])
    assert distances_apart(before, recent) == 0.5  # at 2: half of the first, none of the second
    assert distances_apart(before, before) == 0


def test_doubtful_counts_what_is_below_the_tail_of_before():
    before = seen([[share, 1 - share] for share in np.linspace(0.5, 1, 101)])
    recent = seen([[0.51, 0.49], [0.52, 0.48], [0.6, 0.4], [0.9, 0.1]])
    assert doubtful(before, recent) == 0.5  # the tail of a twentieth ends at 0.525


def draw(random, class_prior, images, shift=0.0):
    """Sure answers in a mix, and distances around a mean."""
    labels = random.choice(len(class_prior), images, p=class_prior)
    sure = random.uniform(0.7, 1, images)
    rows = np.full((images, len(class_prior)), 0.0) + ((1 - sure) / (len(class_prior) - 1))[:, None]
    rows[np.arange(images), labels] = sure
    return SeenImages(rows, random.normal(5 + shift, 1, images))


def test_chance_alone_is_no_change():
    """By design one look of a hundred is a false alarm; of these fixed 40 none may be more than two."""
    alarms = 0
    for number in range(40):
        random = np.random.default_rng(number)
        sets = draw(random, [0.5, 0.3, 0.2], 60), draw(random, [0.5, 0.3, 0.2], 60)
        alarms += any(one.is_change for one in stream_changes(*sets, random))
    assert alarms <= 2


@pytest.mark.parametrize(
    ("recent", "changed"),
    [({"class_prior": [0.1, 0.3, 0.6]}, {"mix"}), ({"shift": 2.0}, {"looks"})],
    ids=["another mix", "other images"],
)
def test_a_change_is_found_and_called_by_its_name(recent, changed):
    random = np.random.default_rng(1)
    before = draw(random, [0.5, 0.3, 0.2], 100)
    found = stream_changes(before, draw(random, **({"class_prior": [0.5, 0.3, 0.2], "images": 100} | recent)), random)
    assert {one.what for one in found if one.is_change} == changed
    assert min(one.chance for one in found) == 1 / (1 + DEALS)


def test_a_change_must_matter():
    assert not StreamChange("mix", 0.05, 0.001).is_change
    assert not StreamChange("mix", 0.5, 0.02).is_change
    assert StreamChange("mix", 0.5, 0.001).is_change


def test_without_prototypes_two_questions_are_left():
    random = np.random.default_rng(2)
    sets = [SeenImages(draw(random, [0.5, 0.5], 40).posteriors) for _ in range(2)]
    assert [one.what for one in stream_changes(*sets, random)] == ["mix", "doubt"]


@given(st.integers(0, 10**6))
def test_the_order_of_images_says_nothing(seed):
    random = np.random.default_rng(seed)
    before, recent = draw(random, [0.6, 0.4], 20), draw(random, [0.6, 0.4], 20)
    turned = before.rows(random.permutation(20))
    for message in (class_prior_shift, doubtful, distances_apart):
        assert message(turned, recent) == pytest.approx(message(before, recent))
