"""All that crosses between server and client. What is not here never leaves a client.

`docs/what-leaves-a-client.md` explains every field of the replies; a test holds this list to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shared = Mapping[str, NDArray[np.float32]]
"""Named prompts that the server averages: for FedCoPL `visual` and nothing else."""


@dataclass(frozen=True)
class Estimate:
    """Label all your images anew and count, per class, those you are sure of."""

    round: int
    shared: Shared


@dataclass(frozen=True)
class Estimated:
    counts: NDArray[np.int64] | None  # u_k, one number per class; None when pseudo labels are not shared out


@dataclass(frozen=True)
class Select:
    """Choose your training images, from the sums over all clients."""

    round: int
    refresh: int  # how many refreshes came before this one
    totals: NDArray[np.int64] | None  # T_c, the sum of all clients' counts; None: each by its own counts
    clients: int  # K, how many clients the totals are summed over


@dataclass(frozen=True)
class Selected:
    examples: int  # how many images were chosen


@dataclass(frozen=True)
class Train:
    """Train for some epochs, starting from these prompts."""

    round: int
    shared: Shared
    experts: tuple[
        Shared, ...
    ] = ()  # other clients' last prompts, nearest first; only for methods that learn from them


@dataclass(frozen=True)
class Trained:
    shared: Shared
    examples: int  # how many images were trained on: the weight in the average
    loss: float  # mean over the last epoch; nan when there was nothing to train on


@dataclass(frozen=True)
class Evaluate:
    """Count how many of your own labelled test images are right. `shared` None: by plain zero-shot CLIP."""

    round: int
    shared: Shared | None


@dataclass(frozen=True)
class Evaluated:
    correct: int
    examples: int  # 0 at a site that has no labels


Ask = Estimate | Select | Train | Evaluate
Reply = Estimated | Selected | Trained | Evaluated
REPLY_TO: Mapping[type, type] = {Estimate: Estimated, Select: Selected, Train: Trained, Evaluate: Evaluated}


def payload_bytes(message: Ask | Reply) -> int:
    """The bytes of what a message says: its arrays, and eight for each number."""
    return sum(_bytes_of(getattr(message, field.name)) for field in fields(message))


def _bytes_of(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, Mapping):
        return sum(array.nbytes for array in value.values())
    if isinstance(value, tuple):
        return sum(_bytes_of(one) for one in value)
    return value.nbytes if isinstance(value, np.ndarray) else 8
