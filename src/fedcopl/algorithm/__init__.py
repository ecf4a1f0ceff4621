"""The algorithm: NumPy arrays in, NumPy arrays out; one file per step of the paper."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
