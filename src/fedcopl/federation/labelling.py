"""Which of its images a client labels and trains on, by the labeler of the settings."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..algorithm.allocate import quota
from ..algorithm.estimate import estimate
from ..algorithm.fpl_and_cpl import grown_capacity, select_candidates, select_top, sure_images, with_soft_targets
from ..algorithm.select import Selection, select
from ..config import RunConfig
from ..messages import Select

CPL_LEVELS: Mapping[str, tuple[float, float]] = {
    "dtd": (0.75, 0.95),
    "resisc45": (0.90, 0.97),
    "cub200": (0.75, 0.99),
    "ucf101": (0.45, 1 - 0.5 / 101),
    "cifar100": (0.90, 1 - 0.75 / 100),
    "cifar10": (0.75, 0.80),  # borrowed from EuroSAT, the other set of ten classes
}
"""CPL's quantile levels alpha and beta for each data set, where its authors published them."""
CPL_USUAL = (0.60, 0.90)


def count_sure(log_probs: NDArray[np.float64], config: RunConfig) -> NDArray[np.int64]:
    """u_k: how many images of each class pass the filters that are switched on. FPL and CPL have no filters."""
    labels, filters = config.labels, config.labeler == "copl"
    return estimate(
        log_probs,
        confidence_quantile=labels.confidence_quantile if filters and labels.confidence_filter else None,
        entropy_quantile=labels.entropy_quantile if filters and labels.entropy_filter else None,
    )


def allowed_counts(counts: NDArray[np.int64], images: int, ask: Select, config: RunConfig) -> NDArray[np.int64]:
    """How many images of each class this client may take.

    CoPL: its row of the allocation, worked out from the sums alone, or its own counts if nothing is shared out.
    FPL and CPL: the same capacity for every class.
    """
    labels = config.labels
    if config.labeler != "copl":
        grown = grown_capacity(ask.refresh, images, len(counts), refresh_count(config))
        return np.full_like(counts, grown if labels.capacity == "grow" else labels.per_class)
    if ask.totals is None:
        return counts
    return quota(counts, ask.totals, ask.clients, refresh_index=ask.refresh, budget=labels.budget, unseen=labels.unseen)


def refresh_count(config: RunConfig) -> int:
    return -(-config.rounds // config.labels.refresh_every)


def choose(log_probs: NDArray[np.float64], allowed: NDArray[np.int64], config: RunConfig) -> Selection:
    """The images to train on with their pseudo labels, by the labeler's rule."""
    labels = config.labels
    among = sure_images(log_probs, labels.confidence_quantile) if labels.among == "sure" else None
    match config.labeler:
        case "copl":
            return select(log_probs, allowed, labels.candidates)
        case "fpl":
            return select_top(log_probs, int(allowed[0]), labels.fpl_rule, among=among)
        case "cpl":
            levels, likeliest = cpl_levels(config), labels.cpl_keep_likeliest
            sets = select_candidates(log_probs, *levels, int(allowed[0]), keep_likeliest=likeliest, among=among)
            return with_soft_targets(log_probs, sets) if labels.cpl_targets == "soft" else sets


def cpl_levels(config: RunConfig) -> tuple[float, float]:
    """CPL's alpha and beta: as set, else its authors' for this data set, else their usual ones."""
    alpha, beta = CPL_LEVELS.get(config.data.source, CPL_USUAL)
    labels = config.labels
    return (
        alpha if labels.cpl_alpha == "auto" else labels.cpl_alpha,
        beta if labels.cpl_beta == "auto" else labels.cpl_beta,
    )
