"""Step 5, on the server: average what the clients trained. And for pFedMoAP, whose prompts are most like one's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import FloatArray

NamedArrays = Mapping[str, NDArray[Any]]


def weighted_mean(parts: Sequence[NamedArrays], weights: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The mean of the clients' named arrays (Eq. 4): P = sum_k (m_k / sum m) P_k, in the arrays' own dtype.

    weights are the m_k, the number of images each client trained on; a client with m_k = 0 is left out.
    Float sums depend on the order of their terms, so the result depends on the order given, and on nothing
    else. When every m_k is 0 there is no mean: ValueError.
    """
    counted = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight != 0]
    if not counted or min(weights) < 0:
        raise ValueError("a weighted mean needs at least one positive weight and no negative one")
    _require_same_layout(parts)
    total = sum(weights)
    return {name: _mean([(part[name], weight / total) for part, weight in counted]) for name in parts[0]}


def _mean(arrays: list[tuple[NDArray[Any], float]]) -> NDArray[Any]:
    # Starts from the first term, not from 0: 0 + (-0.0) is 0.0, and one client would not average to itself.
    terms = (fraction * array.astype(np.float64) for array, fraction in arrays)
    return sum(terms, start=next(terms)).astype(arrays[0][0].dtype)


def _require_same_layout(parts: Sequence[NamedArrays]) -> None:
    """NumPy would stretch a small array to fit a large one, and the mean would be quietly wrong."""
    if any(_layout(part) != _layout(parts[0]) for part in parts):
        raise ValueError("arrays to average must have the same names, shapes and dtypes")


def _layout(part: NamedArrays) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype.str) for name, array in part.items()}


NamedPrompts = Mapping[str, NDArray[np.float32]]


def nearest(client: str, uploads: Mapping[str, NamedPrompts], count: int) -> list[str]:
    """The `count` other clients whose last prompts are nearest (L2) to this client's last one, nearest first.

    Nobody for a client that has not sent any prompt yet. On a tie, who comes first in `uploads`.
    """
    if client not in uploads:
        return []
    own = flattened(uploads[client])
    others = [other for other in uploads if other != client]
    distances = [float(np.linalg.norm(flattened(uploads[other]) - own)) for other in others]
    return [others[index] for index in np.argsort(distances, kind="stable")[:count]]


def flattened(prompts: NamedArrays) -> FloatArray:
    """All values in one row, the arrays in the order of their names."""
    return np.concatenate([np.ravel(prompts[name]).astype(np.float64) for name in sorted(prompts)])
