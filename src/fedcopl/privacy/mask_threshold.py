"""How many clients it takes to take off masks."""

import math
from fractions import Fraction


def needed(clients: int, share: float) -> int:
    """This share of the clients, but more than half: two separate groups must never both be enough.

    >>> needed(5, 0.6), needed(4, 0.5), needed(2, 0.6)
    (3, 3, 2)
    """
    return max(math.ceil(Fraction(str(share)) * clients), clients // 2 + 1)
