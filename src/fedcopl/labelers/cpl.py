"""CPL, sets of candidate labels (Zhang et al., ICML 2024).

Each image gets a set of candidate classes, and images are matched to classes. The loss of an image is on its whole set;
the matching only limits the number of images of each class.
"""

from collections.abc import Mapping

import numpy as np

from ..algorithm import BoolArray, FloatArray, IntArray, softmax
from ..algorithm.select import Selection, rank_in_group
from ..config import RunConfig
from .base import PerClassLabeler, exact_quantile

CPL_LEVELS: Mapping[str, tuple[float, float]] = {
    "dtd": (0.75, 0.95),
    "resisc45": (0.90, 0.97),
    "cub200": (0.75, 0.99),
    "ucf101": (0.45, 1 - 0.5 / 101),
    "cifar100": (0.90, 1 - 0.75 / 100),
    "cifar10": (0.75, 0.80),  # published for EuroSAT, which also has ten classes
}
"""The published quantile levels alpha and beta of CPL for each data set."""
CPL_USUAL = (0.60, 0.90)  # for other data sets


class CPL(PerClassLabeler):
    """Selects images with sets of candidate classes, with the same limit for every class."""

    title = "CPL"
    summary = "each client trains on its own images with a set of candidate labels for each"

    @property
    def loss(self) -> str:
        return self.config.labels.cpl_loss

    def select(self, log_probs: FloatArray, quota: IntArray) -> Selection:
        """Return the matched images with their candidate sets or soft targets."""
        labels, among = self.config.labels, self.eligible_images(log_probs)
        levels, capacity, keep_likeliest = _cpl_levels(self.config), int(quota[0]), labels.cpl_keep_likeliest
        selection = select_candidates(log_probs, *levels, capacity, keep_likeliest=keep_likeliest, among=among)
        return _with_soft_targets(log_probs, selection) if labels.cpl_targets == "soft" else selection


def _cpl_levels(config: RunConfig) -> tuple[float, float]:
    """Return alpha and beta: as set, else as published for this data set, else the usual levels."""
    alpha, beta = CPL_LEVELS.get(config.data.source, CPL_USUAL)
    labels = config.labels
    alpha = alpha if labels.cpl_alpha == "auto" else labels.cpl_alpha
    return alpha, beta if labels.cpl_beta == "auto" else labels.cpl_beta


def select_candidates(
    log_probs: FloatArray,
    alpha: float,
    beta: float,
    capacity: int,
    *,
    keep_likeliest: bool = False,
    among: IntArray | None = None,
) -> Selection:
    """Return the images to train on with their candidate sets.

    Args:
        log_probs: log p in float64, (n, C).
        alpha: Quantile level within an image.
        beta: Quantile level within a class.
        capacity: The maximum number of images per class.
        keep_likeliest: Whether the most probable class is always a candidate.
        among: The indices of the images that may be selected; None: all. Quantiles are always over all images.
    """
    sets = candidate_sets(log_probs, alpha, beta, keep_likeliest=keep_likeliest)
    if among is None:
        return match(log_probs, sets, capacity)
    chosen = match(log_probs[among], sets[among], capacity)
    return chosen._replace(index=among[chosen.index])


def candidate_sets(log_probs: FloatArray, alpha: float, beta: float, *, keep_likeliest: bool = False) -> BoolArray:
    """Return the candidate classes of each image, (n, C): those that pass both quantile filters.

    The first filter keeps an image's most probable classes up to a cumulative probability set by alpha. The second
    keeps, for each class, the images at or above the beta quantile of their probabilities for it, so it rejects images
    of classes with more than a share 1 - beta of all images. Without `keep_likeliest` an image may have no candidate.
    A quantile is often equal to one of the compared probabilities: probabilities are computed once in float64, and
    then `exact_quantile` returns it unchanged.
    """
    if len(log_probs) == 0:
        return np.zeros(log_probs.shape, np.bool_)  # no image, no quantile
    probs = np.exp(np.asarray(log_probs, np.float64))
    sets: BoolArray = _likely_for_the_image(probs, alpha) & (probs >= exact_quantile(probs, beta))
    if keep_likeliest:
        sets[np.arange(len(sets)), log_probs.argmax(axis=1)] = True
    return sets


def _with_soft_targets(log_probs: FloatArray, selection: Selection) -> Selection:
    """Return the selection with soft targets: the normalised probabilities of the candidates, and 0 elsewhere."""
    if selection.candidates is None:
        return selection
    scores = np.where(selection.candidates, log_probs[selection.index], -np.inf)
    return selection._replace(candidates=softmax(scores))  # a selected image has at least one candidate


def match(log_probs: FloatArray, candidates: BoolArray, capacity: int) -> Selection:
    """Match each image to at most one of its candidate classes, and at most `capacity` (K) images to a class.

    Deferred acceptance (Gale and Shapley): images propose to their candidates, most probable first (ties: lower class).
    A class keeps the K proposals of highest probability; a rejected image proposes to its next candidate, and is left
    out if there is none. Ties go to the image that proposed in an earlier step, then to the lower index. The result is
    stable: no image and class prefer each other to their matches. It is sorted by class, then by descending
    probability, and each image keeps its whole candidate set.
    """
    preferences = np.lexsort((-log_probs, ~candidates))  # of each image: candidates by probability, other classes last
    candidate_counts, rejections, proposal_step = candidates.sum(axis=1), *np.zeros((2, len(candidates)), np.int64)
    while True:
        proposing = np.flatnonzero(rejections < candidate_counts)
        proposed = preferences[proposing, rejections[proposing]]
        # Stable, so that the lower index comes first in a tie.
        order = np.lexsort((proposal_step[proposing], -log_probs[proposing, proposed], proposed))
        proposing, proposed = proposing[order], proposed[order]
        rejected = proposing[rank_in_group(proposed) >= capacity]
        if len(rejected) == 0:
            return Selection(proposing, proposed, candidates[proposing])
        rejections[rejected] += 1
        proposal_step[rejected] = proposal_step.max() + 1


def _likely_for_the_image(probs: FloatArray, alpha: float) -> BoolArray:
    """Return the intra-instance sets: the most probable classes up to the one whose cumulative sum first exceeds tau.

    tau is the quantile alpha of the images' highest probabilities; for alpha = 0, their mean.
    """
    highest = probs.max(axis=1)
    tau = float(highest.mean() if alpha == 0 else exact_quantile(highest, alpha))
    ranking = np.argsort(-probs, axis=1, kind="stable")
    ranked = np.take_along_axis(probs, ranking, axis=1)
    sum_before = np.cumsum(ranked, axis=1)[:, :-1]
    kept = np.ones(probs.shape, np.bool_)  # with the most probable class in any case
    np.put_along_axis(kept, ranking[:, 1:], sum_before <= tau, axis=1)
    return kept
