"""Partition a labelled data set over simulated clients; each image goes to exactly one of them.

The skewed splits first determine the *number* of images of each class at each client, a table (C, K), and then draw
the images at random. Train and test images are split in the same proportions. With more clients than images some
clients stay empty.
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
    """Split all images at random into parts whose sizes differ by at most one."""
    _require_clients(clients)
    sizes = [_class_sizes(labels, classes).sum() for labels in (train_labels, test_labels)]
    return Partition(*(_indices_by_client(rng.permutation(size) % clients, clients) for size in sizes))


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
    """Split each class by a draw from Dirichlet(beta); the smaller beta, the fewer classes a client has.

    Classes are split in their order; a client that has N/K train images or more gets none of the later classes. The
    draw is repeated until every client has min_train train and min_test test images (at most its even share). If
    `draws` attempts do not suffice, the last one is corrected by moving as few images as possible from the largest
    clients to those with too few.
    """
    _require_clients(clients)
    if beta <= 0 or draws < 1:
        raise ValueError(f"a Dirichlet split needs beta > 0 and draws >= 1, not {beta} and {draws}")
    train_sizes, test_sizes = _class_sizes(train_labels, classes), _class_sizes(test_labels, classes)
    min_train = min(min_train, len(train_labels) // clients)
    min_test = min(min_test, len(test_labels) // clients)
    for _ in range(draws):
        train, shares = _draw_dirichlet(train_sizes, clients, beta, rng)
        test = _apportion(shares, test_sizes)
        if train.sum(axis=0).min() >= min_train and test.sum(axis=0).min() >= min_test:
            break
    train = _move_to_small_clients(train, min_train, preferred=train > 0)
    test = _move_to_small_clients(test, min_test, preferred=train > 0)
    return Partition(_draw_images(train_labels, train, rng), _draw_images(test_labels, test, rng))


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

    Classes are assigned at random; each has s K / C clients, rounded up or down. If s K < C, as possible with fewer
    than five clients, each class has one client and the numbers of classes differ by at most one. Classes without
    images are not assigned, but count in C. A class is split over its clients in shards of uneven size, the largest
    about three times the smallest at most; each client gets one image first if there are enough. A client without
    images, because its classes have more clients than images, gets one image, of its own classes if possible.
    """
    _require_clients(clients)
    per_client = -(-classes // 5) if classes_per_client is None else classes_per_client
    if not 1 <= per_client <= classes:
        raise ValueError(f"classes_per_client must be from 1 to {counted(classes, 'class')}, not {per_client}")
    train_sizes, test_sizes = _class_sizes(train_labels, classes), _class_sizes(test_labels, classes)
    present = np.flatnonzero(train_sizes + test_sizes)
    if classes_per_client is not None and classes_per_client * clients < len(present):
        raise ValueError(
            f"{counted(clients, 'client')} of {counted(per_client, 'class')} each "
            f"cannot hold all {counted(len(present), 'class')}"
        )
    assigned = _assign_classes(present, classes, clients, per_client, rng)
    weights = np.where(assigned, rng.uniform(0.5, 1.5, size=assigned.shape), 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    shares = weights / np.where(totals > 0, totals, 1.0)
    train, test = _shards(shares, assigned, train_sizes), _shards(shares, assigned, test_sizes)
    return Partition(_draw_images(train_labels, train, rng), _draw_images(test_labels, test, rng))


def counts_by_client(labels: IntArray, parts: Sequence[IntArray], classes: int) -> IntArray:
    """Return the number of images of each class at each client, (K, C)."""
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    return np.array(counts, np.int64).reshape(len(parts), classes)


def _draw_dirichlet(
    sizes: IntArray, clients: int, beta: float, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw the number of images of each class at each client, and the shares that determine it, both (C, K)."""
    logs = _log_gamma_draws(beta, (len(sizes), clients), rng)
    shares, counts = np.zeros(logs.shape), np.zeros(logs.shape, np.int64)
    client_sizes, images = np.zeros(clients, np.int64), sizes.sum()
    for c, size in enumerate(sizes):
        open_clients = np.flatnonzero(client_sizes * clients < images)
        if len(open_clients) == 0:  # all train images are assigned; later classes have at most test images
            open_clients = np.arange(clients)
        # Gamma draws divided by their sum are a Dirichlet draw, also those of a subset of the clients.
        shares[c, open_clients] = softmax(logs[c, open_clients])
        counts[c, open_clients] = _apportion(shares[c, open_clients], size)
        client_sizes += counts[c]
    return counts, shares


def _log_gamma_draws(beta: float, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray:
    """Draw logarithms of Gamma(beta) variates: for a small beta most variates themselves would round to 0.

    If G is Gamma(beta + 1) and U uniform, then G * U^(1/beta) is Gamma(beta); -log U is exponential.
    """
    draws: FloatArray = np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta
    return draws


def _apportion(shares: FloatArray, sizes: IntArray | np.int64) -> IntArray:
    """Return integers in proportion to the shares, (..., K), that sum to sizes, (...), by largest remainder."""
    sizes = np.expand_dims(sizes, -1)
    exact = shares * sizes
    counts = np.floor(exact).astype(np.int64)
    left_over = sizes - counts.sum(axis=-1, keepdims=True)
    by_remainder = np.argsort(counts - exact, axis=-1, kind="stable")  # ties: the lower client
    extra = np.zeros_like(counts)
    np.put_along_axis(extra, by_remainder, np.arange(counts.shape[-1]) < left_over, axis=-1)
    return counts + extra


def _move_to_small_clients(counts: IntArray, minimum: int, preferred: BoolArray) -> IntArray:
    """Move as few images as possible so that each client has `minimum`, of its preferred classes if possible.

    There must be at least minimum * K images.
    """
    counts, client_sizes = counts.copy(), counts.sum(axis=0)
    for receiver in np.flatnonzero(client_sizes < minimum):
        while client_sizes[receiver] < minimum:
            c, donor = _largest_source(counts, client_sizes - minimum, preferred[:, receiver])
            moved = min(minimum - client_sizes[receiver], client_sizes[donor] - minimum, counts[c, donor])
            counts[c, donor] -= moved
            counts[c, receiver] += moved
            client_sizes[donor] -= moved
            client_sizes[receiver] += moved
    return counts


def _largest_source(counts: IntArray, spare: IntArray, preferred: BoolArray) -> tuple[int, int]:
    """Return the class and the client to take images from: the most frequent class of the client with most to spare.

    Only the preferred classes count, unless no client can spare any of them.
    """
    can_give = np.where(preferred[:, None] & (spare > 0), counts, 0).max(axis=0) > 0
    if not can_give.any():
        return _largest_source(counts, spare, np.ones_like(preferred))
    donor = int(np.where(can_give, spare, 0).argmax())
    return int(np.where(preferred, counts[:, donor], 0).argmax()), donor


def _assign_classes(
    present: IntArray, classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> BoolArray:
    """Return whether each class is assigned to each client, (C, K).

    Clients take classes from a shuffled list in turn. If fewer classes are left than a client needs, it takes these and
    continues with a new shuffled list, at whose end they are put, so that no client gets a class twice.
    """
    per_client = min(per_client, len(present))
    ends = np.arange(clients + 1) * len(present) // clients  # of an even split, which gives every class one client
    class_counts = np.full(clients, per_client) if per_client * clients >= len(present) else np.diff(ends)
    assigned = np.zeros((classes, clients), np.bool_)
    remaining = rng.permutation(present)
    for client, count in enumerate(class_counts):
        if len(remaining) < count:
            shuffled = rng.permutation(present)
            is_left = np.isin(shuffled, remaining)
            remaining = np.concatenate([remaining, shuffled[~is_left], shuffled[is_left]])
        assigned[remaining[:count], client] = True
        remaining = remaining[count:]
    return assigned


def _shards(shares: FloatArray, assigned: BoolArray, sizes: IntArray) -> IntArray:
    """Return the number of images of each class at each client, (C, K): one each if enough, the rest by shares."""
    enough = sizes >= assigned.sum(axis=1)
    one_each = (assigned & enough[:, None]).astype(np.int64)
    counts = one_each + _apportion(shares, sizes - one_each.sum(axis=1))
    return _move_to_small_clients(counts, min(1, int(sizes.sum()) // assigned.shape[1]), preferred=assigned)


def _draw_images(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> tuple[IntArray, ...]:
    """Draw the images of each client, given the number of each class at each client, (C, K)."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    client = np.empty(len(labels), np.int64)
    client[by_class] = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return _indices_by_client(client, counts.shape[1])


def _indices_by_client(client: IntArray, clients: int) -> tuple[IntArray, ...]:
    """Return the sorted indices of each client's images, from the client of each image, (n,)."""
    ends = np.bincount(client, minlength=clients).cumsum()
    return tuple(np.split(np.argsort(client, kind="stable"), ends[:-1]))


def _class_sizes(labels: IntArray, classes: int) -> IntArray:
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, not {labels.min()} to {labels.max()}")
    return np.bincount(labels, minlength=classes)


def _require_clients(clients: int) -> None:
    if clients < 1:
        raise ValueError(f"a split needs at least one client, not {clients}")
