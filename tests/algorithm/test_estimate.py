import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.estimate import _confident, _entropy, estimate
from fedcopl.priors.posterior import log_softmax

BOTH = {"confidence_quantile": 0.5, "entropy_quantile": 0.5}


def logs(probs):
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, np.float64))


@st.composite
def log_probabilities(draw, min_images=1):
    shape = draw(st.integers(min_images, 30)), draw(st.integers(1, 6))
    # Whole numbers bring ties, and the wide range brings saturated softmax.
    values = st.one_of(st.floats(-8, 8), st.integers(-60, 60).map(float))
    return log_softmax(draw(hnp.arrays(np.float64, shape, elements=values)))


levels = st.one_of(st.none(), st.floats(0, 1))


def test_by_hand():
    probs = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]]
    # Confidence 0.9, 0.6, 0.8, 0.5: the median is (0.6 + 0.8) / 2 = 0.7 and keeps rows 0 and 2.
    # With two classes entropy falls as confidence grows, so its median keeps the same rows.
    assert _confident(logs(probs), **BOTH).tolist() == [True, False, True, False]
    assert estimate(logs(probs), **BOTH).tolist() == [1, 1]


# Row 1 is confident but spread, row 2 the reverse: only row 0 is both.
# Confidence 0.98, 0.64, 0.62, 0.4: median 0.63 keeps rows 0 and 1.
# Entropy in nats 0.112, 0.903, 0.664, 1.089: median (0.664 + 0.903) / 2 = 0.784 keeps rows 0 and 2.
MIXED = [[0.98, 0.01, 0.01], [0.64, 0.18, 0.18], [0.62, 0.38, 0.0], [0.4, 0.3, 0.3]]


@pytest.mark.parametrize(
    ("confidence_quantile", "entropy_quantile", "kept"),
    [(0.5, 0.5, [0]), (0.5, None, [0, 1]), (None, 0.5, [0, 2]), (None, None, [0, 1, 2, 3])],
)
def test_each_filter_can_be_switched_off(confidence_quantile, entropy_quantile, kept):
    mask = _confident(logs(MIXED), confidence_quantile=confidence_quantile, entropy_quantile=entropy_quantile)
    assert np.flatnonzero(mask).tolist() == kept


def test_the_entropy_level_counts_from_the_top():
    # Sorted entropies: 0.112, 0.664, 0.903, 1.089. Level 0.25 asks for the quantile 0.75, at place
    # 0.75 * 3 = 2.25: 0.903 + 0.25 * (1.089 - 0.903) = 0.9495, which keeps rows 0, 1 and 2.
    mask = _confident(logs(MIXED), confidence_quantile=None, entropy_quantile=0.25)
    assert mask.tolist() == [True, True, True, False]


@pytest.mark.parametrize(("q1", "q2"), [(0.5, 0.5), (0.5, None), (None, 0.5)])
def test_comparisons_are_strict(q1, q2):
    # Three images: the median is the middle one itself, which is neither above nor below it.
    probs = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]
    mask = _confident(logs(probs), confidence_quantile=q1, entropy_quantile=q2)
    assert mask.tolist() == [True, False, False]


def test_equality_suffices_for_ties():
    assert estimate(logs([[0.9, 0.1]] * 5), **BOTH).tolist() == [5, 0]


def test_saturated_softmax_is_a_tie():
    # exp(-800) is 0 in float64: every confidence is 1 and every entropy 0.
    log_probs = log_softmax(np.array([[800.0, 0.0], [0.0, 900.0], [1000.0, 0.0]]))
    assert estimate(log_probs, **BOTH).tolist() == [2, 1]


def test_one_image_is_kept():
    assert estimate(logs([[0.4, 0.6]]), **BOTH).tolist() == [0, 1]


def test_the_most_confident_image_is_kept_if_none_passes_both_filters():
    # Confidence 0.64, 0.62; entropy 0.903, 0.664. Levels of 1 ask for the most confident (row 0)
    # and for the lowest entropy (row 1) at once.
    probs = [[0.64, 0.18, 0.18], [0.62, 0.38, 0.0]]
    mask = _confident(logs(probs), confidence_quantile=1.0, entropy_quantile=1.0)
    assert mask.tolist() == [True, False]


def test_no_images():
    assert _confident(np.zeros((0, 3)), **BOTH).shape == (0,)
    assert estimate(np.zeros((0, 3)), **BOTH).tolist() == [0, 0, 0]


@given(log_probabilities())
def test_entropy_is_scipys(log_probs):
    assert np.allclose(_entropy(log_probs), scipy.stats.entropy(np.exp(log_probs), axis=1), atol=1e-12)


def test_zero_probability_adds_nothing_to_entropy():
    assert _entropy(logs([[1.0, 0.0], [0.5, 0.5]])).tolist() == [0.0, pytest.approx(np.log(2))]


@given(log_probabilities(), levels, levels)
def test_never_empty_and_counts_what_is_kept(log_probs, q1, q2):
    mask = _confident(log_probs, confidence_quantile=q1, entropy_quantile=q2)
    counts = estimate(log_probs, confidence_quantile=q1, entropy_quantile=q2)
    assert mask.any()
    predicted = log_probs.argmax(axis=1)
    assert counts.tolist() == [int((mask & (predicted == c)).sum()) for c in range(log_probs.shape[1])]


@given(log_probabilities(min_images=2), st.floats(0, 1))
def test_kept_images_are_the_most_confident(log_probs, q1):
    mask = _confident(log_probs, confidence_quantile=q1, entropy_quantile=None)
    conf = np.exp(log_probs.max(axis=1))
    assert mask.all() or conf[~mask].max() <= conf[mask].min()
