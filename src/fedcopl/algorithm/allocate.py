"""Step 2, on the server or on each client: how many pseudo-labels may a client keep of each class?

Everything here is integer arithmetic, because a float may round a whole number up: in float32, 27 of 91
with 91 per class gives 28 instead of 27. It is exact for up to 3 * 10^9 sure images (S * S fits int64).
"""

from typing import Literal

import numpy as np

from . import IntArray

Budget = Literal["exact", "ceil"]
Unseen = Literal["grow", "none"]


def quota(
    counts: IntArray,
    totals: IntArray,
    clients: int,
    *,
    refresh_index: int = 0,
    budget: Budget = "exact",
    unseen: Unseen = "grow",
) -> IntArray:
    """One client's row of Eq. 3, shape (C,): ceil(u_k[c] * M / T_c).

    counts is this client's u_k and totals is T = sum_k u_k, both (C,); clients is K.
    budget: every class gets M = S / C pseudo-labels, S = sum_c T_c ("exact"), or that rounded up ("ceil").
    unseen: of a class nobody is sure of (T_c = 0, where Eq. 3 is 0 / 0) each client may take
    ceil(M * (refresh_index + 1) / (2 K)), more at each refresh ("grow"), or nothing ("none").
    """
    counts, totals = np.asarray(counts, np.int64), np.asarray(totals, np.int64)
    total, classes = int(totals.sum()), len(totals)
    # M as a fraction of whole numbers.
    per_class, parts = {"exact": (total, classes), "ceil": (_ceil_div(total, classes), 1)}[budget]
    share = -(-counts * per_class // np.maximum(totals * parts, 1))
    fallback = {"grow": _ceil_div(per_class * (refresh_index + 1), 2 * clients * parts), "none": 0}[unseen]
    return np.where(totals > 0, share, fallback)


def allocate(
    counts: IntArray, *, refresh_index: int = 0, budget: Budget = "exact", unseen: Unseen = "grow"
) -> IntArray:
    """All rows of Eq. 3 at once, (K, C) from the (K, C) counts u; row k is client k's `quota`."""
    totals = np.asarray(counts, np.int64).sum(axis=0)
    # `quota` works class by class, so it takes the rows of all clients as well as that of one.
    return quota(counts, totals, len(counts), refresh_index=refresh_index, budget=budget, unseen=unseen)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
