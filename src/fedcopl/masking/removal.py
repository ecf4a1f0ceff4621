"""The server's part: rebuild the secrets behind the masks that are left in a sum, and take those off."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations, islice

import numpy as np

from .crypto import public_of
from .session import KEY, transcript
from .shamir import SECRET, combine
from .steps import Words, own_mask, pair_mask, thirds

PAIR, OWN = 1, 2  # which of a client's three keys
TRIES = 1000  # of sets of shares, where some are wrong
Shares = Mapping[str, Mapping[str, bytes]]
"""What each survivor answered: a share of every client's secret."""


class CannotUnmask(Exception):
    """The shares that came do not give back a secret."""


@dataclass(frozen=True)
class MaskedSum:
    """A sum with masks on it."""

    name: bytes  # of the session
    roster: Mapping[str, bytes]  # the public keys of all who introduced themselves
    masked: Mapping[str, Words]  # the survivors' answers
    dropped: tuple[str, ...]  # who shared out secrets, but whose answer did not come
    question: str
    needed: int  # shares that give back a secret
    liars: set[str] = field(default_factory=set)  # who turned out to have given a wrong share

    def unmasked(self, shares: Shares) -> Words:
        """The sum of the survivors' numbers, modulo 2^64."""
        label = (transcript(self.name, self.roster), self.question)
        count = len(next(iter(self.masked.values())))
        total: Words = np.sum(list(self.masked.values()), axis=0, dtype=np.uint64)
        for client in self.masked:
            total -= own_mask(self._secret(client, OWN, shares), count, label)
        for client in self.dropped:
            private = bytes(KEY) + self._secret(client, PAIR, shares) + bytes(KEY)
            for survivor in self.masked:
                # What the lost one would have added is the opposite of what the survivor did add.
                total += pair_mask(private, self.roster[survivor], client < survivor, count, label)
        return total

    def _secret(self, client: str, which: int, shares: Shares) -> bytes:
        """A client's private key, from shares that fit together: the public key tells."""
        place = {name: number for number, name in enumerate(sorted(self.roster), 1)}
        told = {place[other]: given[client] for other, given in shares.items() if client in given}
        for attempt, some in enumerate(_sets(list(told), self.needed)):
            chosen = {number: told[number] for number in some}
            secret = combine(chosen)
            if _is_private(secret, thirds(self.roster[client])[which]):
                if attempt:
                    self.liars.update(other for other in shares if _lies(chosen, told, place[other]))
                return secret.to_bytes(SECRET)
        raise CannotUnmask(f"{len(told)} clients helped to take off the masks of {client}, but the shares do not fit")


def _sets(places: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Sets of so many places: first those of neighbours, so that a single wrong share is soon left out."""
    around = [*places, *places[: size - 1]] if len(places) > size else places
    windows = (tuple(around[start : start + size]) for start in range(len(around) - size + 1))
    return chain(windows, islice(combinations(places, size), TRIES))


def _is_private(number: int, public: bytes) -> bool:
    return number < 2 ** (8 * SECRET) and public_of(number.to_bytes(SECRET)) == public


def _lies(chosen: Mapping[int, bytes], told: Mapping[int, bytes], place: int) -> bool:
    return place in told and combine(chosen, at=place) != int.from_bytes(told[place])
