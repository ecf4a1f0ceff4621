"""What a client keeps from one step of a secure sum to the next. Never sent."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256

from .shamir import SHARE

KEY = 32  # bytes of a private key, of a public one, and of everything derived
KEYS = 3 * KEY
NONCE, TAG = 12, 16
SEALED = NONCE + 2 * SHARE + TAG


@dataclass(frozen=True)
class Session:
    """One secure sum: its keys are made for it, and forgotten with it."""

    name: bytes  # the server's, a new one for each sum
    private: bytes  # three private keys: of the sealed shares, of the masks by pair, of the own mask
    roster: Mapping[str, bytes] = field(default_factory=dict)  # everybody's three public keys
    peers: tuple[str, ...] = ()  # with whom the masks were made: no further numbers are masked with these keys

    @property
    def transcript(self) -> str:
        return transcript(self.name, self.roster)

    def to_bytes(self) -> bytes:
        plain = asdict(self) | {"name": self.name.hex(), "private": self.private.hex()}
        plain["roster"] = {client: keys.hex() for client, keys in self.roster.items()}
        return json.dumps(plain).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Session":
        """What `to_bytes` was given."""
        plain = json.loads(stored)
        roster = {client: bytes.fromhex(keys) for client, keys in plain["roster"].items()}
        return cls(bytes.fromhex(plain["name"]), bytes.fromhex(plain["private"]), roster, tuple(plain["peers"]))


def transcript(name: bytes, roster: Mapping[str, bytes]) -> str:
    """What all who take part have to agree on before masks are made; other keys, other masks."""
    listed = [(client, roster[client].hex()) for client in sorted(roster)]
    return sha256(json.dumps([name.hex(), listed]).encode()).hexdigest()
