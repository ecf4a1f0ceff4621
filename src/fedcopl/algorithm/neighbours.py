"""pFedMoAP, on the server: whose prompts are most like a client's own."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from . import FloatArray

NamedPrompts = Mapping[str, NDArray[np.float32]]


def nearest(client: str, uploads: Mapping[str, NamedPrompts], count: int) -> list[str]:
    """The `count` other clients whose last prompts are nearest (L2) to this client's last one, nearest first.

    Nobody for a client that has not sent any prompt yet. On a tie, who comes first in `uploads`.
    """
    if client not in uploads:
        return []
    own = _flat(uploads[client])
    others = [other for other in uploads if other != client]
    distances = [float(np.linalg.norm(_flat(uploads[other]) - own)) for other in others]
    return [others[place] for place in np.argsort(distances, kind="stable")[:count]]


def _flat(prompts: NamedPrompts) -> FloatArray:
    return np.concatenate([np.ravel(prompts[name]).astype(np.float64) for name in sorted(prompts)])
