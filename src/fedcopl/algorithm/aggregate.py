"""Step 5, on the server: average what the clients trained; for pFedMoAP, find the clients with similar prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import FloatArray

NamedArrays = Mapping[str, NDArray[Any]]


def weighted_mean(parts: Sequence[NamedArrays], weights: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return the mean of the clients' named arrays (Eq. 4): P = sum_k (m_k / sum m) P_k, in the arrays' own dtype.

    Float sums depend on the order of their terms, so the result depends on the order of the clients.

    Args:
        parts: The arrays of each client.
        weights: m_k, the number of images each client trained on; a client with m_k = 0 is left out.

    Raises:
        ValueError: Every m_k is 0, or one is negative, or the arrays differ in names, shapes or dtypes.
    """
    counted = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight != 0]
    if not counted or min(weights) < 0:
        raise ValueError("a weighted mean needs at least one positive weight and no negative one")
    # NumPy would broadcast a small array to fit a large one, and the mean would be wrong without an error.
    layouts = [{name: (array.shape, array.dtype.str) for name, array in part.items()} for part in parts]
    if any(layout != layouts[0] for layout in layouts):
        raise ValueError("arrays to average must have the same names, shapes and dtypes")
    total = sum(weights)
    return {name: _mean([(part[name], weight / total) for part, weight in counted]) for name in parts[0]}


def _mean(arrays: list[tuple[NDArray[Any], float]]) -> NDArray[Any]:
    # Starts from the first term, not from 0: 0 + (-0.0) is 0.0, and one client would not average to itself.
    terms = (fraction * array.astype(np.float64) for array, fraction in arrays)
    return sum(terms, start=next(terms)).astype(arrays[0][0].dtype)


def nearest(client: str, uploads: Mapping[str, NamedArrays], count: int) -> list[str]:
    """Return the `count` other clients whose last prompts are nearest (L2) to this client's, nearest first.

    None for a client that has not sent prompts yet. Ties go to the client that comes first in `uploads`.
    """
    if client not in uploads:
        return []
    own = flattened(uploads[client])
    others = [other for other in uploads if other != client]
    distances = [float(np.linalg.norm(flattened(uploads[other]) - own)) for other in others]
    return [others[index] for index in np.argsort(distances, kind="stable")[:count]]


def flattened(prompts: NamedArrays) -> FloatArray:
    """Return all values in one row, the arrays sorted by name."""
    return np.concatenate([np.ravel(prompts[name]).astype(np.float64) for name in sorted(prompts)])
