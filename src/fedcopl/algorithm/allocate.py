"""Step 2, on each client: the quota of pseudo labels of each class, from the counts of all clients.

Everything here is integer arithmetic, because a float may round a whole number up: in float32, 27 of 91
with 91 per class gives 28 instead of 27. It is exact for up to 3 * 10^9 confident images (S * S fits int64).
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
        counts: u_k, this client's confident images of each class, (C,).
        totals: T = sum_k u_k, (C,).
        clients: K.
        refresh_index: The number of refreshes before this one.
        budget: Every class gets M = S / C pseudo labels, S = sum_c T_c ("exact"), or that rounded up ("ceil").
        unseen: Of a class without confident images (T_c = 0, where Eq. 3 is 0 / 0) each client may take
            ceil(M * (refresh_index + 1) / (2 K)), more at each refresh ("grow"), or none ("none").
    """
    counts, totals = np.asarray(counts, np.int64), np.asarray(totals, np.int64)
    total, classes = int(totals.sum()), len(totals)
    # M as a fraction of whole numbers.
    per_class, parts = {"exact": (total, classes), "ceil": (_ceil_div(total, classes), 1)}[budget]
    share = -(-counts * per_class // np.maximum(totals * parts, 1))
    fallback = {"grow": _ceil_div(per_class * (refresh_index + 1), 2 * clients * parts), "none": 0}[unseen]
    return np.where(totals > 0, share, fallback)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
