import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.select import Selection
from fedcopl.labelers.fpl import select_top
from fedcopl.methods.pfedprompt import _build_memory, _Memory, _memory_logits, _spatial_logits

# Computed by hand with Tip-Adapter's kernel: an image, three keys with labels 0, 1, 1, and the text features.
IMAGE = np.array([[1.0, 0.0]])
KEYS = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
MEMORY = _Memory(KEYS, np.eye(2)[[0, 1, 1]], np.array([5, 3, 8]))
EACH_KEY = _Memory(KEYS, np.eye(3), np.arange(3))  # values that give the weight of each key
TEXT = np.array([[0.8, 0.6], [0.6, 0.8]])
TEXT_LOGITS = 100 * IMAGE @ TEXT.T

unit_scores = st.floats(-1, 1).map(lambda x: round(x, 3))


def close(got, expected):
    """Return whether all digits of the expected numbers agree."""
    return np.allclose(got, expected, rtol=0, atol=6e-7)


@pytest.mark.parametrize(
    ("sharpness", "alpha", "weights", "added", "total"),
    [
        (5.5, 1.0, [1, 0.110803, 0.004087], [1, 0.114890], [81.0000, 60.1149]),
        (1.0, 2.0, [1, 0.670320, 0.367879], [1, 1.038199], [82.0000, 62.0764]),
    ],
)
def test_the_worked_memory(sharpness, alpha, weights, added, total):
    assert close(_memory_logits(IMAGE, EACH_KEY, sharpness=sharpness), [weights])
    logits = _memory_logits(IMAGE, MEMORY, sharpness=sharpness)
    assert close(logits, [added])
    assert np.allclose(TEXT_LOGITS + alpha * logits, [total], rtol=0, atol=6e-5)


def test_softmax_by_hand():
    # Temperature 0.1; e^10, e^6 and e^0 over their sum.
    weights = _memory_logits(IMAGE, EACH_KEY, sharpness=1 / 0.1, kernel="softmax")
    assert close(weights, [[0.981970, 0.017985, 0.000045]])
    assert close(_memory_logits(IMAGE, MEMORY, sharpness=10, kernel="softmax"), [[0.981970, 0.018030]])


def test_an_images_own_key_is_left_out():
    assert close(_memory_logits(IMAGE, MEMORY, images=np.array([5])), [[0, 0.114890]])
    # The other keys, e^6 and e^0, are of class 1.
    assert close(_memory_logits(IMAGE, MEMORY, sharpness=10, kernel="softmax", images=np.array([5])), [[0, 1]])
    # Two images: only the stored one loses a key.
    both = _memory_logits(np.repeat(IMAGE, 2, axis=0), MEMORY, images=np.array([5, 7]))
    assert close(both, [[0, 0.114890], [1, 0.114890]])


def test_both_keys_of_an_image_with_two_labels_are_left_out():
    twice = _Memory(KEYS[[0, 0, 1]], np.eye(3), np.array([5, 5, 3]))
    assert close(_memory_logits(IMAGE, twice, images=np.array([5])), [[0, 0, 0.110803]])


@pytest.mark.parametrize("kernel", ["exp", "softmax"])
def test_an_empty_memory_adds_zeros(kernel):
    empty = _Memory(np.zeros((0, 2)), np.zeros((0, 3)), np.zeros(0, np.int64))
    assert _memory_logits(IMAGE, empty, kernel=kernel).tolist() == [[0, 0, 0]]
    only_itself = _Memory(KEYS[:1], np.eye(2)[:1], np.array([5]))
    assert _memory_logits(IMAGE, only_itself, kernel=kernel, images=np.array([5])).tolist() == [[0, 0]]


def test_a_sharp_softmax_selects_the_nearest_key():
    far = _memory_logits(-IMAGE, EACH_KEY, sharpness=1e4, kernel="softmax")
    assert np.allclose(far, [[0, 0, 1]])


def test_an_unknown_kernel_is_refused():
    with pytest.raises(KeyError):
        _memory_logits(IMAGE, MEMORY, kernel="linear")


@given(hnp.arrays(np.float64, (4, 3), elements=unit_scores), st.floats(0.1, 20), st.sampled_from(["exp", "softmax"]))
def test_memory_logits_agree_with_a_loop_over_keys(keys, sharpness, kernel):
    features, memory = keys[:2], _Memory(keys, np.eye(2)[[0, 1, 1, 0]], np.arange(4))
    got = _memory_logits(features, memory, sharpness=sharpness, kernel=kernel)
    for image, logits in zip(features, got, strict=True):
        weights = [np.exp(-sharpness * (1 - sum(image * key))) for key in keys]
        total = sum(weights) if kernel == "softmax" else 1
        assert np.allclose(logits, [(weights[0] + weights[3]) / total, (weights[1] + weights[2]) / total])


@given(hnp.arrays(np.float64, (5, 3), elements=unit_scores), st.permutations(range(5)))
def test_keys_have_no_order(keys, order):
    memory = _Memory(keys, np.eye(2)[[0, 1, 1, 0, 1]], np.arange(5))
    shuffled = _Memory(*(part[order] for part in memory))
    ours, theirs = (_memory_logits(keys, m, images=np.arange(5)) for m in (memory, shuffled))
    assert np.allclose(ours, theirs)


# Building


def test_the_memory_keeps_the_most_confident_images_of_each_class():
    features = np.arange(14.0).reshape(7, 2)
    selection = Selection(np.array([4, 0, 6, 2, 5]), np.array([0, 0, 0, 2, 2]))
    keys, values, images = _build_memory(features, selection, 3, per_class=2)
    assert images.tolist() == [4, 0, 2, 5]
    assert keys.tolist() == [[8, 9], [0, 1], [4, 5], [10, 11]]
    assert values.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_classes_may_be_mixed_in_a_selection():
    selection = Selection(np.array([3, 1, 2, 0]), np.array([1, 0, 1, 0]))
    assert _build_memory(np.eye(4), selection, 2, per_class=1).images.tolist() == [1, 3]


def test_candidates_share_the_value_of_a_key():
    candidates = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1]], bool)
    selection = Selection(np.array([1, 0, 2]), np.array([0, 0, 2]), candidates)
    memory = _build_memory(np.eye(3), selection, 3, per_class=1)
    assert memory.images.tolist() == [1, 2]
    assert memory.values.tolist() == [[0.5, 0.5, 0], [0, 0, 1]]


def test_nothing_selected():
    memory = _build_memory(np.ones((4, 2)), Selection(np.zeros(0, np.int64), np.zeros(0, np.int64)), 3, per_class=2)
    assert [part.shape for part in memory] == [(0, 2), (0, 3), (0,)]


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(0, 20), st.just(3)), elements=st.floats(-5, 5)),
    st.integers(1, 5),
    st.sampled_from(["argmax", "column", "leaderboard"]),
)
def test_a_smaller_memory_equals_a_smaller_selection(scores, per_class, rule):
    # Except for leaderboards, whose smaller selection is not the beginning of a larger one.
    features = np.arange(len(scores), dtype=np.float64)[:, None]
    memory = _build_memory(features, select_top(scores, 8, rule), 3, per_class)
    assert (memory.values.sum(axis=0) <= per_class).all()
    assert memory.keys[:, 0].tolist() == memory.images.tolist()
    if rule != "leaderboard":
        fewer = select_top(scores, per_class, rule)
        assert memory.images.tolist() == fewer.index.tolist()
        assert memory.values.argmax(axis=1).tolist() == fewer.label.tolist()


# CALIP's attention

PATCHES = np.array([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]])


def test_the_worked_attention():
    # f W'^T with f along each axis reads off W'.
    attended_text = np.array([[0.599281, 0.581478], [0.495049, 0.693662]])
    for axis, image in enumerate(np.eye(2)):
        got = _spatial_logits(image[None], PATCHES, TEXT, scale=1, text_weight=1, image_weight=0)
        assert close(got, [attended_text[:, axis]])
    by_image = _spatial_logits(IMAGE, PATCHES, TEXT, scale=1, text_weight=0, image_weight=1)
    attended_image = np.linalg.solve(TEXT, by_image[0])  # f' from f' W^T
    assert np.allclose(attended_image, [1.418405, 1.421070], rtol=0, atol=6e-7)


def test_attention_is_weighed_and_scaled():
    parts = [
        _spatial_logits(IMAGE, PATCHES, TEXT, scale=1, text_weight=b2, image_weight=b3) for b2, b3 in [(1, 0), (0, 1)]
    ]
    got = _spatial_logits(IMAGE, PATCHES, TEXT, scale=100, text_weight=0.5, image_weight=0.1)
    assert np.allclose(got, 100 * (0.5 * parts[0] + 0.1 * parts[1]))


@given(hnp.arrays(np.float64, (2, 5, 3), elements=unit_scores), hnp.arrays(np.float64, (4, 3), elements=unit_scores))
def test_attention_agrees_with_one_image_after_another(patches, text):
    features = patches[:, 0]
    got = _spatial_logits(features, patches, text, scale=2.0, text_weight=1.5, image_weight=0.3)
    for image, own, logits in zip(features, patches, got, strict=True):
        weights = np.exp(2 * own @ text.T)  # (patches, classes)
        attended_text = (weights / weights.sum(axis=0)).T @ own
        patch_classes = (weights / weights.sum(axis=1, keepdims=True)) @ text
        attended_image = patch_classes.mean(axis=0) + patch_classes.max(axis=0)
        assert np.allclose(logits, 2 * (1.5 * attended_text @ image + 0.3 * text @ attended_image))
