"""Statistics computed by hand, and the false-alarm rate of the tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.classifier.drift import (
    _PERMUTATIONS,
    _class_prior_shift,
    _class_share_changes,
    _ks_statistic,
    _low_confidence_share,
    _PredictedImages,
    _stream_changes,
    _StreamChange,
)


def predicted_images(rows, distances=None):
    return _PredictedImages(np.array(rows, float), None if distances is None else np.array(distances, float))


def test_class_prior_shift_is_total_variation():
    before, recent = predicted_images([[1, 0, 0], [0, 1, 0]]), predicted_images([[0, 0, 1], [0, 1, 0]])
    assert _class_prior_shift(before, recent) == 0.5  # |0.5 - 0| + |0.5 - 0.5| + |0 - 0.5|, halved
    assert _class_share_changes(before, recent).tolist() == [-0.5, 0, 0.5]


def test_ks_statistic_by_hand():
    before, recent = predicted_images([[1]] * 4, [1, 2, 3, 4]), predicted_images([[1]] * 4, [3, 4, 5, 6])
    assert _ks_statistic(before, recent) == 0.5  # at 2: half of the first, none of the second
    assert _ks_statistic(before, before) == 0


def test_low_confidence_share_by_hand():
    before = predicted_images([[share, 1 - share] for share in np.linspace(0.5, 1, 101)])
    recent = predicted_images([[0.51, 0.49], [0.52, 0.48], [0.6, 0.4], [0.9, 0.1]])
    assert _low_confidence_share(before, recent) == 0.5  # the tail of a twentieth ends at 0.525


def draw(random, class_prior, images, shift=0.0):
    """Sure answers in a mix, and distances around a mean."""
    labels = random.choice(len(class_prior), images, p=class_prior)
    sure = random.uniform(0.7, 1, images)
    rows = np.full((images, len(class_prior)), 0.0) + ((1 - sure) / (len(class_prior) - 1))[:, None]
    rows[np.arange(images), labels] = sure
    return _PredictedImages(rows, random.normal(5 + shift, 1, images))


def test_random_differences_are_no_change():
    """The designed false-alarm rate is 1 %; at most two of these 40 fixed comparisons may be false alarms."""
    alarms = 0
    for number in range(40):
        random = np.random.default_rng(number)
        sets = draw(random, [0.5, 0.3, 0.2], 60), draw(random, [0.5, 0.3, 0.2], 60)
        alarms += any(one.is_change for one in _stream_changes(*sets, random))
    assert alarms <= 2


@pytest.mark.parametrize(
    ("recent", "changed"),
    [({"class_prior": [0.1, 0.3, 0.6]}, {"class_prior"}), ({"shift": 2.0}, {"features"})],
    ids=["another class prior", "other images"],
)
def test_change_is_detected_by_its_test(recent, changed):
    random = np.random.default_rng(1)
    before = draw(random, [0.5, 0.3, 0.2], 100)
    found = _stream_changes(before, draw(random, **({"class_prior": [0.5, 0.3, 0.2], "images": 100} | recent)), random)
    assert {one.statistic for one in found if one.is_change} == changed
    assert min(one.p_value for one in found) == 1 / (1 + _PERMUTATIONS)


def test_small_change_is_ignored():
    assert not _StreamChange("class_prior", 0.05, 0.001).is_change
    assert not _StreamChange("class_prior", 0.5, 0.02).is_change
    assert _StreamChange("class_prior", 0.5, 0.001).is_change


def test_two_tests_without_prototypes():
    random = np.random.default_rng(2)
    sets = [_PredictedImages(draw(random, [0.5, 0.5], 40).posteriors) for _ in range(2)]
    assert [one.statistic for one in _stream_changes(*sets, random)] == ["class_prior", "confidence"]


@given(st.integers(0, 10**6))
def test_order_of_images_does_not_matter(seed):
    random = np.random.default_rng(seed)
    before, recent = draw(random, [0.6, 0.4], 20), draw(random, [0.6, 0.4], 20)
    turned = before.rows(random.permutation(20))
    for message in (_class_prior_shift, _low_confidence_share, _ks_statistic):
        assert message(turned, recent) == pytest.approx(message(before, recent))
