"""The labellings that FedCoPL is compared with, on the client.

FPL: the surest images of each class become its training data, in the three readings of that. Menghini et al. (NeurIPS
2023); UPL (Huang et al., 2022) is the rule "argmax" without a refresh.
CPL: each image gets a set of candidate classes, and the classes share out the images. Zhang et al. (ICML 2024); an
image trains with its whole set, the class it was given to only limits how many do.
"""

import math
from typing import Literal

import numpy as np

from . import BoolArray, FloatArray, IntArray
from .select import Selection, rank_in_group, select

Rule = Literal["argmax", "column", "leaderboard"]
Ranked = tuple[float, int]  # score, image: they sort by score, and on a tie by image


def sure_images(log_probs: FloatArray, level: float) -> IntArray:
    """The images whose highest probability reaches the quantile `level` of the client's, by index: never none of some.

    Where a client holds few classes, the few images that are predicted as any other class are wrong, and a rule that
    takes the surest of *each* class takes them all. Most of them are unsure: they go first.
    """
    highest = log_probs.max(axis=1, initial=-np.inf)
    return np.flatnonzero(highest >= _quantile(highest, level)) if len(highest) else np.zeros(0, np.int64)


def select_top(
    log_probs: FloatArray, per_class: int, rule: Rule = "argmax", *, among: IntArray | None = None
) -> Selection:
    """At most per_class (K) images for each class, by class and then surest first; only `among` these, if given.

    log_probs is (n, C), the float64 log-softmax: where probabilities round to 1, their logarithms still rank.
    argmax       the K surest of the images predicted as that class: one label per image (ties: lower index).
    column       the K surest of all images: min(K, n) for every class, so an image may have several labels
                 (ties: lower index).
    leaderboard  the authors' program, which depends on the order of the images; see `_leaderboards`.
    """
    if per_class < 1:
        raise ValueError(f"a class must be allowed at least one image, not {per_class}")
    choose = {"argmax": _argmax, "column": _column, "leaderboard": _leaderboards}[rule]
    if among is None:
        return choose(log_probs, per_class)
    chosen = choose(log_probs[among], per_class)
    return chosen._replace(index=among[chosen.index])


def grown_capacity(refresh_index: int, images: int, classes: int, refreshes: int = 4) -> int:
    """GRIP's growing K: at refresh q, an even share of the first q + 1 parts of the images, at least 1.

    K_q = max(1, floor((q + 1) floor(n / refreshes) / C)), about n / C at the last refresh.
    """
    return max(1, (refresh_index + 1) * (images // refreshes) // classes)


def _argmax(log_probs: FloatArray, per_class: int) -> Selection:
    return select(log_probs, np.full(log_probs.shape[1], per_class))


def _column(log_probs: FloatArray, per_class: int) -> Selection:
    best = np.argsort(-log_probs, axis=0, kind="stable")[:per_class]
    return Selection(best.T.ravel(), np.repeat(np.arange(log_probs.shape[1]), len(best)))


def _leaderboards(log_probs: FloatArray, per_class: int) -> Selection:
    """Each image in turn goes to the board of its predicted class; if that has no place for it, to all others.

    A board takes an image at its end while there is room, and afterwards when its last entry scores less: then it
    is sorted, and its lowest entry is dropped for good. Before the first sorting the last entry need not be the
    lowest, so the K surest may be missed, as in the authors' program; one image may stand on several boards.
    Equal scores never displace; where a board is sorted, they stand by larger index first (the
    authors': larger file path).
    """
    boards: list[list[Ranked]] = [[] for _ in range(log_probs.shape[1])]
    # The score to beat on each board: that of its last entry, and nothing while there is room.
    bar = np.full(len(boards), np.nan)
    for image, scores in enumerate(log_probs):
        best = int(scores.argmax())
        beaten = ~(scores <= bar)  # also where bar is nan
        for c in [best] if beaten[best] else np.flatnonzero(beaten):
            bar[c] = _admit(boards[c], (float(scores[c]), image), per_class)
    index = [image for board in boards for _, image in sorted(board, reverse=True)]
    label = np.repeat(np.arange(len(boards)), [len(board) for board in boards])
    return Selection(np.array(index, np.int64), label)


def _admit(board: list[Ranked], entry: Ranked, capacity: int) -> float:
    """Put the entry on the board, and return the score that the next one has to beat (nan: none)."""
    full = len(board) == capacity
    board.append(entry)
    if full:
        board.sort(reverse=True)
        board.pop()
    return board[-1][0] if len(board) == capacity else np.nan


def select_candidates(
    log_probs: FloatArray,
    alpha: float,
    beta: float,
    capacity: int,
    *,
    keep_likeliest: bool = False,
    among: IntArray | None = None,
) -> Selection:
    """The images to train on with their candidate sets: `candidate_sets`, then `match`, only `among` these if given."""
    sets = candidate_sets(log_probs, alpha, beta, keep_likeliest=keep_likeliest)
    if among is None:
        return match(log_probs, sets, capacity)
    chosen = match(log_probs[among], sets[among], capacity)
    return chosen._replace(index=among[chosen.index])


def candidate_sets(log_probs: FloatArray, alpha: float, beta: float, *, keep_likeliest: bool = False) -> BoolArray:
    """Which classes each image may have, (n, C): those both its own ranking and the class's ranking allow.

    log_probs is (n, C), the float64 log-softmax. A row may be left without any class, unless its likeliest is kept:
    a class that fills more than 1 - beta of a client's images would otherwise turn most of its own away.
    Both filters compare probabilities with a quantile of probabilities, which often is one of them: then the two
    must compare equal. So the probabilities are computed once, in float64, and `_quantile` returns them unrounded.
    """
    if len(log_probs) == 0:
        return np.zeros(log_probs.shape, np.bool_)  # no image, no quantile
    probs = np.exp(np.asarray(log_probs, np.float64))
    sets = _likely_for_the_image(probs, alpha) & _likely_for_the_class(probs, beta)
    if keep_likeliest:
        sets[np.arange(len(sets)), log_probs.argmax(axis=1)] = True
    return sets


def with_soft_targets(log_probs: FloatArray, selection: Selection) -> Selection:
    """The same images, each with the probabilities of its candidates, made to sum to 1, and 0 for all others."""
    if selection.candidates is None:
        return selection
    scores = np.where(selection.candidates, log_probs[selection.index], -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))  # a chosen image has at least one candidate
    return selection._replace(candidates=weights / weights.sum(axis=1, keepdims=True))


def match(log_probs: FloatArray, candidates: BoolArray, capacity: int) -> Selection:
    """Give each image to at most one of its candidate classes, and at most `capacity` (K) images to a class.

    Deferred acceptance: the images propose to their candidates, likeliest class first (ties: lower class). A class
    keeps the K proposals of highest probability; who is turned away, now or later, proposes to its next candidate,
    and is left out when there is none. On a tie the class keeps who came in an earlier round, then the lower index.
    The result is stable: no image and class would both rather have each other.
    The answer is by class and then surest first, each image with its whole candidate set.
    """
    wishes = np.lexsort((-log_probs, ~candidates))  # of each image: its candidates in order, then the other classes
    chances, refusals, since = candidates.sum(axis=1), *np.zeros((2, len(candidates)), np.int64)
    while True:
        hopeful = np.flatnonzero(refusals < chances)
        wish = wishes[hopeful, refusals[hopeful]]
        order = np.lexsort((since[hopeful], -log_probs[hopeful, wish], wish))  # stable, so the lower index wins a tie
        hopeful, wish = hopeful[order], wish[order]
        refused = hopeful[rank_in_group(wish) >= capacity]
        if len(refused) == 0:
            return Selection(hopeful, wish, candidates[hopeful])
        refusals[refused] += 1
        since[refused] = since.max() + 1


def _likely_for_the_image(probs: FloatArray, alpha: float) -> BoolArray:
    """The intra-instance sets: the likeliest classes, up to and with the one whose sum first exceeds tau.

    tau is the quantile alpha of the images' highest probabilities; for alpha = 0, their mean.
    """
    highest = probs.max(axis=1)
    tau = float(highest.mean() if alpha == 0 else _quantile(highest, alpha))
    ranking = np.argsort(-probs, axis=1, kind="stable")
    ranked = np.take_along_axis(probs, ranking, axis=1)
    sum_before = np.cumsum(ranked, axis=1)[:, :-1]
    kept = np.ones(probs.shape, np.bool_)  # the likeliest class always is
    np.put_along_axis(kept, ranking[:, 1:], sum_before <= tau, axis=1)
    return kept


def _likely_for_the_class(probs: FloatArray, beta: float) -> BoolArray:
    """The inter-instance sets: in each class, the images of at least the quantile beta of its column."""
    likely: BoolArray = probs >= _quantile(probs, beta)
    return likely


def _quantile(values: FloatArray, level: float) -> FloatArray:
    """The quantile along axis 0, with linear interpolation; exactly a value where it falls on one.

    The place level * (n - 1) of a decimal level may miss its whole number (0.07 * 100 = 7.000000000000001), and
    `np.quantile` would then return a little more than the value at that place.
    """
    position = level * (len(values) - 1)
    position = round(position) if math.isclose(position, round(position), rel_tol=1e-12) else position
    low, high = math.floor(position), math.ceil(position)
    ordered = np.sort(values, axis=0)
    between: FloatArray = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return between
