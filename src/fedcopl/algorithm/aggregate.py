"""Step 5, on the server: average the clients' arrays; for pFedMoAP, find the clients with the nearest prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import FloatArray

NamedArrays = Mapping[str, NDArray[Any]]


def weighted_mean(parts: Sequence[NamedArrays], weights: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return the mean of the clients' named arrays (Eq. 4): P = sum_k (m_k / sum m) P_k, in their dtype.

    The last bits depend on the order of the clients, as with any float sum.

    Args:
        parts: The arrays of each client.
        weights: m_k, the number of images that each client trained on; clients with m_k = 0 are left out.

    Raises:
        ValueError: Every m_k is 0, or one is negative, or the arrays differ in names, shapes or dtypes.
    """
    counted = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight != 0]
    if not counted or min(weights) < 0:
        raise ValueError("a weighted mean needs at least one positive weight and no negative one")
    # Without this check NumPy would broadcast a smaller array, and the mean would be wrong without an error.
    layouts = [{name: (array.shape, array.dtype.str) for name, array in part.items()} for part in parts]
    if any(layout != layouts[0] for layout in layouts):
        raise ValueError("arrays to average must have the same names, shapes and dtypes")
    total = sum(weights)
    return {name: _weighted_sum([(part[name], weight / total) for part, weight in counted]) for name in parts[0]}


def _weighted_sum(arrays: list[tuple[NDArray[Any], float]]) -> NDArray[Any]:
    # The sum starts from the first term, not from 0: 0 + (-0.0) is 0.0, so a single client's bits would change.
    terms = (fraction * array.astype(np.float64) for array, fraction in arrays)
    return sum(terms, start=next(terms)).astype(arrays[0][0].dtype)


def nearest(client: str, uploads: Mapping[str, NamedArrays], count: int) -> list[str]:
    """Return the `count` other clients with the nearest prompts by L2 distance, nearest first.

    A client that has not sent prompts yet gets an empty list. Ties go to the first in `uploads`.
    """
    if client not in uploads:
        return []
    prompts = flattened(uploads[client])
    others = [other for other in uploads if other != client]
    distances = [float(np.linalg.norm(flattened(uploads[other]) - prompts)) for other in others]
    return [others[index] for index in np.argsort(distances, kind="stable")[:count]]


def flattened(prompts: NamedArrays) -> FloatArray:
    """Return the values of all arrays, sorted by name, as one float64 vector."""
    return np.concatenate([np.ravel(prompts[name]).astype(np.float64) for name in sorted(prompts)])
