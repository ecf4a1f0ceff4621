"""Step 2, on each client: the quota of pseudo labels of each class, from the counts of all clients.

All arithmetic is in integers, because ceil of a float may be one too large: in float32, ceil(27 * 91 / 91) is 28.
It is exact for up to 3 * 10^9 confident images, whose square fits int64.
"""

from typing import Literal

import numpy as np

from . import IntArray

_Budget = Literal["exact", "ceil"]
_Unseen = Literal["grow", "none"]


def quota(
    counts: IntArray,
    totals: IntArray,
    clients: int,
    *,
    refresh_index: int = 0,
    budget: _Budget = "exact",
    unseen: _Unseen = "grow",
) -> IntArray:
    """Return one client's quota of each class (Eq. 3), (C,): ceil(u_k[c] * M / T_c).

    Args:
        counts: u_k, the number of this client's confident images of each class, (C,).
        totals: T = sum_k u_k, (C,).
        clients: K.
        refresh_index: The number of refreshes before this one.
        budget: M, the number of pseudo labels of each class: S / C with S = sum_c T_c ("exact"), or its ceil ("ceil").
        unseen: The quota of a class without confident images (T_c = 0, where Eq. 3 is 0 / 0):
            ceil(M * (refresh_index + 1) / (2 K)), more at each refresh ("grow"), or 0 ("none").
    """
    counts, totals = np.asarray(counts, np.int64), np.asarray(totals, np.int64)
    total, classes = int(totals.sum()), len(totals)
    # M = per_class / denominator
    per_class, denominator = {"exact": (total, classes), "ceil": (_ceil_div(total, classes), 1)}[budget]
    share = -(-counts * per_class // np.maximum(totals * denominator, 1))
    fallback = {"grow": _ceil_div(per_class * (refresh_index + 1), 2 * clients * denominator), "none": 0}[unseen]
    return np.where(totals > 0, share, fallback)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
