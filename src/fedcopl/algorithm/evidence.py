"""How far to believe text, prototypes and equal shares, decided by the images of all sites and by no label.

Sites differ in their mixes of classes. The better the posteriors, the better a mix found from some of a site's images
foretells its others (`SitePrior.evidence`). Once the posteriors are balanced, that is a true likelihood, namely of
p_k(x) / p(x) = sum_c pi_k(c) p~(c | x) / t_c, whose mean over all images is 1 whatever the posteriors: so its sum over
the sites can be compared between posteriors that are sharper or blunter, with or without prototypes, and between
mixes t. Where sites hardly differ it tells nothing (`is_telling`), and the usual value stays.

Each function here takes sums over the sites and may be called by anybody who knows them.
"""

import math

import numpy as np

from . import FloatArray, IntArray

SHARPNESSES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125)
"""Factors of the log-probabilities to try, from as they are to very blunt."""
TEMPERINGS = (0.0, 0.1, 0.2, 0.3)
"""tau to try, from no prototypes on."""
USUAL_TEMPERING = 0.3
FEWEST_PER_CLASS = 6  # images at all sites together, below which there are no prototypes: their evidence flatters them
LEAST_EVIDENCE, LEAST_PER_IMAGE = 10.0, 0.05  # nats, below which evidence tells nothing
CAUTION = 0.05  # share of an evidence of one nat per image that is given up for blunter posteriors
WORTHWHILE = 0.05  # share of the evidence that a larger tau has to add
UNEVEN, LEAST_UNEVEN = 0.03, 5.0  # share and nats that the model's own mix has to add to the evidence of equal shares
CLUSTERS_ERR = 0.15  # total variation between the mix of clusters and the true one; seen up to 0.12 in even worlds
TINY = 1e-300  # what a sum of nothing is divided by
FEWEST = 0.01  # of an equal share, that every class keeps in the mix of all sites
GOOD_LABELS = 0.9  # expected share of right labels, below which training on them does more harm than good


def is_telling(evidence: float, images: float) -> bool:
    """Whether the sites differ enough for their evidence to decide anything."""
    return evidence >= max(LEAST_EVIDENCE, LEAST_PER_IMAGE * images)


def choose_sharpness(evidence: FloatArray, images: float) -> float | None:
    """The bluntest of SHARPNESSES that explains the sites almost as well as the best; None: nothing can be told.

    Almost: less by 5 % where the evidence is a nat per image or more, and in proportion by less where it is less.
    Posteriors that helped to find what they are judged by are flattered, the sharper the more.
    """
    best = float(evidence.max())
    if not is_telling(best, images):
        return None
    enough = best * (1 - CAUTION * min(1.0, best / images))
    return SHARPNESSES[int(np.flatnonzero(evidence >= enough)[-1])]


def choose_tempering(evidence: FloatArray, images: float) -> float:
    """tau, from the evidence with each of TEMPERINGS: larger as long as each step brings something worthwhile."""
    if not is_telling(float(evidence.max()), images):
        return USUAL_TEMPERING
    step = 0
    while step + 1 < len(TEMPERINGS) and evidence[step + 1] >= (1 + WORTHWHILE) * evidence[step]:
        step += 1
    return TEMPERINGS[step]


def is_uneven(even: float, own: float, images: float) -> bool:
    """Whether the classes are not equally common over all sites.

    even and own are the evidence with t of equal shares, and with t the mix that the model predicts unasked.
    """
    return is_telling(own, images) and own >= max((1 + UNEVEN) * even, even + LEAST_UNEVEN)


def is_far_from_even(mix: FloatArray, images: float) -> bool:
    """Whether a mix found by how the images cluster differs from equal shares by more than chance and its own errors.

    Total variation; what chance brings of it with n images of C classes is sqrt(C / (2 pi n)) on average.
    """
    distance = float(abs(mix - 1 / len(mix)).sum() / 2)
    return distance > math.hypot(CLUSTERS_ERR, math.sqrt(len(mix) / (2 * math.pi * images)))


def common_mix(held: FloatArray) -> FloatArray:
    """t from what all sites hold of each class, sum_k n_k pi_k or sum_k m_k, (C,); no class is without a share."""
    held = np.maximum(held, 0.0)  # noise may bring a sum below 0
    shares = np.maximum(held / max(held.sum(), TINY), FEWEST / len(held))
    mix: FloatArray = shares / shares.sum()
    return mix


def half_way(predicted: FloatArray) -> FloatArray:
    """t between equal shares and what the model predicts unasked, (C,): their geometric mean.

    For where nothing says whether classes are predicted more often because they are more common or because the model
    leans towards them: then each is believed half, and neither world is missed by more than half of it.

    >>> half_way(np.array([0.8, 0.2]))
    array([0.66666667, 0.33333333])
    """
    return common_mix(np.sqrt(predicted))


def choose_sureness(confidence: FloatArray, agreement: float) -> float:
    """Of SHARPNESSES the sharpest that is no surer than two opinions agree; for where the sites tell nothing.

    confidence is the mean over all images of the likeliest class's probability, for each of SHARPNESSES;
    agreement is the share of images of which text alone and prototypes alone, made without the image, say the same.
    """
    fitting = np.flatnonzero(confidence <= agreement)
    return SHARPNESSES[int(fitting[0])] if len(fitting) else SHARPNESSES[-1]


def expected_right(log_posteriors: FloatArray, chosen: IntArray, label: IntArray) -> float:
    """How many of a client's chosen pseudo labels are right, by the calibrated posteriors themselves."""
    return float(np.exp(log_posteriors[chosen, label]).sum())


def is_worth_training(right: float, chosen: float) -> bool:
    """Whether labels are good enough to train on, from the sums of `expected_right` and of how many were chosen."""
    return chosen > 0 and right >= GOOD_LABELS * chosen
