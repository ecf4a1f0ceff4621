"""All that crosses between server and client. What is not here never leaves a client.

`docs/privacy.md` explains every field of the replies; a test holds this list to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
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
    peers: tuple[str, ...] = ()  # with secure aggregation: whose counts are summed, and masked for each other


@dataclass(frozen=True)
class Estimated:
    counts: NDArray[np.int64] | None  # u_k, one number per class; None when pseudo labels are not shared out
    masked: NDArray[np.uint64] | None = None  # with secure aggregation: the counts under masks, and nothing else


@dataclass(frozen=True)
class Adapt:
    """Compute the sums of one step of the estimation of the priors.

    The server only adds up: a request carries totals, and every client computes from them what the step asks for. The
    request after the last step asks for nothing; it completes the estimation.
    """

    round: int
    step: int  # counted from 0: then the images are labelled by zero-shot CLIP
    totals: tuple[NDArray[np.float64], ...] = ()  # of the step before; of all steps for a client that missed them
    class_prior: NDArray[np.float64] | None = None  # over all sites, where the study knows it
    peers: tuple[str, ...] = ()  # with secure aggregation: whose sums are added up, and masked for each other
    weight: float = 1.0  # of this client's sums in the totals; below 1 if it has many times as many images as others


@dataclass(frozen=True)
class Adapted:
    sums: NDArray[np.float64] | None  # over all images of the site, see `docs/priors.md`; None after the last step
    masked: NDArray[np.uint64] | None = None  # with secure aggregation: the sums under masks, and nothing else
    refused: bool = False  # after the last step: the priors contradict its confident images; always False with privacy


@dataclass(frozen=True)
class Select:
    """Choose your training images, from the sums over all clients."""

    round: int
    refresh: int  # how many refreshes came before this one
    totals: NDArray[np.int64] | None  # T_c, the sum of all clients' counts; None: each by its own counts
    clients: int  # K, how many clients the totals are summed over


@dataclass(frozen=True)
class Selected:
    """For those who watch a run without labels; all None where privacy is switched on."""

    examples: int | None  # how many images were chosen
    images: int | None  # n_k, of how many
    unchanged: int | None  # how many are labelled as at its last refresh; None at its first


@dataclass(frozen=True)
class Train:
    """Train for some epochs, starting from these prompts."""

    round: int
    shared: Shared
    experts: tuple[
        Shared, ...
    ] = ()  # other clients' last prompts, nearest first; only for methods that learn from them
    peers: tuple[str, ...] = ()  # with secure aggregation: whose prompts are summed, and masked for each other


@dataclass(frozen=True)
class Trained:
    shared: Shared
    examples: int  # how many images were trained on: the weight in the average; 1 for all where there is noise
    loss: float  # mean over the last epoch; nan when there was nothing to train on, and where there is noise
    masked: NDArray[np.uint64] | None = None  # with secure aggregation: all of these under masks, and nothing else
    checks: tuple[float, ...] = ()  # six sums of the hold-out check, see `HoldoutSums`; none with noise


@dataclass(frozen=True)
class Evaluate:
    """Count how many of your own labelled test images are right. `shared` None: by plain zero-shot CLIP."""

    round: int
    shared: Shared | None
    through: str = ""  # "priors", with `shared` None: plain CLIP, answered through them


@dataclass(frozen=True)
class Evaluated:
    correct: int
    examples: int  # 0 at a site that has no labels


@dataclass(frozen=True)
class SetupKeys:
    """Make keys for one secure aggregation."""

    round: int
    session: bytes  # names the sum; a new one for each


@dataclass(frozen=True)
class PublicKeys:
    keys: bytes  # three public keys
    voucher: bytes = b""  # at a real site: the key that it joins with, and its signature that these are its own


@dataclass(frozen=True)
class ShareKeys:
    """Share out the secrets behind your masks among all of these, so that you may get lost."""

    round: int
    session: bytes
    keys: Mapping[str, bytes]  # the public keys of all, yours among them
    vouchers: Mapping[str, bytes] = field(default_factory=dict)  # and who vouches for them


@dataclass(frozen=True)
class KeyShares:
    sealed: Mapping[str, bytes]  # for each client the shares that only it can read


@dataclass(frozen=True)
class Unmask:
    """Help to take the masks off the sum."""

    round: int
    session: bytes
    survivors: tuple[str, ...]  # whose masked answers came
    dropped: tuple[str, ...]  # whose did not
    sealed: Mapping[str, bytes]  # what each of them sealed for you


@dataclass(frozen=True)
class Unmasked:
    shares: Mapping[str, bytes]  # of each survivor's own mask, and of each lost one's masks by pair


Request = Adapt | Estimate | Select | Train | Evaluate | SetupKeys | ShareKeys | Unmask
Reply = Adapted | Estimated | Selected | Trained | Evaluated | PublicKeys | KeyShares | Unmasked
REPLY_TO: Mapping[type, type] = {
    Adapt: Adapted,
    Estimate: Estimated,
    Select: Selected,
    Train: Trained,
    Evaluate: Evaluated,
    SetupKeys: PublicKeys,
    ShareKeys: KeyShares,
    Unmask: Unmasked,
}
KeyRequest = SetupKeys | ShareKeys | Unmask
"""What a secure aggregation asks beside the numbers. These take no work."""


def payload_bytes(message: Request | Reply) -> int:
    """The bytes of what a message says: its arrays, keys and names, and eight for each number."""
    return sum(_bytes_of(getattr(message, part.name)) for part in fields(message))


def _bytes_of(value: Any) -> int:
    match value:
        case None:
            return 0
        case np.ndarray():
            return value.nbytes
        case bytes():
            return len(value)
        case str():
            return len(value.encode(errors="surrogatepass"))
        case Mapping():
            return sum(map(_bytes_of, value.values()))
        case tuple():
            return sum(map(_bytes_of, value))
    return 8


def digest(message: Request) -> str:
    """The same for the same question, whoever is asked, and for no other."""
    whole = sha256(type(message).__name__.encode())
    for part in fields(message):
        whole.update(_digest_of(getattr(message, part.name)))
    return whole.hexdigest()


def _digest_of(value: Any) -> bytes:
    match value:
        case np.ndarray():
            parts = [f"{value.dtype.str}{value.shape}".encode(), value.tobytes()]
        case Mapping():
            parts = [_digest_of(part) for name in sorted(value) for part in (name, value[name])]
        case tuple():
            parts = [_digest_of(part) for part in value]
        case bytes():
            parts = [value]
        case _:
            parts = [repr(value).encode()]
    inside = b"".join(sha256(part).digest() for part in parts)
    return sha256(type(value).__name__.encode() + inside).digest()
