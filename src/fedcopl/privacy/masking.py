"""The four stages of SecAgg: set up keys, share keys, mask a vector, unmask the sum.

The server reconstructs the keys of the self masks from the clients' shares, and subtracts these masks from the sum. It
is assumed to be honest but curious; a client still refuses requests that would reveal the vector of another client.
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
from .mask_session import KEY, KEYS, NONCE, SECRET, SHARE, CannotUnmask, Random, Session, combine, split, transcript
from .masked_layout import Words

_MAX_SUBSETS = 1000  # subsets of shares to try when some shares are wrong
_Shares = Mapping[str, Mapping[str, bytes]]
"""A share of each member's key, by sender and owner of the key."""


def _public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _shared_key(private: bytes, public: bytes, *label: str) -> bytes:
    """Derive the shared key of two clients (X25519 key agreement), a different one for each label."""
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derive_key(secret, *label)


def are_valid_public_keys(keys: bytes) -> bool:
    """Return whether key agreement works with all these public keys; it fails for points of low order."""
    try:
        return all(_shared_key(bytes(KEY), keys[start : start + KEY]) for start in range(0, len(keys), KEY))
    except ValueError:
        return False


def derive_key(secret: bytes, *label: str) -> bytes:
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
    """Pseudorandom integers below 2^64 (AES-CTR); each key is for one stream only."""

    def __init__(self, key: bytes):
        self._stream = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)


def setup_keys(name: bytes, random: Random = os.urandom) -> Session:
    """Generate the keys of one secure aggregation."""
    return Session(name, random(KEYS))


def public_keys(session: Session) -> bytes:
    return b"".join(map(_public_key, _thirds(session.private)))


def _thirds(keys: bytes) -> tuple[bytes, bytes, bytes]:
    """Split concatenated keys into those for encrypted shares, for pairwise masks and for the self mask."""
    return keys[:KEY], keys[KEY : 2 * KEY], keys[2 * KEY :]


def key_digest(session: Session) -> bytes:
    """Return the digest by which a client recognises used keys."""
    return sha256(public_keys(session)).digest()


def _find_this_client(session: Session, roster: Mapping[str, bytes]) -> str:
    """Return the name of this client in the roster, found by its public keys."""
    own_keys = public_keys(session)
    names = [client for client, keys in roster.items() if keys == own_keys]
    if len(names) != 1 or len(set(roster.values())) != len(roster):
        raise CannotReply("the list of keys does not contain this client exactly once, or contains one key twice")
    return names[0]


def share_keys(
    session: Session, roster: Mapping[str, bytes], threshold: int, random: Random = os.urandom
) -> tuple[dict[str, bytes], Session]:
    """Split the key of the self mask into one share per client, each encrypted for its recipient."""
    if session.roster:
        raise CannotReply("ShareKeys request for keys that were already shared")
    updated = replace(session, roster=dict(roster))
    this_client = _find_this_client(session, roster)
    sealing, _, secret = _thirds(session.private)
    shares = split(secret, len(roster), threshold, random)
    sealed = {}
    for other, share in zip(sorted(roster), shares, strict=True):
        key = _shared_key(sealing, _thirds(roster[other])[0], "share", updated.transcript, this_client, other)
        sealed[other] = _seal(key, share, random)
    return sealed, updated


def mask(
    session: Session, numbers: Words, peers: Collection[str], request_digest: str, min_peers: int, kind: str = ""
) -> tuple[Words, Session]:
    """Add the self mask and one pairwise mask per peer; all masks depend on `request_digest`."""
    if not session.roster or session.peers:
        raise CannotReply("request for a masked reply without new keys")
    this_client = _find_this_client(session, session.roster)
    if not {this_client} <= set(peers) <= set(session.roster) or not min_peers <= len(set(peers)) == len(peers):
        raise CannotReply(
            f"request for a masked reply among {counted(len(peers), 'client')}; {min_peers} different ones are needed"
        )
    label = (session.transcript, request_digest)
    masked = numbers + _self_mask(_thirds(session.private)[2], len(numbers), label)
    for other in peers:
        if other != this_client:
            masked += _pair_mask(session.private, session.roster[other], this_client < other, len(numbers), label)
    return masked, replace(session, peers=tuple(peers), kind=kind)


def _self_mask(private: bytes, count: int, label: tuple[str, str]) -> Words:
    return WordStream(derive_key(private, "own mask", *label))(count)


def _pair_mask(private: bytes, public: bytes, adds: bool, count: int, label: tuple[str, str]) -> Words:
    """Return the pairwise mask of two clients for the one that adds it, or with the opposite sign for the other."""
    words = WordStream(_shared_key(_thirds(private)[1], _thirds(public)[1], "pair mask", *label))(count)
    return words if adds else -words


def unmask(session: Session, sealed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Decrypt the shares of the members' self-mask keys, without shares that were tampered with.

    The caller must discard the session afterwards and never reuse its keys.
    """
    if not session.peers or set(sealed) != set(session.peers):
        raise CannotReply("Unmask request for other clients than those of the masked reply")
    receiver, sealing = _find_this_client(session, session.roster), _thirds(session.private)[0]
    shares = {}
    for sender in session.peers:
        key = _shared_key(sealing, _thirds(session.roster[sender])[0], "share", session.transcript, sender, receiver)
        share = _unseal(key, sealed[sender])
        if share is not None and len(share) == SHARE:
            shares[sender] = share
    return shares


@dataclass(frozen=True)
class MaskedSum:
    """The masked replies of all members; without one of them the pairwise masks do not cancel."""

    name: bytes  # of the session
    roster: Mapping[str, bytes]  # the public keys of all participants
    masked: Mapping[str, Words]  # the members' replies
    request_digest: str
    threshold: int  # number of shares that reconstruct a secret
    wrong_shares: set[str] = field(default_factory=set)  # clients that sent a wrong share

    def unmasked(self, shares: _Shares) -> Words:
        """Return the sum of the members' vectors, modulo 2^64.

        Raises:
            CannotUnmask: The key of a member's self mask cannot be reconstructed.
        """
        label = (transcript(self.name, self.roster), self.request_digest)
        total: Words = np.sum(list(self.masked.values()), axis=0, dtype=np.uint64)
        failed = {}
        for member in self.masked:
            secret = self._self_mask_key(member, shares)
            if secret is None:
                failed[member] = sum(member in sent for sent in shares.values())
            else:
                total -= _self_mask(secret, len(total), label)
        if failed:
            raise CannotUnmask(failed)
        return total

    def _self_mask_key(self, member: str, shares: _Shares) -> bytes | None:
        """Reconstruct the private key of a member's self mask; None if no shares reproduce its public key.

        If the first shares do not, `wrong_shares` gets the senders of those that contradict the key.
        """
        point_of = {client: point for point, client in enumerate(sorted(self.roster), 1)}
        senders = [sender for sender, sent in shares.items() if member in sent]
        received = {point_of[sender]: shares[sender][member] for sender in senders}
        public = _thirds(self.roster[member])[2]
        for attempt, points in enumerate(_subsets(list(received), self.threshold)):
            chosen = {point: received[point] for point in points}
            secret = combine(chosen)
            if secret < 2 ** (8 * SECRET) and _public_key(secret.to_bytes(SECRET)) == public:
                for sender, (point, share) in zip(senders, received.items(), strict=True) if attempt else ():
                    if combine(chosen, at=point) != int.from_bytes(share):
                        self.wrong_shares.add(sender)
                return secret.to_bytes(SECRET)
        return None


def _subsets(points: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield subsets of `size` points, consecutive ones first, so that a single wrong share is soon left out."""
    cyclic = [*points, *points[: size - 1]] if len(points) > size else points
    windows = (tuple(cyclic[start : start + size]) for start in range(len(cyclic) - size + 1))
    return chain(windows, islice(combinations(points, size), _MAX_SUBSETS))
