"""The primitives, all from the package `cryptography`: X25519, HKDF, AES-GCM, and AES-CTR for long streams."""

import json

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

from .mask_session import KEY, NONCE
from .shamir import Random


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, *label: str) -> bytes:
    """A key that both sides of a pair can work out and nobody else, a different one for each label."""
    both = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derived(both, *label)


def are_public(keys: bytes) -> bool:
    """Whether all of these can be agreed with: a few values cannot, and would stop everybody."""
    try:
        return all(agreed(bytes(KEY), keys[start : start + KEY]) for start in range(0, len(keys), KEY))
    except ValueError:
        return False


def derived(secret: bytes, *label: str) -> bytes:
    return HKDF(SHA256(), KEY, salt=None, info=json.dumps(label).encode()).derive(secret)


def seal(key: bytes, text: bytes, random: Random) -> bytes:
    nonce = random(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The text, or None if this is not what was sealed with this key."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], None)
    except (InvalidTag, ValueError):
        return None


class WordStream:
    """Numbers from 0 to 2^64 - 1 that look random to everybody without the key. A key is for one stream only."""

    def __init__(self, key: bytes):
        self._stream = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)
