"""Balance, a cooperation of all sites: how far does the model itself lean towards some classes?

Over all sites together the classes have a mix t, equal shares unless something else is known. A model without a lean
predicts them as often. The bias b, one number per class and the same at every site, is moved until it does:

    every client   m_k[c] = sum_i softmax_c(log p_i + b + log t)
    everybody      b_c <- b_c - log((m_c / sum m) / t_c), then minus the mean of b, with m = sum_k m_k.

p_i e^b then is how likely image i is in each class, up to a factor of its own, whatever the mix where it comes from.
"""

import numpy as np

from . import FloatArray

LONGEST_STEP = 2.0  # of one class in one step: a class nobody predicts must not throw the others about
TOLERANCE = 0.05  # a class predicted this much more or less often than its share is balanced
LOWEST = -700.0  # of a log-probability: exp of it still is a number above 0, so that saturated classes can come back


def even_mix(classes: int) -> FloatArray:
    """t where nothing else is known: equal shares, (C,)."""
    return np.full(classes, 1 / classes)


def adapted(log_probs: FloatArray, bias: FloatArray, mix: FloatArray) -> FloatArray:
    """log p~_i = log softmax(log p_i + b + log mix), (n, C): what an image is where the classes have this mix.

    A class of probability 0 counts as one of exp(LOWEST), so there is an answer whatever was ruled out before.
    """
    with np.errstate(divide="ignore"):
        offset = bias + np.maximum(np.log(mix), LOWEST)
    return _log_softmax(np.maximum(log_probs, LOWEST) + offset)


def cooled(log_posteriors: FloatArray, sureness: float) -> FloatArray:
    """The same answers, less sure of themselves: log softmax(h log p~), (n, C)."""
    return _log_softmax(sureness * log_posteriors)


def _log_softmax(scores: FloatArray) -> FloatArray:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    normed: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normed


def predicted_mix(log_probs: FloatArray, bias: FloatArray, mix: FloatArray) -> FloatArray:
    """m_k, (C,): how many of a client's images the model takes for each class; of several clients a row each."""
    total: FloatArray = np.exp(adapted(log_probs, bias, mix)).sum(axis=-2)
    return total


def rebalanced(bias: FloatArray, predicted: FloatArray, mix: FloatArray) -> FloatArray:
    """The next b, from the sum of all clients' m_k and the mix t that they should have.

    With noise a sum may come out negative: like a class that nobody predicts, it is moved by the longest step.
    """
    if predicted.sum() <= 0:
        return bias  # no image, nothing to learn
    with np.errstate(divide="ignore"):
        step = np.log(np.maximum(predicted, 0.0) / predicted.sum()) - np.log(mix)
    moved = bias - np.clip(step, -LONGEST_STEP, LONGEST_STEP)
    centred: FloatArray = moved - moved.mean()
    return centred


def is_balanced(predicted: FloatArray, mix: FloatArray) -> bool:
    """Whether another step is not worth its exchange: every class is predicted as often as it should, give or take."""
    return bool((abs(predicted - predicted.sum() * mix) <= TOLERANCE * predicted.sum() * mix).all())
