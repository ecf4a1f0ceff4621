"""Random streams named by purpose."""

import zlib

import numpy as np


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a random stream that depends only on its name, never on what ran before it.

    `indices` narrow the purpose down, for example to a client and a round; each is below 2^32.

    >>> int(stream(0, "partition").integers(100)) == int(stream(0, "partition").integers(100))
    True
    """
    key = (zlib.crc32(purpose.encode()), *indices)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
