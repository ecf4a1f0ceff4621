import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.algorithm import partition
from fedcopl.algorithm.partition import (
    _apportion,
    _assign_classes,
    _move_to_small_clients,
    counts_by_client,
    dirichlet,
    iid,
    quantity,
)
from fedcopl.rng import stream


def balanced(images, classes):
    return np.arange(images) % classes


SPLITS = {
    "iid": iid,
    "dirichlet": lambda *args: dirichlet(*args, beta=0.1, draws=5),
    "quantity": quantity,
}


@st.composite
def datasets(draw):
    classes = draw(st.integers(1, 8))
    labels = st.lists(st.integers(0, classes - 1), max_size=60).map(lambda values: np.array(values, np.int64))
    return draw(labels), draw(labels), classes, draw(st.integers(1, 20))


def as_lists(split):
    return [part.tolist() for part in split.train + split.test]


@pytest.mark.parametrize("name", SPLITS)
@given(dataset=datasets(), seed=st.integers(0, 5))
def test_every_image_goes_to_exactly_one_client(name, dataset, seed):
    train, test, _, clients = dataset
    split = SPLITS[name](*dataset, stream(seed, "partition"))
    for labels, parts in ((train, split.train), (test, split.test)):
        assert len(parts) == clients
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
        assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("name", SPLITS)
@given(dataset=datasets())
def test_no_client_is_empty_when_there_are_images_for_all(name, dataset):
    train, test, _, clients = dataset
    split = SPLITS[name](*dataset, stream(0, "partition"))
    for labels, parts in ((train, split.train), (test, split.test)):
        assert min(len(part) for part in parts) >= min(1, len(labels) // clients)


@pytest.mark.parametrize("name", SPLITS)
def test_the_seed_decides_the_split(name):
    first, again, other = (
        as_lists(SPLITS[name](balanced(300, 6), balanced(60, 6), 6, 5, stream(seed, "partition"))) for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("name", SPLITS)
def test_one_client_has_all_images(name):
    split = SPLITS[name](balanced(30, 6), balanced(12, 6), 6, 1, stream(0, "partition"))
    assert as_lists(split) == [list(range(30)), list(range(12))]


@pytest.mark.parametrize("name", SPLITS)
def test_a_thousand_clients_of_one_or_two_images(name):
    # 1,437 + 360 images: one for each in train, not in test.
    split = SPLITS[name](balanced(1437, 10), balanced(360, 10), 10, 1000, stream(0, "partition"))
    assert min(map(len, split.train)) == 1
    assert sum(map(len, split.train)) == 1437 and sum(map(len, split.test)) == 360


@pytest.mark.parametrize("name", SPLITS)
def test_no_clients_are_refused(name):
    with pytest.raises(ValueError, match="at least one client, not 0"):
        SPLITS[name](balanced(6, 3), balanced(6, 3), 3, 0, stream(0, "partition"))


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("wrong", [3, -1])
def test_labels_out_of_range_are_refused(name, wrong):
    labels = np.array([0, 1, wrong])
    with pytest.raises(ValueError, match="labels must be from 0 to 2"):
        SPLITS[name](balanced(6, 3), labels, 3, 2, stream(0, "partition"))


# iid


@given(st.integers(0, 60), st.integers(1, 20))
def test_iid_parts_differ_by_at_most_one(images, clients):
    split = iid(balanced(images, 3), balanced(images, 3), 3, clients, stream(0, "partition"))
    for parts in (split.train, split.test):
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_iid_mixes_the_classes():
    labels = np.repeat(np.arange(4), 250)  # sorted by class, as on a disk
    table = counts_by_client(labels, iid(labels, labels, 4, 4, stream(0, "partition")).train, 4)
    # 250 images of 4 equally likely classes: 62.5 each, with a standard deviation under 7.
    assert (abs(table - 62.5) < 35).all()


# Dirichlet


def test_dirichlet_reaches_the_minimum_sizes():
    split = dirichlet(balanced(2000, 10), balanced(500, 10), 10, 10, stream(3, "partition"), beta=0.1)
    assert min(map(len, split.train)) >= 10 and min(map(len, split.test)) >= 1


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_is_corrected_after_all_draws(seed):
    # Ten classes over 200 clients: most clients would get nothing, in any draw.
    train, test = balanced(4000, 10), balanced(1000, 10)
    split = dirichlet(train, test, 10, 200, stream(seed, "partition"), beta=0.05, min_train=12, min_test=2, draws=3)
    assert min(map(len, split.train)) == 12 and min(map(len, split.test)) == 2


def test_dirichlet_draws_again_before_correction(monkeypatch):
    labels = balanced(400, 10)

    def needs_correction(draws):
        short = []

        def note(counts, minimum, preferred):
            short.append(counts.sum(axis=0).min() < minimum)
            return counts

        monkeypatch.setattr(partition, "_move_to_small_clients", note)
        for seed in range(10):
            dirichlet(labels, labels, 10, 8, stream(seed, "partition"), beta=0.1, draws=draws)
        return any(short)

    assert needs_correction(draws=1) and not needs_correction(draws=100)


@pytest.mark.parametrize("seed", range(5))
def test_clients_are_tested_on_classes_of_their_training_images(seed):
    # Few test images of each class for many clients, so most clients are corrected; there are enough of every class.
    train, test = balanced(800, 4), balanced(80, 4)
    split = dirichlet(train, test, 4, 40, stream(seed, "partition"), beta=0.05, draws=1)
    of_train, of_test = counts_by_client(train, split.train, 4), counts_by_client(test, split.test, 4)
    assert min(map(len, split.test)) == 1
    assert (of_train[of_test > 0] > 0).all()


def test_the_minimum_is_no_more_than_the_even_share():
    # 25 images over 5 clients: 10 each is impossible, 5 each is not.
    split = dirichlet(balanced(25, 5), balanced(5, 5), 5, 5, stream(0, "partition"), beta=0.1, min_test=4)
    assert [len(part) for part in split.train] == [5] * 5
    assert [len(part) for part in split.test] == [1] * 5


def test_client_with_even_share_gets_no_more():
    # Two classes, each of 100; N/K = 50. A client with 50 or more images of class 0 has none of class 1.
    labels = balanced(200, 2)
    full = 0
    for seed in range(20):
        split = dirichlet(labels, labels, 2, 4, stream(seed, "partition"), beta=0.1, min_train=0, min_test=0)
        table = counts_by_client(labels, split.train, 2)
        full += int((table[:, 0] >= 50).sum())
        assert (table[table[:, 0] >= 50, 1] == 0).all()
    assert full > 0


def test_train_and_test_share_the_draw():
    # The same labels on both sides, and no correction: the same shares give the same table.
    labels = balanced(1000, 5)
    split = dirichlet(labels, labels, 5, 4, stream(0, "partition"), beta=0.5)
    assert np.array_equal(counts_by_client(labels, split.train, 5), counts_by_client(labels, split.test, 5))
    assert as_lists(split)[:4] != as_lists(split)[4:]  # how many is shared, which is drawn anew


def mean_largest_share(beta):
    labels = balanced(5000, 10)
    shares = []
    for seed in range(10):
        split = dirichlet(labels, labels, 10, 5, stream(seed, "partition"), beta=beta, min_train=0, min_test=0)
        table = counts_by_client(labels, split.train, 10)
        shares.append((table.max(axis=0) / table.sum(axis=0)).mean())
    return np.mean(shares)


def test_a_small_beta_gives_a_class_to_few_clients():
    # An even split has a largest share of 1/5; a split by whole classes has 1.
    assert mean_largest_share(1000.0) < 0.25 < 0.6 < mean_largest_share(0.1) < mean_largest_share(0.001)


def test_draws_follow_the_dirichlet_distribution():
    # Of one class nothing is capped. A share has mean 1/K and variance (K - 1) / (K^2 (K beta + 1)):
    # K = 4, beta = 0.5: 3 / (16 * 3) = 1/16.
    sizes = np.array([10_000])
    rng = stream(0, "partition")
    shares = np.stack([partition._draw_dirichlet(sizes, 4, 0.5, rng)[1][0] for _ in range(4000)])
    assert np.allclose(shares.mean(axis=0), 1 / 4, atol=0.015)
    assert np.allclose(shares.var(axis=0), 1 / 16, atol=0.006)


def test_a_tiny_beta_still_gives_shares():
    # Gamma draws at this beta are below the smallest float; their logarithms are not.
    split = dirichlet(balanced(60, 6), balanced(60, 6), 6, 3, stream(0, "partition"), beta=1e-6)
    assert [len(part) for part in split.train] == [20, 20, 20]


@pytest.mark.parametrize("wrong", [{"beta": 0.0}, {"beta": 0.1, "draws": 0}])
def test_impossible_dirichlet_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="beta > 0 and draws >= 1"):
        dirichlet(balanced(6, 3), balanced(6, 3), 3, 2, stream(0, "partition"), **wrong)


# Rounding and correction


def test_largest_remainder_by_hand():
    # 0.5, 0.3, 0.2 of 7 = 3.5, 2.1, 1.4: floors 3, 2, 1, and the one left goes to the remainder 0.5.
    # 1/3 each of 4: floors of 1, one left; of equal remainders the lowest client's wins.
    shares = np.array([[0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3]])
    assert _apportion(shares, np.array([7, 4])).tolist() == [[4, 2, 1], [2, 1, 1]]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30).filter(any), st.integers(0, 100_000))
def test_largest_remainder_adds_up_and_is_off_by_less_than_one(weights, size):
    shares = np.array(weights) / sum(weights)
    counts = _apportion(shares, np.int64(size))
    assert counts.sum() == size
    assert (abs(counts - shares * size) < 1 + 1e-6).all()


def test_correction_by_hand():
    # Rows are classes, columns clients holding 6, 4, 1 and 0; each should have 2.
    counts = np.array([[5, 0, 0, 0], [1, 4, 1, 0]])
    # Client 2 has one too few and has class 1. Client 0 has most to spare and one image of class 1, which moves.
    # Client 3 has two too few and no preferred class: two images of client 0's most frequent class move.
    assert _move_to_small_clients(counts, 2, counts > 0).tolist() == [[3, 0, 0, 2], [0, 4, 2, 0]]


def test_images_are_taken_from_the_largest_client():
    assert _move_to_small_clients(np.array([[3, 9, 4, 0]]), 2, np.ones((1, 4), bool)).tolist() == [[3, 7, 4, 2]]


@st.composite
def tables_to_correct(draw):
    rows, clients = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    values = draw(st.lists(st.integers(0, 9), min_size=rows * clients, max_size=rows * clients))
    counts = np.array(values).reshape(rows, clients)
    return counts, draw(st.integers(0, int(counts.sum()) // clients))


@given(tables_to_correct())
def test_correction_moves_the_fewest_images(case):
    counts, minimum = case
    corrected = _move_to_small_clients(counts, minimum, counts > 0)
    short = np.maximum(minimum - counts.sum(axis=0), 0).sum()
    assert corrected.sum(axis=0).min() >= minimum and corrected.min() >= 0
    assert corrected.sum(axis=1).tolist() == counts.sum(axis=1).tolist()
    assert np.maximum(counts - corrected, 0).sum() == short  # images that left their client


def test_corrected_test_images_are_of_train_classes():
    counts = np.array([[9, 0], [1, 0]])
    assert _move_to_small_clients(counts, 1, np.array([[True, False], [True, True]])).tolist() == [[9, 0], [0, 1]]


# Quantity


@pytest.mark.parametrize(
    ("classes", "clients", "per_client", "holders"),
    [
        # s = ceil(0.2 C); each class has about s K / C clients.
        (10, 10, 2, {2}),  # CIFAR-10: 20 / 10
        (100, 10, 20, {2}),  # CIFAR-100: 200 / 100
        (45, 10, 9, {2}),  # RESISC45: 90 / 45
        (47, 10, 10, {2, 3}),  # DTD: 100 / 47
        (200, 5, 40, {1}),  # CUB: 200 / 200
        (101, 5, 21, {1, 2}),  # UCF101: 105 / 101
    ],
)
def test_the_papers_datasets_by_quantity(classes, clients, per_client, holders):
    train, test = balanced(30 * classes, classes), balanced(12 * classes, classes)
    split = quantity(train, test, classes, clients, stream(0, "partition"))
    for labels, parts in ((train, split.train), (test, split.test)):
        holds = counts_by_client(labels, parts, classes) > 0
        assert set(holds.sum(axis=1).tolist()) == {per_client}
        assert set(holds.sum(axis=0).tolist()) == holders


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_classes_are_assigned_evenly(classes, clients, per_client, seed):
    per_client = min(per_client, classes)
    holders = _assign_classes(np.arange(classes), classes, clients, per_client, stream(seed, "partition"))
    per_class, per_client_counts = holders.sum(axis=1), holders.sum(axis=0)
    assert per_class.min() >= 1 and per_class.max() - per_class.min() <= 1
    if per_client * clients >= classes:
        assert (per_client_counts == per_client).all()
    else:
        assert per_client_counts.sum() == classes and per_client_counts.max() - per_client_counts.min() <= 1


def test_classes_are_assigned_at_random():
    # Ten clients of two classes of ten: a fixed pattern would repeat the same pairs of classes.
    holders = _assign_classes(np.arange(10), 10, 10, 2, stream(0, "partition"))
    assert len({tuple(np.flatnonzero(column)) for column in holders.T}) > 5


def test_few_clients_share_all_classes():
    # s = ceil(0.2 * 10) = 2 for 4 clients covers 8 of 10 classes, so two clients have a third.
    labels = balanced(100, 10)
    table = counts_by_client(labels, quantity(labels, labels, 10, 4, stream(0, "partition")).train, 10)
    assert sorted((table > 0).sum(axis=1).tolist()) == [2, 2, 3, 3]


def test_shards_are_uneven_but_within_three_to_one():
    labels = balanced(10_000, 10)
    table = counts_by_client(labels, quantity(labels, labels, 10, 10, stream(0, "partition")).train, 10)
    ratios = [max(held) / min(held) for held in (column[column > 0] for column in table.T)]
    assert 1.2 < max(ratios) <= 3.01  # the hundredth is for rounding


def test_quantity_uses_equal_proportions_for_train_and_test():
    train, test = balanced(10_000, 10), balanced(1_000, 10)
    split = quantity(train, test, 10, 10, stream(0, "partition"))
    of_train, of_test = counts_by_client(train, split.train, 10), counts_by_client(test, split.test, 10)
    # A tenth, except for rounding and the first image of each client.
    assert (abs(of_test - of_train / 10) <= 2).all()
    assert ((of_test > 0) == (of_train > 0)).all()


@pytest.mark.parametrize("seed", range(5))
def test_each_client_of_a_small_class_gets_an_image(seed):
    # 40 clients of 2 classes, 10 classes at 8 clients each: 8 images of a class are one for each client.
    labels = balanced(80, 10)
    split = quantity(labels, labels, 10, 40, stream(seed, "partition"))
    assert set(counts_by_client(labels, split.train, 10).ravel().tolist()) == {0, 1}


def test_a_class_without_images_is_not_assigned():
    # Classes 1 and 3 of 5 have no image: 3 clients of one class each have the other three.
    labels = np.repeat([0, 2, 4], 10)
    split = quantity(labels, labels, 5, 3, stream(0, "partition"))
    assert sorted(counts_by_client(labels, split.train, 5).sum(axis=1).tolist()) == [10, 10, 10]


@pytest.mark.parametrize(
    ("per_client", "message"),
    [
        (0, "from 1 to 10 classes, not 0"),
        (11, "from 1 to 10 classes, not 11"),
        (2, "4 clients of 2 classes each cannot hold all 10 classes"),
    ],
)
def test_impossible_numbers_of_classes_are_refused(per_client, message):
    labels = balanced(100, 10)
    with pytest.raises(ValueError, match=message):
        quantity(labels, labels, 10, 4, stream(0, "partition"), classes_per_client=per_client)


def test_counts_by_client():
    parts = [np.array([0, 1, 2]), np.array([3]), np.array([], np.int64)]
    assert counts_by_client(np.array([1, 1, 0, 2]), parts, 4).tolist() == [
        [1, 2, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]
