"""The four stages of SecAgg: set up keys, share keys, mask a vector, unmask the sum.

The self masks are left in a sum: the server reconstructs their keys from the clients' shares, and subtracts them. It is
assumed to be honest but curious. A client still refuses requests that would reveal the vector of another client: see
the checks of each stage.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain, combinations, islice

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from ..errors import CannotReply
from ..plurals import counted
from .mask_session import KEY, KEYS, NONCE, SECRET, SHARE, Random, Session, combine, split, transcript
from .masked_layout import Words

_TRIES = 1000  # of sets of shares, where some are wrong
_Shares = Mapping[str, Mapping[str, bytes]]
"""The replies of the members: a share of each member's key."""


def _public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agreed(private: bytes, public: bytes, *label: str) -> bytes:
    """Derive the shared key of a pair of clients (X25519 key agreement), a different one for each label."""
    both = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derived(both, *label)


def are_public(keys: bytes) -> bool:
    """Return whether key agreement works with all these public keys: points of low order are invalid."""
    try:
        return all(_agreed(bytes(KEY), keys[start : start + KEY]) for start in range(0, len(keys), KEY))
    except ValueError:
        return False


def derived(secret: bytes, *label: str) -> bytes:
    return HKDF(SHA256(), KEY, salt=None, info=json.dumps(label).encode()).derive(secret)


def _seal(key: bytes, text: bytes, random: Random) -> bytes:
    nonce = random(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, None)


def _unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Decrypt a text; None if it was not encrypted with this key."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], None)
    except (InvalidTag, ValueError):
        return None


class WordStream:
    """Pseudorandom numbers from 0 to 2^64 - 1 (AES-CTR). A key is for one stream only."""

    def __init__(self, key: bytes):
        self._stream = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)


def setup_keys(name: bytes, random: Random = os.urandom) -> Session:
    """Generate the keys of one secure aggregation."""
    return Session(name, random(KEYS))


def public_keys(session: Session) -> bytes:
    return b"".join(map(_public_of, _thirds(session.private)))


def _thirds(keys: bytes) -> tuple[bytes, bytes, bytes]:
    """Split three keys: for encrypted shares, for pairwise masks, for the self mask."""
    return keys[:KEY], keys[KEY : 2 * KEY], keys[2 * KEY :]


def spending(session: Session) -> bytes:
    """Return the digest by which used keys are recognised."""
    return sha256(public_keys(session)).digest()


def _own_name(session: Session, roster: Mapping[str, bytes]) -> str:
    """Return the name of this client on the server, found by its public keys."""
    own_keys = public_keys(session)
    names = [client for client, keys in roster.items() if keys == own_keys]
    if len(names) != 1 or len(set(roster.values())) != len(roster):
        raise CannotReply("the list of keys does not contain this client exactly once, or contains one key twice")
    return names[0]


def share_keys(
    session: Session, roster: Mapping[str, bytes], needed: int, random: Random = os.urandom
) -> tuple[dict[str, bytes], Session]:
    """Return a share of the key of the self mask for each client, encrypted for that client."""
    if session.roster:
        raise CannotReply("ShareKeys request for keys that were already shared")
    updated = replace(session, roster=dict(roster))
    this_client = _own_name(session, roster)
    sealing, _, secret = _thirds(session.private)
    shares = split(secret, len(roster), needed, random)
    sealed = {
        other: _seal(
            _agreed(sealing, _thirds(roster[other])[0], "share", updated.transcript, this_client, other),
            share,
            random,
        )
        for other, share in zip(sorted(roster), shares, strict=True)
    }
    return sealed, updated


def mask(
    session: Session, numbers: Words, peers: Collection[str], request_digest: str, needed: int, kind: str = ""
) -> tuple[Words, Session]:
    """Add the self mask and all pairwise masks; each mask depends on `request_digest`."""
    if not session.roster or session.peers:
        raise CannotReply("request for a masked reply without new keys")
    this_client = _own_name(session, session.roster)
    if not {this_client} <= set(peers) <= set(session.roster) or not needed <= len(set(peers)) == len(peers):
        raise CannotReply(
            f"request for a masked reply among {counted(len(peers), 'client')}; {needed} different ones are needed"
        )
    label = (session.transcript, request_digest)
    masked = numbers + _own_mask(_thirds(session.private)[2], len(numbers), label)
    for other in peers:
        if other != this_client:
            masked += _pair_mask(session.private, session.roster[other], this_client < other, len(numbers), label)
    return masked, replace(session, peers=tuple(peers), kind=kind)


def _own_mask(private: bytes, count: int, label: tuple[str, str]) -> Words:
    return WordStream(derived(private, "own mask", *label))(count)


def _pair_mask(private: bytes, public: bytes, adds: bool, count: int, label: tuple[str, str]) -> Words:
    """Return the pairwise mask that the owner of the private keys adds for the owner of the public keys."""
    words = WordStream(_agreed(_thirds(private)[1], _thirds(public)[1], "pair mask", *label))(count)
    return words if adds else -words


def unmask(session: Session, sealed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a share of the self mask's key of each member of the sum; one that was tampered with is left out.

    The caller must discard the session afterwards and never reuse its keys.
    """
    if not session.peers or set(sealed) != set(session.peers):
        raise CannotReply("Unmask request for other clients than those of the masked reply")
    receiver, sealing = _own_name(session, session.roster), _thirds(session.private)[0]
    shares = {}
    for sender in session.peers:
        key = _agreed(sealing, _thirds(session.roster[sender])[0], "share", session.transcript, sender, receiver)
        share = _unseal(key, sealed[sender])
        if share is not None and len(share) == SHARE:
            shares[sender] = share
    return shares


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

    def unmasked(self, shares: _Shares) -> Words:
        """Return the sum of the members' vectors, modulo 2^64."""
        secrets = self._secrets(shares)
        label = (transcript(self.name, self.roster), self.request_digest)
        count = len(next(iter(self.masked.values())))
        total: Words = np.sum(list(self.masked.values()), axis=0, dtype=np.uint64)
        for client in self.masked:
            total -= _own_mask(secrets[client], count, label)
        return total

    def _secrets(self, shares: _Shares) -> dict[str, bytes]:
        """Return the key of each member's self mask; CannotUnmask names the members without one."""
        secrets = {client: self._self_mask_key(client, shares) for client in self.masked}
        known_secrets = {client: secret for client, secret in secrets.items() if secret is not None}
        if len(known_secrets) < len(secrets):
            helped = {client: sum(client in given for given in shares.values()) for client in secrets}
            raise CannotUnmask({client: helped[client] for client in secrets if client not in known_secrets})
        return known_secrets

    def _self_mask_key(self, client: str, shares: _Shares) -> bytes | None:
        """Reconstruct the private key of a member's self mask; None if no shares reproduce its public key.

        Shares that do not fit a key found after the first attempt are added to `wrong_shares`.
        """
        point_of = {name: number for number, name in enumerate(sorted(self.roster), 1)}
        received = {point_of[other]: given[client] for other, given in shares.items() if client in given}
        for attempt, points in enumerate(_sets(list(received), self.needed)):
            chosen = {number: received[number] for number in points}
            secret = combine(chosen)
            if _is_private(secret, _thirds(self.roster[client])[2]):
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
    return number < 2 ** (8 * SECRET) and _public_of(number.to_bytes(SECRET)) == public


def _is_wrong(chosen: Mapping[int, bytes], received: Mapping[int, bytes], point: int) -> bool:
    return point in received and combine(chosen, at=point) != int.from_bytes(received[point])
