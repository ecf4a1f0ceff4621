"""The server's part of SecAgg: reconstruct the keys of the self masks, which are left in a sum, and subtract them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations, islice

import numpy as np

from ..plurals import counted
from .mask_session import SECRET, combine, transcript
from .masked_layout import Words
from .masking import own_mask, public_of, thirds

_TRIES = 1000  # of sets of shares, where some are wrong
Shares = Mapping[str, Mapping[str, bytes]]
"""The replies of the members: a share of each member's key."""


class CannotUnmask(Exception):
    """The received shares do not reconstruct the secret of at least one client."""

    def __init__(self, shares: Mapping[str, int]):
        client, helped = next(iter(shares.items()))
        super().__init__(
            f"the masks of {client} cannot be removed: the shares of {counted(helped, 'client')} are inconsistent"
        )
        self.reasons = {
            client: f"its masks cannot be removed: the shares of {counted(helped, 'client')} are inconsistent"
            for client, helped in shares.items()
        }


@dataclass(frozen=True)
class MaskedSum:
    """A sum of masked replies, of all members: without one of them the pairwise masks do not cancel."""

    name: bytes  # of the session
    roster: Mapping[str, bytes]  # the public keys of all participants
    masked: Mapping[str, Words]  # the members' replies
    request_digest: str
    needed: int  # number of shares that reconstruct a secret
    wrong_shares: set[str] = field(default_factory=set)  # clients that sent a wrong share

    def unmasked(self, shares: Shares) -> Words:
        """Return the sum of the members' vectors, modulo 2^64."""
        secrets = self._secrets(shares)
        label = (transcript(self.name, self.roster), self.request_digest)
        count = len(next(iter(self.masked.values())))
        total: Words = np.sum(list(self.masked.values()), axis=0, dtype=np.uint64)
        for client in self.masked:
            total -= own_mask(secrets[client], count, label)
        return total

    def _secrets(self, shares: Shares) -> dict[str, bytes]:
        """Return the key of each member's self mask; CannotUnmask names the members without one."""
        secrets = {client: self._secret(client, shares) for client in self.masked}
        known_secrets = {client: secret for client, secret in secrets.items() if secret is not None}
        if len(known_secrets) < len(secrets):
            helped = {client: sum(client in given for given in shares.values()) for client in secrets}
            raise CannotUnmask({client: helped[client] for client in secrets if client not in known_secrets})
        return known_secrets

    def _secret(self, client: str, shares: Shares) -> bytes | None:
        """Return the private key of a member's self mask, from shares that reproduce the public key; None: none do."""
        point_of = {name: number for number, name in enumerate(sorted(self.roster), 1)}
        received = {point_of[other]: given[client] for other, given in shares.items() if client in given}
        for attempt, some in enumerate(_sets(list(received), self.needed)):
            chosen = {number: received[number] for number in some}
            secret = combine(chosen)
            if _is_private(secret, thirds(self.roster[client])[2]):
                if attempt:
                    self.wrong_shares.update(other for other in shares if _is_wrong(chosen, received, point_of[other]))
                return secret.to_bytes(SECRET)
        return None


def _sets(points: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of `size` points, consecutive ones first, so that a single wrong share is soon left out."""
    around = [*points, *points[: size - 1]] if len(points) > size else points
    windows = (tuple(around[start : start + size]) for start in range(len(around) - size + 1))
    return chain(windows, islice(combinations(points, size), _TRIES))


def _is_private(number: int, public: bytes) -> bool:
    return number < 2 ** (8 * SECRET) and public_of(number.to_bytes(SECRET)) == public


def _is_wrong(chosen: Mapping[int, bytes], received: Mapping[int, bytes], point: int) -> bool:
    return point in received and combine(chosen, at=point) != int.from_bytes(received[point])
