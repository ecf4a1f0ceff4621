"""A secret in shares, of which any `needed` give it back and fewer say nothing about it (Shamir 1979)."""

from collections.abc import Callable, Mapping

PRIME = 2**256 + 297  # the first prime above all secrets of 32 bytes
SECRET, SHARE = 32, 33  # bytes
Random = Callable[[int], bytes]


def split(secret: bytes, shares: int, needed: int, random: Random) -> list[bytes]:
    """The values at 1, 2, ... of a random polynomial of degree needed - 1 that is the secret at 0."""
    higher = [int.from_bytes(random(SECRET + 16)) % PRIME for _ in range(needed - 1)]  # 128 bits more: no bias
    coefficients = [int.from_bytes(secret), *higher]
    return [_value(coefficients, place).to_bytes(SHARE) for place in range(1, shares + 1)]


def _value(coefficients: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def combine(shares: Mapping[int, bytes], at: int = 0) -> int:
    """The value at 0, which is the secret, or elsewhere, of the polynomial through these shares, by place."""
    total = 0
    for place, share in shares.items():
        above = below = 1
        for other in shares:
            if other != place:
                above, below = above * (at - other) % PRIME, below * (place - other) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    return total % PRIME
