"""Step 1, on the client: how many images of each class am I sure of?"""

import numpy as np

from . import BoolArray, FloatArray, IntArray


def estimate(log_probs: FloatArray, *, confidence_quantile: float | None, entropy_quantile: float | None) -> IntArray:
    """Count the sure images by predicted class: u_k[c], shape (C,). The arguments are those of `sure`."""
    kept = sure(log_probs, confidence_quantile=confidence_quantile, entropy_quantile=entropy_quantile)
    predicted = log_probs[kept].argmax(axis=1)
    return np.bincount(predicted, minlength=log_probs.shape[1]).astype(np.int64)


def sure(log_probs: FloatArray, *, confidence_quantile: float | None, entropy_quantile: float | None) -> BoolArray:
    """Which images are both confident and of low entropy (Eq. 2, the set D_k^est), as a mask of shape (n,).

    log_probs is (n, C), the float64 log-softmax of every image, without NaN.
    An image is kept when its confidence is above the quantile q1 of this client's confidences
    and its entropy is below the quantile 1 - q2 of its entropies. A level of None switches that filter off.

    A client that holds an image is always sure of one: when the strict comparisons keep nothing (ties),
    equality is let in; when no image passes both filters even so, the most confident image is kept alone
    (the lower index on a tie).
    """
    if len(log_probs) == 0:
        return np.zeros(0, dtype=np.bool_)  # no image, no quantile
    conf, ent = _confidence(log_probs), _entropy(log_probs)
    lowest = -np.inf if confidence_quantile is None else np.quantile(conf, confidence_quantile)
    highest = np.inf if entropy_quantile is None else np.quantile(ent, 1 - entropy_quantile)
    for kept in ((conf > lowest) & (ent < highest), (conf >= lowest) & (ent <= highest)):
        if kept.any():
            return kept
    # Log-probabilities still tell apart what the rounded probabilities call equal.
    most_confident: BoolArray = np.arange(len(log_probs)) == log_probs.max(axis=1).argmax()
    return most_confident


def _confidence(log_probs: FloatArray) -> FloatArray:
    """The probability of the likeliest class: max_c p_c, shape (n,)."""
    conf: FloatArray = np.exp(log_probs.max(axis=1))
    return conf


def _entropy(log_probs: FloatArray) -> FloatArray:
    """Shannon entropy in nats: -sum_c p_c log p_c, shape (n,)."""
    probs = np.exp(log_probs)
    finite_logs = np.where(probs > 0, log_probs, 0.0)  # 0 log 0 = 0
    ent: FloatArray = -(probs * finite_logs).sum(axis=1)
    return ent
