"""Simulation only: partition a labelled data set over clients. Every image goes to exactly one of them.

The skewed splits first decide *how many* images of each class a client gets (a table of shape (C, K)),
then draw at random *which*. Train and test images are split in the same proportions.
With more clients than images some clients stay empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..plurals import counted
from . import BoolArray, FloatArray, IntArray, softmax


@dataclass(frozen=True)
class Partition:
    """The sorted indices of each client's images."""

    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]


def iid(
    train_labels: IntArray, test_labels: IntArray, classes: int, clients: int, rng: np.random.Generator
) -> Partition:
    """Split all images at random, in parts whose sizes differ by at most one."""
    _require_clients(clients)
    _require_labels(train_labels, classes)
    _require_labels(test_labels, classes)
    return Partition(_deal(len(train_labels), clients, rng), _deal(len(test_labels), clients, rng))


def dirichlet(
    train_labels: IntArray,
    test_labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    beta: float,
    min_train: int = 10,
    min_test: int = 1,
    draws: int = 100,
) -> Partition:
    """Split each class by a draw from Dirichlet(beta); the smaller beta, the fewer classes a client holds.

    Class after class, a client that already holds its even share N/K of the train images gets no more.
    The whole is drawn again until every client has min_train train and min_test test images (or the even
    share, where that is less). If `draws` attempts do not reach it, the last one is corrected: the
    fewest possible images move from the largest holders to the clients that are short.
    """
    _require_clients(clients)
    if beta <= 0 or draws < 1:
        raise ValueError(f"a Dirichlet split needs beta > 0 and draws >= 1, not {beta} and {draws}")
    train_sizes, test_sizes = _class_sizes(train_labels, classes), _class_sizes(test_labels, classes)
    min_train = min(min_train, len(train_labels) // clients)
    min_test = min(min_test, len(test_labels) // clients)
    for _ in range(draws):
        train, shares = _draw_dirichlet(train_sizes, clients, beta, rng)
        if _smallest(train) >= min_train and _smallest(_apportion(shares, test_sizes)) >= min_test:
            break
    train = _move_to_small_clients(train, min_train, preferred=train > 0)
    test = _move_to_small_clients(_apportion(shares, test_sizes), min_test, preferred=train > 0)
    return Partition(_hand_out(train_labels, train, rng), _hand_out(test_labels, test, rng))


def quantity(
    train_labels: IntArray,
    test_labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int | None = None,
) -> Partition:
    """Give each client images of only s classes: s = ceil(0.2 C) unless classes_per_client is set.

    Which classes is dealt at random so that every client holds s and all classes have equally many
    holders, give or take one: s K / C, about a fifth of the clients. With fewer than five clients
    ceil(0.2 C) may not cover all classes: then each class has one holder, and the clients share them evenly.
    A class without any image is not dealt, and counts for nothing here but in s.
    A class is split among its holders in shards of uneven size, the largest at most about three times
    the smallest; each holder gets one image first if there are enough. A client left with nothing, because
    its classes have more holders than images, is given one image, of its own classes if possible.
    """
    _require_clients(clients)
    per_client = -(-classes // 5) if classes_per_client is None else classes_per_client
    if not 1 <= per_client <= classes:
        raise ValueError(f"a client can hold from 1 to {counted(classes, 'class')}, not {per_client}")
    train_sizes, test_sizes = _class_sizes(train_labels, classes), _class_sizes(test_labels, classes)
    present = np.flatnonzero(train_sizes + test_sizes)
    if classes_per_client is not None and classes_per_client * clients < len(present):
        raise ValueError(
            f"{counted(clients, 'client')} of {counted(per_client, 'class')} each "
            f"cannot hold all {counted(len(present), 'class')}"
        )
    holders = _deal_classes(present, classes, clients, per_client, rng)
    shares = _normalise(np.where(holders, rng.uniform(0.5, 1.5, size=holders.shape), 0.0))
    train, test = _shards(shares, holders, train_sizes), _shards(shares, holders, test_sizes)
    return Partition(_hand_out(train_labels, train, rng), _hand_out(test_labels, test, rng))


def counts_by_client(labels: IntArray, parts: Sequence[IntArray], classes: int) -> IntArray:
    """Return the number of images of each class at each client, (K, C)."""
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    return np.array(counts, np.int64).reshape(len(parts), classes)


def _draw_dirichlet(
    sizes: IntArray, clients: int, beta: float, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw once: the number of images of each class for each client, and the shares behind it, both (C, K)."""
    logs = _log_gamma_draws(beta, (len(sizes), clients), rng)
    shares, counts = np.zeros(logs.shape), np.zeros(logs.shape, np.int64)
    client_sizes, images = np.zeros(clients, np.int64), sizes.sum()
    for c, size in enumerate(sizes):
        has_room = np.flatnonzero(client_sizes * clients < images)
        if len(has_room) == 0:  # all train images are dealt; later classes have at most test images
            has_room = np.arange(clients)
        # Gamma draws divided by their sum are a Dirichlet draw, and so are those of some clients only.
        shares[c, has_room] = softmax(logs[c, has_room])
        counts[c, has_room] = _apportion(shares[c, has_room], size)
        client_sizes += counts[c]
    return counts, shares


def _log_gamma_draws(beta: float, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray:
    """Draw logarithms of Gamma(beta) variates: for a small beta most variates themselves would round to 0.

    If G is Gamma(beta + 1) and U uniform, then G * U^(1/beta) is Gamma(beta); -log U is exponential.
    """
    draws: FloatArray = np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta
    return draws


def _normalise(weights: FloatArray) -> FloatArray:
    """Scale rows to sum to 1; a row of zeros stays unchanged."""
    totals = weights.sum(axis=1, keepdims=True)
    return weights / np.where(totals > 0, totals, 1.0)


def _apportion(shares: FloatArray, sizes: IntArray | np.int64) -> IntArray:
    """Return whole numbers in proportion to the shares (..., K) that sum to sizes (...), by largest remainder."""
    sizes = np.expand_dims(sizes, -1)
    exact = shares * sizes
    counts = np.floor(exact).astype(np.int64)
    left_over = sizes - counts.sum(axis=-1, keepdims=True)
    by_remainder = np.argsort(counts - exact, axis=-1, kind="stable")  # ties: the lower client
    extra = np.zeros_like(counts)
    np.put_along_axis(extra, by_remainder, np.arange(counts.shape[-1]) < left_over, axis=-1)
    return counts + extra


def _smallest(counts: IntArray) -> int:
    return int(counts.sum(axis=0).min())


def _move_to_small_clients(counts: IntArray, minimum: int, preferred: BoolArray) -> IntArray:
    """Move the fewest images so that each client holds `minimum`, of its preferred classes if possible.

    Possible whenever there are minimum * K images in all. Moving exactly what is short is the fewest.
    """
    counts, client_sizes = counts.copy(), counts.sum(axis=0)
    for short in np.flatnonzero(client_sizes < minimum):
        while client_sizes[short] < minimum:
            c, donor = _largest_source(counts, client_sizes - minimum, preferred[:, short])
            moved = min(minimum - client_sizes[short], client_sizes[donor] - minimum, counts[c, donor])
            counts[c, donor] -= moved
            counts[c, short] += moved
            client_sizes[donor] -= moved
            client_sizes[short] += moved
    return counts


def _largest_source(counts: IntArray, spare: IntArray, preferred: BoolArray) -> tuple[int, int]:
    """Return the class and the client to take images from: the client with most to spare, its commonest class.

    Only the preferred classes count, unless no client can spare any of them.
    """
    can_give = np.where(preferred[:, None] & (spare > 0), counts, 0).max(axis=0) > 0
    if not can_give.any():
        return _largest_source(counts, spare, np.ones_like(preferred))
    donor = int(np.where(can_give, spare, 0).argmax())
    return int(np.where(preferred, counts[:, donor], 0).argmax()), donor


def _deal_classes(
    present: IntArray, classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> BoolArray:
    """Return which clients hold which class, (C, K): dealt like cards, from one shuffled deck after another.

    When the deck ends within a client's hand, the classes in that hand go to the bottom of the next deck,
    so that no hand holds a class twice.
    """
    holders = np.zeros((classes, clients), np.bool_)
    deck = rng.permutation(present)
    for client, size in enumerate(_hand_sizes(len(present), clients, per_client)):
        if len(deck) < size:
            fresh = rng.permutation(present)
            in_hand = np.isin(fresh, deck)
            deck = np.concatenate([deck, fresh[~in_hand], fresh[in_hand]])
        holders[deck[:size], client] = True
        deck = deck[size:]
    return holders


def _hand_sizes(present: int, clients: int, per_client: int) -> IntArray:
    """Return the number of classes of each client: per_client, or as many as give every class a holder."""
    per_client = min(per_client, present)
    evenly = (np.arange(clients) + 1) * present // clients - np.arange(clients) * present // clients
    return np.full(clients, per_client) if per_client * clients >= present else evenly


def _shards(shares: FloatArray, holders: BoolArray, sizes: IntArray) -> IntArray:
    """Split each class by its shares, but give each holder an image first where there are enough."""
    enough = sizes >= holders.sum(axis=1)
    first = (holders & enough[:, None]).astype(np.int64)
    counts = first + _apportion(shares, sizes - first.sum(axis=1))
    return _move_to_small_clients(counts, min(1, int(sizes.sum()) // holders.shape[1]), preferred=holders)


def _hand_out(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> tuple[IntArray, ...]:
    """Draw which images each client gets, given how many of each class, (C, K)."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.empty(len(labels), np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return _parts(owner, counts.shape[1])


def _deal(images: int, clients: int, rng: np.random.Generator) -> tuple[IntArray, ...]:
    return _parts(rng.permutation(images) % clients, clients)


def _parts(owner: IntArray, clients: int) -> tuple[IntArray, ...]:
    """Return the sorted indices of each client's images, from the owner of each image."""
    ends = np.bincount(owner, minlength=clients).cumsum()
    return tuple(np.split(np.argsort(owner, kind="stable"), ends[:-1]))


def _class_sizes(labels: IntArray, classes: int) -> IntArray:
    _require_labels(labels, classes)
    return np.bincount(labels, minlength=classes)


def _require_labels(labels: IntArray, classes: int) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, not {labels.min()} to {labels.max()}")


def _require_clients(clients: int) -> None:
    if clients < 1:
        raise ValueError(f"a split needs at least one client, not {clients}")
