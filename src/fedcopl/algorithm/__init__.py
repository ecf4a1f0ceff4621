"""The steps of the paper, one file each: NumPy in, NumPy out."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def softmax(scores: FloatArray) -> FloatArray:
    """Return the softmax of finite scores along the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    shares: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    return shares
