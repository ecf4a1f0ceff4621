"""The learning rate of local training."""

import math


def cosine(highest: float, done: int, period: int) -> float:
    """eta * (1 + cos(pi e / period)) / 2: from `highest` at e = 0 towards 0 at e = period."""
    return highest * (1 + math.cos(math.pi * done / period)) / 2
