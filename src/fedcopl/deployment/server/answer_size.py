"""How large an answer of a run can be, known from its settings before anybody is asked."""

from collections.abc import Mapping

from ...algorithm import FloatArray
from ...algorithm.evidence import SHARPNESSES
from ...federation.adaptation import size_of
from ...federation.server import ServerState
from ...messages import Adapt

SUMS = ("features", "predicted", "explained", "classes")
WORD = 8  # bytes of a number under masks, and of a sum
WRAPPING = 2_000_000  # names, headers, keys and shares of some ten thousand sites


def largest_answer(state: ServerState) -> int:
    """Bytes: prompts as they were sent, or each number under masks, or the largest sums of the priors.

    >>> largest_answer(ServerState(0, {}, classes=10, width=64))
    2033288
    """
    numbers = sum(prompt.size for prompt in state.shared.values())
    readings: tuple[Mapping[str, FloatArray], ...] = ({},) * (1 + len(SHARPNESSES))
    asks = [Adapt(0, 0, wanted, state.width, readings=readings) for wanted in SUMS]
    return WRAPPING + WORD * max(numbers, *(size_of(ask, state.classes) for ask in asks))
