"""Sessions of secure aggregation: secret shares, thresholds and transcripts."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from hashlib import sha256

_PRIME = 2**256 + 297  # the first prime above all secrets of 32 bytes
SECRET, SHARE = 32, 33  # bytes
Random = Callable[[int], bytes]


def split(secret: bytes, shares: int, needed: int, random: Random) -> list[bytes]:
    """Split a secret (Shamir): values at 1, 2, ... of a random polynomial of degree needed - 1 with f(0) = secret."""
    higher = [int.from_bytes(random(SECRET + 16)) % _PRIME for _ in range(needed - 1)]  # 128 bits more: no bias
    coefficients = [int.from_bytes(secret), *higher]
    return [_value(coefficients, point).to_bytes(SHARE) for point in range(1, shares + 1)]


def _value(coefficients: list[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % _PRIME
    return value


def combine(shares: Mapping[int, bytes], at: int = 0) -> int:
    """Interpolate the polynomial through these shares (by point) and return its value at `at`; 0: the secret."""
    total = 0
    for point, share in shares.items():
        above = below = 1
        for other in shares:
            if other != point:
                above, below = above * (at - other) % _PRIME, below * (point - other) % _PRIME
        total += int.from_bytes(share) * above * pow(below, -1, _PRIME)
    return total % _PRIME


KEY = 32  # bytes of a private key, of a public one, and of everything derived
KEYS = 3 * KEY
NONCE, _TAG = 12, 16
SEALED = NONCE + SHARE + _TAG


@dataclass(frozen=True)
class Session:
    """One secure aggregation, with keys that are used only once."""

    name: bytes  # chosen by the server, a new one for each sum
    private: bytes  # three private keys: for encrypted shares, pairwise masks and the self mask
    roster: Mapping[str, bytes] = field(default_factory=dict)  # the three public keys of each client
    peers: tuple[str, ...] = ()  # members of the sum; set once, since keys mask only one vector
    kind: str = ""  # of the request for the masked reply; set with `peers`

    @property
    def transcript(self) -> str:
        return transcript(self.name, self.roster)

    def to_bytes(self) -> bytes:
        plain = asdict(self) | {"name": self.name.hex(), "private": self.private.hex()}
        plain["roster"] = {client: keys.hex() for client, keys in self.roster.items()}
        return json.dumps(plain).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Session":
        """Restore a session written by `to_bytes`."""
        plain = json.loads(stored)
        roster = {client: bytes.fromhex(keys) for client, keys in plain["roster"].items()}
        name, private = bytes.fromhex(plain["name"]), bytes.fromhex(plain["private"])
        return cls(name, private, roster, tuple(plain["peers"]), plain["kind"])


def transcript(name: bytes, roster: Mapping[str, bytes]) -> str:
    """Return the digest of the session name and all public keys, which all members must agree on."""
    listed = [(client, roster[client].hex()) for client in sorted(roster)]
    return sha256(json.dumps([name.hex(), listed]).encode()).hexdigest()


def needed(clients: int, share: float) -> int:
    """Return the threshold: this share of the clients, but more than half, so that no two disjoint groups reach it.

    >>> needed(5, 0.6), needed(4, 0.5), needed(2, 0.6)
    (3, 3, 2)
    """
    return max(math.ceil(Fraction(str(share)) * clients), clients // 2 + 1)
