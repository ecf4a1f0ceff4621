"""The session of one secure aggregation: Shamir's secret sharing, thresholds and transcripts."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from hashlib import sha256

from ..plurals import counted

_PRIME = 2**256 + 297  # the first prime above all secrets of 32 bytes
SECRET, SHARE = 32, 33  # bytes
Random = Callable[[int], bytes]
"""Returns random bytes, in the number of the argument."""


def split(secret: bytes, shares: int, threshold: int, random: Random) -> list[bytes]:
    """Split a secret (Shamir): values at 1, 2, ... of a random polynomial f of degree threshold - 1, f(0) = secret."""
    higher = [int.from_bytes(random(SECRET + 16)) % _PRIME for _ in range(threshold - 1)]  # 128 extra bits: no bias
    coefficients = [int.from_bytes(secret), *higher]
    return [_polynomial_value(coefficients, point).to_bytes(SHARE) for point in range(1, shares + 1)]


def _polynomial_value(coefficients: list[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % _PRIME
    return value


def combine(shares: Mapping[int, bytes], at: int = 0) -> int:
    """Return the value at x = `at` of the polynomial through the points (x, share); at 0 it is the secret."""
    total = 0
    for point, share in shares.items():
        numerator = denominator = 1
        for other in shares:
            if other != point:
                numerator = numerator * (at - other) % _PRIME
                denominator = denominator * (point - other) % _PRIME
        total += int.from_bytes(share) * numerator * pow(denominator, -1, _PRIME)
    return total % _PRIME


KEY = 32  # bytes of each private, public and derived key
KEYS = 3 * KEY
NONCE, _TAG = 12, 16
SEALED = NONCE + SHARE + _TAG


@dataclass(frozen=True)
class Session:
    """One secure aggregation, with keys for this sum only."""

    name: bytes  # unique for each sum, chosen by the server
    private: bytes  # three private keys: for encrypted shares, pairwise masks and the self mask
    roster: Mapping[str, bytes] = field(default_factory=dict)  # the three public keys of each client
    peers: tuple[str, ...] = ()  # members of the sum; set once, because the keys mask only one vector
    kind: str = ""  # type of the request for the masked reply; set with `peers`

    @property
    def transcript(self) -> str:
        return transcript(self.name, self.roster)

    def to_bytes(self) -> bytes:
        fields = asdict(self) | {"name": self.name.hex(), "private": self.private.hex()}
        fields["roster"] = {client: keys.hex() for client, keys in self.roster.items()}
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Session":
        fields = json.loads(stored)
        roster = {client: bytes.fromhex(keys) for client, keys in fields["roster"].items()}
        name, private = bytes.fromhex(fields["name"]), bytes.fromhex(fields["private"])
        return cls(name, private, roster, tuple(fields["peers"]), fields["kind"])


def transcript(name: bytes, roster: Mapping[str, bytes]) -> str:
    """Return the digest of the session name and all public keys, which must be the same at all members."""
    keys_by_client = [(client, roster[client].hex()) for client in sorted(roster)]
    return sha256(json.dumps([name.hex(), keys_by_client]).encode()).hexdigest()


def unmask_threshold(clients: int, share: float) -> int:
    """Return how many clients can unmask a sum: this share of them, and more than half: no two disjoint groups can.

    >>> unmask_threshold(5, 0.6), unmask_threshold(4, 0.5), unmask_threshold(2, 0.6)
    (3, 3, 2)
    """
    return max(math.ceil(Fraction(str(share)) * clients), clients // 2 + 1)


class CannotUnmask(Exception):
    """The received shares do not reconstruct the key of at least one member; `shares` has their number by member."""

    def __init__(self, shares: Mapping[str, int]):
        self.reasons = {
            member: f"its masks cannot be removed: the shares of {counted(count, 'client')} are inconsistent"
            for member, count in shares.items()
        }
        super().__init__(": ".join(next(iter(self.reasons.items()))))  # the first member and its reason
