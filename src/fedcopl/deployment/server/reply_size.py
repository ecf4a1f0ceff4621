"""How large a reply of a run can be, known from its settings before any request."""

import math

from ...federation.server import ServerState
from ...priors.estimation import FEATURE_SCALES
from ...priors.posterior import no_priors
from ...priors.statistics import Statistic

WORD = 8  # bytes of a number under masks, and of a sum
WRAPPING = 2_000_000  # names, headers, keys and shares of some ten thousand sites


def largest_reply(state: ServerState) -> int:
    """Return bytes: prompts as they were sent, or each number under masks, or the largest sums of the priors.

    >>> largest_reply(ServerState(0, {}, classes=10, width=64))
    2017240
    """
    numbers = sum(prompt.size for prompt in state.shared.values())
    models = (no_priors(state.classes),) * 2 * len(FEATURE_SCALES)
    largest = [Statistic("moments"), Statistic("class_sums", models[:2]), Statistic("view_sums", models)]
    sizes = [math.prod(one.shape(state.classes, state.width)) for one in largest]
    return WRAPPING + WORD * max(numbers, *sizes)
