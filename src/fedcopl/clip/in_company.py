"""Whether a row of a matrix product has the same bits in whatever company it is multiplied.

Several clients' rows in one product cost less than a product for each. But a library of matrix products may add up in
another order when there are more rows, and most do where there are very few. So it is tried, on the tower's own weights
and on the threads at hand: from so many rows on each row's bits are its own. Where they never are, nobody shares.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRIED = (1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 17, 30, 31, 32, 33, 47, 64, 85, 100, 128, 170, 200)  # rows
COMPANY = 400  # rows among which they are looked for again
NEVER = 10**9


@torch.inference_mode()
def alike_from(tower: nn.Module) -> int:
    """The fewest rows from which on a row's bits do not depend on its company, there and back; else NEVER."""
    if torch.get_num_threads() > 1:
        return NEVER  # how a product is shared out between threads depends on its size
    one_of_each = {module.weight.shape: module for module in tower.modules() if isinstance(module, nn.Linear)}
    return max(map(_alike_from, one_of_each.values()), default=NEVER)


def _alike_from(linear: nn.Linear) -> int:
    weight, bias = linear.weight, linear.bias
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return NEVER
    random = torch.Generator().manual_seed(0)
    there, back = (torch.randn(COMPANY, size, generator=random) for size in reversed(weight.shape))
    products = F.linear(there, weight, bias), back @ weight
    unlike = [
        rows
        for rows in TRIED
        if not (_begins_with(products[0], F.linear(there[:rows], weight, bias)))
        or not (_begins_with(products[1], back[:rows] @ weight))
    ]
    return next((rows for rows in TRIED if not unlike or rows > unlike[-1]), NEVER)


def _begins_with(many: Tensor, few: Tensor) -> bool:
    return torch.equal(many[: len(few)], few)
