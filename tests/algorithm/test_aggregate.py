import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcopl.algorithm.aggregate import nearest, weighted_mean

singles = hnp.arrays(np.float32, (2, 3), elements=st.floats(-1e6, 1e6, width=32))
weights = st.lists(st.integers(1, 50_000), min_size=1, max_size=5)


def part(*values, dtype=np.float32):
    return {"visual": np.array(values, dtype)}


def test_by_hand():
    # (100 * (0, 2) + 300 * (4, 6)) / 400 = (3, 5)
    assert weighted_mean([part(0, 2), part(4, 6)], [100, 300])["visual"].tolist() == [3, 5]


def test_each_name_is_averaged_on_its_own_and_keeps_its_shape_and_dtype():
    parts = [{"visual": np.full((2, 1), v, np.float32), "text": np.array([v + 10], np.float64)} for v in (0, 4)]
    mean = weighted_mean(parts, [1, 3])
    assert {name: (a.tolist(), a.dtype) for name, a in mean.items()} == {
        "visual": ([[3.0], [3.0]], np.float32),
        "text": ([13.0], np.float64),
    }


def test_sums_in_float64():
    # In float32 the 1 is lost beside 2^24 + 2^24: (2^24 + 1 - 2^24) / 3.
    big = float(2**24)
    mean = weighted_mean([part(big), part(1.0), part(-big)], [1, 1, 1])["visual"]
    assert mean[0] == pytest.approx(1 / 3, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@given(weight=st.integers(1, 10**6), value=st.floats(-6e4, 6e4))
@example(weight=3, value=-0.0)
def test_one_client_averages_to_itself_bit_for_bit(dtype, weight, value):
    only = part(value, dtype=dtype)
    assert weighted_mean([only], [weight])["visual"].tobytes() == only["visual"].tobytes()


@given(singles, weights)
def test_the_mean_of_equal_arrays_is_that_array(array, counts):
    mean = weighted_mean([{"visual": array}] * len(counts), counts)["visual"]
    assert np.array_equal(mean, array)


@given(st.lists(singles, min_size=2, max_size=5), st.data())
def test_agrees_with_numpy_and_lies_between_the_parts(arrays, data):
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=len(arrays), max_size=len(arrays)))
    mean = weighted_mean([{"visual": a} for a in arrays], counts)["visual"]
    stack = np.stack(arrays).astype(np.float64)
    assert np.allclose(mean, np.average(stack, axis=0, weights=counts), rtol=1e-6, atol=1e-6)
    assert (mean >= stack.min(axis=0) - 1e-6).all() and (mean <= stack.max(axis=0) + 1e-6).all()


def test_a_client_of_weight_zero_is_left_out():
    assert weighted_mean([part(np.nan), part(5.0)], [0, 7])["visual"].tolist() == [5.0]


def test_the_parts_are_not_changed():
    given_parts = [part(0, 2), part(4, 6)]
    weighted_mean(given_parts, [1, 1])
    assert [p["visual"].tolist() for p in given_parts] == [[0, 2], [4, 6]]


@pytest.mark.parametrize("counts", [[0, 0], [-1, 2], [1]], ids=["all zero", "negative", "too few"])
def test_weights_that_give_no_mean_are_refused(counts):
    with pytest.raises(ValueError):
        weighted_mean([part(1.0), part(2.0)], counts)


def test_no_parts_are_refused():
    with pytest.raises(ValueError, match="at least one positive weight"):
        weighted_mean([], [])


@pytest.mark.parametrize(
    "other",
    [part(1.0), part(1.0, 2.0, dtype=np.float64), {"text": np.zeros(2, np.float32)}],
    ids=["shape", "dtype", "name"],
)
def test_parts_that_do_not_match_are_refused(other):
    with pytest.raises(ValueError, match="same names, shapes and dtypes"):
        weighted_mean([part(1.0, 2.0), other], [1, 1])


def test_nearest_clients_by_hand():
    # Distances from a are 5 (3, 4), 1, 13 (5, 12) and 1; of equal distances the first upload comes first.
    uploads = {"a": part(0, 0), "b": part(3, 4), "c": part(0, 1), "d": part(5, 12), "e": part(1, 0)}
    assert nearest("a", uploads, 1) == ["c"]
    assert nearest("a", uploads, 9) == ["c", "e", "b", "d"]
    assert nearest("a", uploads, 0) == []
    assert nearest("new", uploads, 2) == []
