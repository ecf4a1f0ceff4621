"""Step 1, on the client: count the confident images of each class."""

import numpy as np

from . import BoolArray, FloatArray, IntArray


def estimate(log_probs: FloatArray, *, confidence_quantile: float | None, entropy_quantile: float | None) -> IntArray:
    """Count the confident images by predicted class: u_k[c], (C,) (Eq. 2).

    Args:
        log_probs: The float64 log-softmax of every image, (n, C), without NaN.
        confidence_quantile: q_1. The confidence must be above the quantile q_1 of the client's images; None: no filter.
        entropy_quantile: q_2. The entropy must be below the quantile 1 - q_2 of the client's images; None: no filter.
    """
    kept = _confident(log_probs, confidence_quantile=confidence_quantile, entropy_quantile=entropy_quantile)
    predicted = log_probs[kept].argmax(axis=1)
    return np.bincount(predicted, minlength=log_probs.shape[1]).astype(np.int64)


def _confident(
    log_probs: FloatArray, *, confidence_quantile: float | None, entropy_quantile: float | None
) -> BoolArray:
    """Return whether each image is confident and of low entropy, (n,): the set D_k^est of Eq. 2.

    At least one image is kept: if no image passes the strict comparisons (ties), equality suffices; if none passes
    these, the most confident image is kept (ties: the lower index).
    """
    if len(log_probs) == 0:
        return np.zeros(0, dtype=np.bool_)  # a quantile of no images does not exist
    conf: FloatArray = np.exp(log_probs.max(axis=1))  # max_c p_c
    ent = _entropy(log_probs)
    lowest = -np.inf if confidence_quantile is None else np.quantile(conf, confidence_quantile)
    highest = np.inf if entropy_quantile is None else np.quantile(ent, 1 - entropy_quantile)
    for kept in ((conf > lowest) & (ent < highest), (conf >= lowest) & (ent <= highest)):
        if kept.any():
            return kept
    # By log-probabilities, which differ even if probabilities round to the same number.
    most_confident: BoolArray = np.arange(len(log_probs)) == log_probs.max(axis=1).argmax()
    return most_confident


def _entropy(log_probs: FloatArray) -> FloatArray:
    """Return the Shannon entropy in nats: -sum_c p_c log p_c, (n,)."""
    probs = np.exp(log_probs)
    finite_logs = np.where(probs > 0, log_probs, 0.0)  # 0 log 0 = 0
    ent: FloatArray = -(probs * finite_logs).sum(axis=1)
    return ent
