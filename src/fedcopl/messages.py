"""All messages between server and clients.

Nothing else leaves a client. `docs/privacy.md` explains every field of the replies; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shared = Mapping[str, NDArray[np.float32]]
"""Prompts that the server averages, by name: for FedCoPL only `visual`."""


@dataclass(frozen=True)
class Estimate:
    """Request to relabel all images and to count the confident ones of each class."""

    round: int
    shared: Shared
    peers: tuple[str, ...] = ()  # with secure aggregation: the clients whose masked counts are summed


@dataclass(frozen=True)
class Estimated:
    """Reply to `Estimate`."""

    counts: NDArray[np.int64] | None  # u_k, (C,); None if the labeler is not cooperative
    masked: NDArray[np.uint64] | None = None  # with secure aggregation: the masked counts, and nothing else


@dataclass(frozen=True)
class Adapt:
    """Request for a client's sums of one step of the prior estimation.

    A request has the totals of the last step, from which every client computes its next sums. The request after the
    last step completes the estimation; its reply has no sums.
    """

    round: int
    step: int  # counted from 0, the step with zero-shot CLIP
    totals: tuple[NDArray[np.float64], ...] = ()  # of the last step; of all steps for a client that missed some
    class_prior: NDArray[np.float64] | None = None  # (C,) over all sites, from the file in `priors.class_prior`
    peers: tuple[str, ...] = ()  # with secure aggregation: the clients whose masked sums are added up
    weight: float = 1.0  # of this client's sums in the totals; below 1 if it has many times as many images as others


@dataclass(frozen=True)
class Adapted:
    """Reply to `Adapt`."""

    sums: NDArray[np.float64] | None  # over all images of the site, see `docs/priors.md`; None after the last step
    masked: NDArray[np.uint64] | None = None  # with secure aggregation: the masked sums, and nothing else
    refused: bool = False  # after the last step: the priors contradict confident images; always False with privacy


@dataclass(frozen=True)
class Select:
    """Request to select training images, given the sums over all clients."""

    round: int
    refresh: int  # number of earlier refreshes
    totals: NDArray[np.int64] | None  # T, (C,), the sum of all clients' counts; None: each client uses its own counts
    clients: int  # K, the number of clients in the totals


@dataclass(frozen=True)
class Selected:
    """Reply to `Select`, for monitoring without labels; all None with privacy."""

    examples: int | None  # images selected
    images: int | None  # n_k, images of the client
    unchanged: int | None  # images whose pseudo label is that of the last refresh; None at the first refresh


@dataclass(frozen=True)
class Train:
    """Request to train for the local epochs, starting from these prompts."""

    round: int
    shared: Shared
    experts: tuple[Shared, ...] = ()  # the last prompts of the nearest other clients, for methods that use them
    peers: tuple[str, ...] = ()  # with secure aggregation: the clients whose masked prompts are summed


@dataclass(frozen=True)
class Trained:
    """Reply to `Train`."""

    shared: Shared
    examples: int  # images trained on: the weight in the average; 1 with noise
    loss: float  # mean over the last epoch; nan if nothing was trained, and with noise
    masked: NDArray[np.uint64] | None = None  # with secure aggregation: all of this masked, and nothing else
    checks: tuple[float, ...] = ()  # six sums of the hold-out check, see `HoldoutSums`; none with noise


@dataclass(frozen=True)
class Evaluate:
    """Request to count the correct predictions on the client's own test images."""

    round: int
    shared: Shared | None  # the prompts; None: zero-shot CLIP
    calibration: str = ""  # if `shared` is None: "priors" for zero-shot CLIP with the priors, empty: without


@dataclass(frozen=True)
class Evaluated:
    """Reply to `Evaluate`."""

    correct: int
    examples: int  # test images; 0 at a site without labels


@dataclass(frozen=True)
class SetupKeys:
    """Request to make keys for one secure aggregation."""

    round: int
    session: bytes  # random name of the aggregation


@dataclass(frozen=True)
class PublicKeys:
    """Reply to `SetupKeys`."""

    keys: bytes  # three public keys
    voucher: bytes = b""  # of a deployed site: its public key, and its signature of these keys


@dataclass(frozen=True)
class ShareKeys:
    """Request to share the secrets of the masks among all clients, so that unmasking tolerates lost clients."""

    round: int
    session: bytes
    keys: Mapping[str, bytes]  # the public keys of all clients
    vouchers: Mapping[str, bytes] = field(default_factory=dict)  # their signatures


@dataclass(frozen=True)
class KeyShares:
    """Reply to `ShareKeys`."""

    sealed: Mapping[str, bytes]  # an encrypted share for each client


@dataclass(frozen=True)
class Unmask:
    """Request for the shares that remove the masks from the sum."""

    round: int
    session: bytes
    sealed: Mapping[str, bytes]  # the share that each member of the sum encrypted for this client


@dataclass(frozen=True)
class Unmasked:
    """Reply to `Unmask`."""

    shares: Mapping[str, bytes]  # of the key of each member's self mask


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
"""The requests of the key exchange of secure aggregation."""


def payload_bytes(message: Request | Reply) -> int:
    """Return the payload of a message: the bytes of its arrays, keys and names, and eight bytes for each number."""
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
    """Return the digest of a request, by type and content."""
    combined = sha256(type(message).__name__.encode())
    for item in fields(message):
        combined.update(_digest_of(getattr(message, item.name)))
    return combined.hexdigest()


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
    digests = b"".join(sha256(part).digest() for part in parts)
    return sha256(type(value).__name__.encode() + digests).digest()
