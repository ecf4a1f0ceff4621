"""The layout of masked replies: exact counts, an average within its bound, no overflow."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcopl.privacy.masked_layout import (
    _HEAD,
    LARGEST_PROMPT,
    InvalidMaskedUpdate,
    Training,
    decode_counts,
    decode_training,
    encode_counts,
    encode_training,
    flatten,
    training_size,
    unflatten,
)

SENT = {"visual": np.zeros((2, 3), np.float64), "text": np.zeros(2, np.float64)}  # float64: no rounding after the sum
# At most 7 clients of 5,000 images: beyond 2**30 in all the sum might overflow, and is refused.
values = arrays(np.float32, 8, elements=st.floats(-30_000, 30_000, width=32))


def training(numbers, examples, loss=0.5):
    return Training(unflatten(np.asarray(numbers, np.float64), SENT), examples, loss)


def summed(words):
    return np.sum(words, axis=0, dtype=np.uint64)


@given(st.lists(arrays(np.int64, 4, elements=st.integers(0, 10**6)), min_size=1, max_size=9))
def test_sums_of_counts_are_exact(counts):
    words = [encode_counts(one.astype(np.float64), len(counts)) for one in counts]
    assert decode_counts(summed(words)).tolist() == np.sum(counts, axis=0).tolist()


@given(st.lists(st.tuples(values, st.integers(0, 5000)), min_size=1, max_size=7))
def test_the_average_is_within_its_bound(clients):
    if not sum(examples for _, examples in clients):
        return
    words = [encode_training(training(numbers, examples), 64, len(clients)) for numbers, examples in clients]
    got = flatten(decode_training(summed(words), SENT, ("a",)).mean)
    total = sum(examples for _, examples in clients)
    bound = Fraction(len(clients), 2**33 * total)
    for place in range(8):
        exact = sum(Fraction(float(numbers[place])) * examples for numbers, examples in clients) / total
        rounding = Fraction(2) ** -52 * abs(exact)  # of the division itself
        assert abs(Fraction(float(got[place])) - exact) <= bound + rounding


def test_examples_loss_and_batches_are_summed():
    words = [
        encode_training(training(np.ones(8), 100, 0.25), 64, 3),
        encode_training(training(np.zeros(8), 28, 1.25), 64, 3),
        encode_training(training(np.full(8, 9.0), 0, math.nan), 64, 3),  # nothing to train on: it weighs nothing
    ]
    out = decode_training(summed(words), SENT, ("a", "b", "c"))
    assert (out.examples, out.batches, out.clients) == (128, 3, ("a", "b", "c"))  # 100 images are 2 batches, 28 are 1
    assert out.loss == (100 * 0.25 + 28 * 1.25) / 128
    assert out.mean["visual"] == pytest.approx(np.full((2, 3), 100 / 128), abs=2**-33)
    assert out.updates == {}


def test_no_client_had_images_to_train_on():
    out = decode_training(summed([encode_training(training(np.ones(8), 0, math.nan), 64, 1)]), SENT, ("a",))
    assert out.mean is None
    assert math.isnan(out.loss)


def test_a_client_without_a_loss_counts_in_the_average():
    out = decode_training(encode_training(training(np.ones(8), 1, math.nan), 64, 1), SENT, ("a",))
    assert (out.mean["visual"] == 1).all()
    assert (out.examples, out.batches) == (0, 0)
    assert math.isnan(out.loss)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, LARGEST_PROMPT * 1.01])
def test_a_diverged_prompt_is_not_sent(bad):
    with pytest.raises(ValueError, match=r"training diverged, try a lower train\.lr"):
        encode_training(training([0, bad, *np.zeros(6)], 1), 64, 1)


def test_only_values_that_might_overflow_are_refused():
    # 2^62 / 4 clients is 2^60: in steps of 2^-16 a count of 2^44, in steps of 2^-32 images x prompt of 2^28.
    fits = encode_counts(np.array([2.0**44]), 4)
    assert decode_counts(summed([fits] * 4)).tolist() == [2**46]
    with pytest.raises(ValueError, match="too large to be summed over 4 clients"):
        encode_counts(np.array([2.0**44 + 2**-8]), 4)
    encode_training(training(np.full(8, 2.0**15), 2**13), 64, 4)
    with pytest.raises(ValueError, match="too large to be summed over 4 clients"):
        encode_training(training(np.full(8, 2.0**15), 2**13 + 1), 64, 4)
    with pytest.raises(ValueError, match="too large"):
        encode_counts(np.array([math.nan]), 1)


@given(st.integers(1, 60), st.sampled_from([-1.0, 1.0]))
def test_the_largest_numbers_of_all_clients_together_do_not_overflow(clients, sign):
    largest = np.floor(np.ldexp(2**62 // clients, -16)) * sign
    total = summed([encode_counts(np.array([largest]), clients)] * clients)
    assert total.view(np.int64)[0] == int(largest) * 2**16 * clients


def test_counts_below_zero_are_noise_and_become_zero():
    noise = encode_counts(np.array([-3.25, 2.75, 0.25]), 2)
    assert decode_counts(summed([noise, encode_counts(np.array([1.0, 1.0, 0.0]), 2)])).tolist() == [0, 4, 0]


def test_an_impossible_sum_is_detected():
    invalid = np.random.default_rng(1).integers(0, 2**64, training_size(SENT), np.uint64)
    with pytest.raises(InvalidMaskedUpdate):
        decode_training(invalid, SENT, ("a",))
    far = encode_training(training(np.zeros(8), 1), 64, 1)
    far[_HEAD] = np.uint64(2**62)
    with pytest.raises(InvalidMaskedUpdate, match="beyond"):
        decode_training(far, SENT, ("a",))


def test_unflatten_inverts_flatten():
    prompts = {"visual": np.arange(6, dtype=np.float32).reshape(2, 3), "text": np.array([7, 8], np.float32)}
    assert flatten(prompts).tolist() == [7, 8, 0, 1, 2, 3, 4, 5]  # sorted by name
    assert flatten(dict(reversed(prompts.items()))).tolist() == flatten(prompts).tolist()
    back = unflatten(flatten(prompts), prompts)
    assert list(back) == list(prompts)
    assert all((back[name] == prompts[name]).all() and back[name].dtype == np.float32 for name in prompts)
    assert unflatten(flatten({}), {}) == {}
